"""What operators do to domains and to commands that wait: the checks of `CommandBus`'s
methods, and their statements. Commands in troubleshooting are resolved elsewhere."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from cmdbus.checks import (
    check_aware,
    check_flag,
    check_id,
    check_name,
    check_operator,
    check_text,
)
from cmdbus.errors import CommandNotFoundError, InvalidOperationError
from cmdbus.producer.connections import Connection, Connections
from cmdbus.producer.domains import check_settings
from cmdbus.producer.records import AuditEvent
from cmdbus.producer.requests import check_delay, check_priority
from cmdbus.producer.store import Store

#: Commands canceled in one transaction, and bytes of their stored data: what one statement
#: copies into the history stays far below a second.
CHUNK = 200
CHUNK_BYTES = 8 * 1024**2

#: Why not, by the request and the command's state.
_REFUSALS = {
    "canceled": {
        "running": "it is in progress; --running (running=True) ends it all the same",
        "finished": "it has finished",
        "troubleshooting": "it is in the troubleshooting queue; cancel it there: "
        "bus.troubleshooting.cancel(...), cmdbus tsq cancel",
    },
    "rescheduled": {
        "running": "it is in progress; only a command that waits can be rescheduled",
        "finished": "it has finished",
        "troubleshooting": "it is in the troubleshooting queue; retry it there: "
        "bus.troubleshooting.retry(...), cmdbus tsq retry",
    },
}


class Steering:
    def __init__(
        self, store: Store, connections: Connections, priorities: Mapping[str, int]
    ) -> None:
        self._store = store
        self._connections = connections
        self._priorities = priorities

    def configure(
        self,
        domain: str,
        settings: Mapping[str, object],
        operator: str | None,
        reason: str | None,
        connection: Connection | None,
    ) -> None:
        check_name("domain", domain)
        check_settings(settings)
        remark = _remark(operator, reason)
        self._connections.use(
            connection, lambda c, again: self._store.configure(c, domain, settings, remark)
        )

    def set_paused(
        self,
        domain: str,
        paused: bool,
        operator: str | None,
        reason: str | None,
        connection: Connection | None,
    ) -> None:
        check_name("domain", domain)
        remark = _remark(operator, reason)
        self._connections.use(
            connection, lambda c, again: self._store.set_paused(c, domain, paused, remark)
        )

    def audit(self, domain: str, connection: Connection | None) -> list[AuditEvent]:
        check_name("domain", domain)
        return self._connections.use(
            connection, lambda c, again: self._store.domain_audit(c, domain)
        )

    def cancel(
        self,
        domain: str,
        command_id: UUID | str,
        running: bool,
        operator: str | None,
        reason: str | None,
        connection: Connection | None,
    ) -> None:
        values = {"running": check_flag("running", running), **_remark(operator, reason)}
        work = self._store.cancel
        self._change("canceled", work, domain, command_id, values, connection, "producer")

    def reschedule(
        self,
        domain: str,
        command_id: UUID | str,
        run_at: datetime | None,
        delay: float | timedelta | None,
        priority: str | int | None,
        operator: str | None,
        reason: str | None,
        connection: Connection | None,
    ) -> None:
        if run_at is None and delay is None and priority is None:
            raise ValueError("reschedule needs a time (run_at or delay), a priority, or both")
        after = None if delay is None else (check_delay(delay, run_at) or timedelta(0))
        values = {
            "delay": None if after is None else after.total_seconds(),
            "run_at": check_aware("run_at", run_at),
            "priority": None if priority is None else check_priority(priority, self._priorities),
            **_remark(operator, reason),
        }
        self._change("rescheduled", self._store.reschedule, domain, command_id, values, connection)

    def count_waiting(
        self,
        domain: str,
        type: str | None,
        since: datetime | None,
        until: datetime | None,
        connection: Connection | None,
    ) -> int:
        conditions = _conditions(domain, type, since, until)
        return self._connections.use(
            connection, lambda c, again: self._store.count_waiting(c, conditions)
        )

    def cancel_all(
        self,
        domain: str,
        type: str | None,
        since: datetime | None,
        until: datetime | None,
        operator: str | None,
        reason: str | None,
        connection: Connection | None,
    ) -> int:
        batch: dict[str, object] = {
            **_conditions(domain, type, since, until),
            **_remark(operator, reason),
            "count": CHUNK,
            "bytes": CHUNK_BYTES,
        }
        return sum(self._canceled(batch, connection))

    def _canceled(self, batch: dict[str, object], connection: Connection | None) -> Iterator[int]:
        """Counts of batches. A batch that is repeated takes what its first try did not."""

        def scheduled(c: Connection, again: bool) -> tuple[int, datetime, UUID | None]:
            return self._store.cancel_scheduled(c, batch)

        def ready(c: Connection, again: bool) -> tuple[int, int | None, int | None]:
            return self._store.cancel_ready(c, batch)

        batch["command_id"] = None
        while True:
            count, batch["until"], last = self._connections.use(connection, scheduled)
            yield count
            if last is None:
                break
            batch["command_id"] = last
        batch |= {"priority": -1, "id": 0}
        while batch["id"] is not None:
            count, batch["priority"], batch["id"] = self._connections.use(connection, ready)
            yield count

    def _change(
        self,
        verb: str,
        work: Callable[[Connection, Mapping[str, object]], str | None],
        domain: str,
        command_id: UUID | str,
        values: Mapping[str, object],
        connection: Connection | None,
        needs: str = "operator",
    ) -> None:
        check_name("domain", domain)
        id_ = check_id("command_id", command_id)
        parameters = {"domain": domain, "command_id": id_, **values}
        found = self._connections.use(
            connection, lambda c, again: work(c, {**parameters, "again": again}), needs
        )
        if found is None:
            raise CommandNotFoundError(domain, id_)
        if found in _REFUSALS[verb]:
            raise InvalidOperationError(
                f"command {id_} of domain {domain!r} cannot be {verb}: {_REFUSALS[verb][found]}"
            )


def _remark(operator: str | None, reason: str | None) -> dict[str, object]:
    return {
        "operator": None if operator is None else check_operator(operator),
        "reason": check_text("reason", reason),
    }


def _conditions(
    domain: str, type: str | None, since: datetime | None, until: datetime | None
) -> dict[str, object]:
    return {
        "domain": check_name("domain", domain),
        "type": None if type is None else check_name("type", type),
        "since": check_aware("since", since),
        "until": check_aware("until", until),
    }
