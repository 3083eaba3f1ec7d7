"""The operator's half of `CommandBus`: domains, and commands that wait."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cmdbus.checks import (
    check_aware,
    check_flag,
    check_key,
    check_name,
    check_whole,
)
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.priorities import check_priority
from cmdbus.producer.arguments import NOT_GIVEN, check_latest, check_remark
from cmdbus.producer.connections import Connections
from cmdbus.producer.domains import check_settings
from cmdbus.producer.progress import Progress
from cmdbus.producer.records import AuditEvent
from cmdbus.producer.requests import check_command, check_conditions, check_delay

#: Commands canceled or resolved in one transaction, and bytes of their stored data: what one
#: statement copies into the history stays far below a second.
CHUNK = 200
CHUNK_BYTES = 8 * 1024**2

#: Where commands wait, in the order in which they move on. A worker may have put some of ready
#: into limited meanwhile.
_TABLES = ("scheduled", "limited", "ready", "limited")
#: The functions that cancel all in these, each with arguments that begin before the first command.
_SCHEDULED: tuple[str, dict[str, object]] = ("cancel_scheduled", {"command_id": None})
_LIMITED: tuple[str, dict[str, object]] = (
    "cancel_limited",
    {"after_type": "", "after_key": "", "after_priority": -1, "after_position": 0},
)
_READY: tuple[str, dict[str, object]] = ("cancel_ready", {"priority": -1, "id": 0})
_CANCELS = (_SCHEDULED, _LIMITED, _READY, _LIMITED)

#: Reasons by the command's state.
_NOT_CANCELED = {
    "running": "it is in progress; --running (running=True) ends it all the same",
    "finished": "it has finished",
    "troubleshooting": "it is in the troubleshooting queue; cancel it there: "
    "bus.troubleshooting.cancel(...), cmdbus tsq cancel",
}
_NOT_RESCHEDULED = {
    "expired": "it expires by then, and would never start",
    "running": "it is in progress; only a command that waits can be rescheduled",
    "finished": "it has finished",
    "troubleshooting": "it is in the troubleshooting queue; retry it there: "
    "bus.troubleshooting.retry(...), cmdbus tsq retry",
}


class Steering:
    """The methods of CommandBus that change domains and commands that wait."""

    def __init__(self, connections: Connections, priorities: Mapping[str, int]) -> None:
        self._connections = connections
        self._priorities = priorities

    def cancel(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        reason: str | None = None,
        running: bool = False,
        operator: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Cancels the command `command_id` of `domain` if it waits; with `running` also if it
        is in progress: its handler is not interrupted, but nothing that it writes through its
        context's connection lands. `operator` and `reason` go into the audit trail, the
        reason into the reply, too.

        Raises CommandNotFoundError for an unknown command, and InvalidOperationError for one
        that has finished, is in troubleshooting, or is in progress without `running`.
        """
        values = {
            **check_command(domain, command_id),
            "running": check_flag("running", running),
            **check_remark(operator, reason),
        }
        self._connections.change(
            connection, "cancel", "canceled", _NOT_CANCELED, "producer", **values
        )

    def cancel_all(
        self,
        domain: str,
        type: str | None = None,
        *,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> int:
        """Cancels the commands that wait in `domain` and meet every given condition, or `limit`
        of them where one is given, and returns their number.

        `type` and `key` are those of the commands; `since` (inclusive) and `until` (exclusive)
        are about when they were sent: at most when this call begins. Each gets its event, with
        `operator` and `reason`, and its reply, as with `cancel`. Without `connection` each 200
        are a transaction of their own, and an error says in a note how many were canceled before.
        A command that another session has locked is left.
        """
        check_name("domain", domain)
        left = float("inf") if limit is None else check_whole("limit", limit, 1)
        conditions = check_conditions(domain, type, since, until)
        key = check_key("key", key)
        remark = check_remark(operator, reason)
        [last] = self._connections.row(connection, "limit_to_now", until=conditions["until"])
        batch: dict[str, object] = {
            **conditions,
            **remark,
            "until": last,
            "count": int(min(CHUNK, left)),
            "bytes": CHUNK_BYTES,
        }
        if key is None:
            chunks = self._canceled(batch, connection)
        else:
            batch["key"] = key
            chunks = self._canceled_of_key(batch, connection)
        with Progress("canceled", lasts=connection is None) as progress:
            for count in chunks:
                progress.count += count
                if progress.count >= left:
                    break
                batch["count"] = int(min(CHUNK, left - progress.count))
        return progress.count

    def count_waiting(
        self,
        domain: str,
        type: str | None = None,
        *,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: CallersConnection | None = None,
    ) -> int:
        """The number of commands that `cancel_all` with the same `domain`, `type`, `key`, `since`
        and `until` would cancel now."""
        check_name("domain", domain)
        conditions = check_conditions(domain, type, since, until)
        conditions["key"] = check_key("key", key)
        return int(self._connections.row(connection, "count_waiting", **conditions)[0])

    def reschedule(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        priority: str | int | None = None,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Gives the command `command_id` of `domain` another time, another priority, or both,
        while it waits. Its attempts stay.

        `run_at` is an aware datetime and `delay` seconds or a timedelta from now; a time that
        has passed makes the command claimable at once, also in a retry's backoff. `priority` is
        a label or 0 to 10. `operator` and `reason` go into the audit trail.

        Raises CommandNotFoundError for an unknown command, and InvalidOperationError for one
        that is in progress, in troubleshooting or finished, or that expires by then.
        """
        if run_at is None and delay is None and priority is None:
            raise ValueError("reschedule needs a time (run_at or delay), a priority, or both")
        values = {
            **check_command(domain, command_id),
            "delay": check_delay(delay, run_at),
            "run_at": check_aware("run_at", run_at),
            "priority": None if priority is None else check_priority(priority, self._priorities),
            **check_remark(operator, reason),
        }
        self._connections.change(
            connection, "reschedule", "rescheduled", _NOT_RESCHEDULED, **values
        )

    def configure(
        self,
        domain: str,
        *,
        max_depth: int | None = NOT_GIVEN,
        warn_depth: int | None = NOT_GIVEN,
        max_waiting_per_key: int | None = NOT_GIVEN,
        keep: timedelta = NOT_GIVEN,
        accepting: bool = NOT_GIVEN,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Changes those settings of `domain` that are given; None removes a limit.

        `max_depth` is how many commands may wait before sends are refused (concurrent senders
        can pass it by their uncommitted ones), and `warn_depth` before senders log a warning.
        `max_waiting_per_key` is how many with one key may wait before sends with that key are
        refused; others are not.
        `keep` is how long finished commands, their audit trails and their ids stay: 7 days by
        default, and at least a minute. A fleet removes them within a tenth of `keep` more, at
        least a minute and at most an hour; then their ids can be sent again. `accepting=False`
        refuses all sends. A change is recorded with `operator` and `reason`; see `domain_audit`.
        """
        given: dict[str, object] = {"max_depth": max_depth, "warn_depth": warn_depth}
        given |= {"max_waiting_per_key": max_waiting_per_key, "keep": keep, "accepting": accepting}
        settings = {name: value for name, value in given.items() if value is not NOT_GIVEN}
        check_settings(settings)
        self._configure(domain, settings, check_remark(operator, reason), connection)

    def pause(
        self,
        domain: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Workers stop claiming from `domain`. Running commands end; sends are accepted.
        Recorded with `operator` and `reason`; see `domain_audit`."""
        self._configure(domain, {"paused": True}, check_remark(operator, reason), connection)

    def resume(
        self,
        domain: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Ends a pause of `domain`; recorded with `operator` and `reason`."""
        self._configure(domain, {"paused": False}, check_remark(operator, reason), connection)

    def domain_audit(
        self,
        domain: str,
        *,
        latest: int | None = None,
        connection: CallersConnection | None = None,
    ) -> list[AuditEvent]:
        """Pauses, resumptions and changes of settings of `domain`, or so many of the `latest`,
        oldest first; the message is the reason. Calls that changed nothing and named no operator
        are not recorded."""
        values = {"domain": check_name("domain", domain), "latest": check_latest(latest)}
        return self._connections.records(AuditEvent, connection, "read_domain_audit", **values)

    def _configure(
        self,
        domain: str,
        settings: dict[str, object],
        remark: dict[str, object],
        connection: CallersConnection | None,
    ) -> None:
        values = {"domain": check_name("domain", domain), "given": list(settings), **remark}
        self._connections.row_once(connection, "configure_domain", **values, **settings)

    def _canceled(
        self, conditions: dict[str, object], connection: CallersConnection | None
    ) -> Iterator[int]:
        """Counts of chunks, whose sizes the conditions say, when each is taken. One that is
        repeated takes what its first try did not."""
        for function, first in _CANCELS:
            after = dict(first)
            while True:
                row = self._connections.row(connection, function, **conditions, **after)
                count, *last = row
                yield int(count)
                if last[-1] is None:
                    break
                after = dict(zip(first, last, strict=True))

    def _canceled_of_key(
        self, conditions: dict[str, object], connection: CallersConnection | None
    ) -> Iterator[int]:
        for table in _TABLES:
            since = conditions["since"]
            while True:
                values = {**conditions, "table": table, "since": since}
                count, last = self._connections.row(connection, "cancel_of_key", **values)
                yield int(count)
                if last is None:
                    break
                since = last


def canceled_chunks(batch_id: UUID, cancel: Callable[..., Any]) -> Iterator[int]:
    """Counts of chunks; `cancel` calls cancel_in_batch. Commands that become due meanwhile, or that
    a limit admits, go to a later table; processes that no worker has begun come first."""
    for table in ("process", "scheduled", "limited", "ready"):
        chunk = {"batch_id": batch_id, "table": table, "count": CHUNK, "bytes": CHUNK_BYTES}
        created_at, last = None, None
        while True:
            count, created_at, last = cancel(**chunk, created_at=created_at, id=last)
            yield int(count)
            if last is None:
                break
