"""The operator's side of the bus: commands that failed for good and wait for a decision, which
the audit trail keeps with the name of the operator."""

from datetime import datetime
from typing import Any
from uuid import UUID

from cmdbus.checks import check_operator, check_text, check_whole
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.arguments import NOT_GIVEN
from cmdbus.producer.connections import Connections
from cmdbus.producer.progress import Progress
from cmdbus.producer.records import Status
from cmdbus.producer.requests import SendRules, check_command
from cmdbus.producer.steering import CHUNK, CHUNK_BYTES
from cmdbus.producer.trouble_reading import TroubleReading, conditions_of

_PARTICIPLES = {"RETRY": "retried", "CANCEL": "canceled", "COMPLETE": "completed"}
_ELSEWHERE = {
    status.value: f"it is {status}, and not in the troubleshooting queue"
    for status in Status
    if status is not Status.IN_TROUBLESHOOTING_QUEUE
} | {"TOO_LARGE": "its data, a message's of PGMQ, is too large for a command: give it other data"}


class Troubleshooting(TroubleReading):
    """`CommandBus.troubleshooting`: also reads what waits, see TroubleReading.

    `operator` and `reason` go into the audit trail of each command. `since` (inclusive) and
    `until` (exclusive) are about when commands came here. The calls whose names end in `_all`
    resolve the commands that meet every given condition when they begin, the oldest first, and
    return their number; commands that another operator's call has locked are left. Without
    `connection=` each 200 are a transaction of their own.
    """

    def __init__(self, connections: Connections, rules: SendRules) -> None:
        super().__init__(connections)
        self._rules = rules

    def retry(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        operator: str,
        reason: str | None = None,
        data: Any = NOT_GIVEN,
        connection: CallersConnection | None = None,
    ) -> None:
        """The command `command_id` of `domain` waits for a worker again, as if it had never
        been tried. `operator` says who decided that, and `reason` why.

        With `data`, any JSON value that `send` would take, it has that instead of its own, and the
        audit trail has both. Everything else stays, like keys, the correlation id and a
        checkpoint. Whether the handler can read the data shows when it runs.

        Raises CommandNotFoundError for an unknown command, and InvalidOperationError for one
        that is not in troubleshooting.
        """
        remark = _remark(operator, reason)
        if data is not NOT_GIVEN:
            remark["data"] = self._encoded(data, "data")
        self._resolve("RETRY", domain, command_id, remark, connection)

    def cancel(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        operator: str,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """The command `command_id` of `domain` is CANCELED; the reply, where one was asked for,
        has the `reason`. `operator` says who decided that.

        Raises CommandNotFoundError for an unknown command, and InvalidOperationError for one
        that is not in troubleshooting.
        """
        remark = _remark(operator, reason)
        self._resolve("CANCEL", domain, command_id, remark, connection)

    def complete(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        operator: str,
        result: Any = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """The command `command_id` of `domain` is COMPLETED, done by other means; its reply
        says SUCCESS with `result`, any JSON value. `operator` says who decided that, and
        `reason` why.

        Raises CommandNotFoundError for an unknown command, and InvalidOperationError for one
        that is not in troubleshooting.
        """
        remark = {**_remark(operator, reason), "result": self._encoded(result, "result")}
        self._resolve("COMPLETE", domain, command_id, remark, connection)

    def retry_all(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        operator: str,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> int:
        """Does what `retry` does to all that meet every given condition (`domain`, `type`,
        `error_code`, `key`, `since`, `until`), to the `limit` oldest where one is given, for
        `operator` and `reason`; returns how many."""
        conditions = conditions_of(domain, type, error_code, key, since, until)
        remark = _remark(operator, reason)
        return self._resolve_all("RETRY", conditions, limit, remark, connection)

    def cancel_all(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        operator: str,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> int:
        """Does what `cancel` does to all that meet every given condition (`domain`, `type`,
        `error_code`, `key`, `since`, `until`), to the `limit` oldest where one is given, for
        `operator` and `reason`; returns how many."""
        conditions = conditions_of(domain, type, error_code, key, since, until)
        remark = _remark(operator, reason)
        return self._resolve_all("CANCEL", conditions, limit, remark, connection)

    def complete_all(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        operator: str,
        result: Any = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> int:
        """Does what `complete` does, with `result` for each, to all that meet every given
        condition (`domain`, `type`, `error_code`, `key`, `since`, `until`), to the `limit`
        oldest where one is given, for `operator` and `reason`; returns how many."""
        conditions = conditions_of(domain, type, error_code, key, since, until)
        remark = {**_remark(operator, reason), "result": self._encoded(result, "result")}
        return self._resolve_all("COMPLETE", conditions, limit, remark, connection)

    def _resolve(
        self,
        action: str,
        domain: str,
        command_id: UUID | str,
        remark: dict[str, object],
        connection: CallersConnection | None,
    ) -> None:
        values = {"action": action, "result": None, **check_command(domain, command_id), **remark}
        self._connections.change(connection, "resolve", _PARTICIPLES[action], _ELSEWHERE, **values)

    def _resolve_all(
        self,
        action: str,
        conditions: dict[str, object],
        limit: int | None,
        remark: dict[str, object],
        connection: CallersConnection | None,
    ) -> int:
        left = float("inf") if limit is None else check_whole("limit", limit, 1)
        [until] = self._connections.row(connection, "limit_to_now", until=conditions["until"])
        conditions = {**conditions, "until": until}
        with Progress(_PARTICIPLES[action], lasts=connection is None) as progress:
            while True:
                limits = {"count": int(min(CHUNK, left - progress.count)), "bytes": CHUNK_BYTES}
                chunk = {"action": action, "result": None, **limits, **conditions, **remark}
                resolved, last = self._connections.row_once(connection, "resolve_chunk", **chunk)
                progress.count += int(resolved)
                if last is None or progress.count >= left:
                    return progress.count
                conditions["since"] = last

    def _encoded(self, value: object, what: str) -> str:
        return self._rules.encode(value, what)


def _remark(operator: str, reason: str | None) -> dict[str, object]:
    return {"operator": check_operator(operator), "reason": check_text("reason", reason)}
