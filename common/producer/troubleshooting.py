"""The operator's side of the bus: commands that failed for good and wait for a person.

Whoever resolves one says who they are, and the audit trail keeps it together with what
became of the command.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from cmdbus.checks import check_operator, check_text, check_whole
from cmdbus.data import encode
from cmdbus.errors import CommandNotFoundError, InvalidOperationError
from cmdbus.producer.connections import Connection
from cmdbus.producer.records import (
    Status,
    TroubleCount,
    TroubleRecord,
)
from cmdbus.producer.requests import check_conditions, check_key
from cmdbus.producer.steering import CHUNK_BYTES
from cmdbus.producer.store import Calls

#: Commands in one transaction, when many are resolved at once.
CHUNK = 200


class Action(StrEnum):
    RETRY = "RETRY"
    CANCEL = "CANCEL"
    COMPLETE = "COMPLETE"


_DONE = {Action.RETRY: "retried", Action.CANCEL: "canceled", Action.COMPLETE: "completed"}


class Troubleshooting:
    """`CommandBus.troubleshooting`.

    `operator` and `reason` go into the audit trail of each command.

    `since` (inclusive) and `until` (exclusive) are about when commands came here. The
    calls whose names end in `_all` resolve what meets every given condition when they
    begin, the oldest first, and return how many; what another operator has in hand is
    left to them. Without `connection=` each 200 are a transaction of their own.
    """

    def __init__(self, calls: Calls, max_bytes: int) -> None:
        self._calls = calls
        self._max_bytes = max_bytes

    def list(
        self,
        domain: str | None = None,
        type: str | None = None,
        limit: int = 100,
        offset: int = 0,
        *,
        error_code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: Connection | None = None,
    ) -> list[TroubleRecord]:
        """What waits here and meets every given condition (`domain`, `type`, `error_code`,
        `since`, `until`), the latest to come first: at most `limit`, after leaving out
        `offset`."""
        conditions = _conditions(domain, type, error_code, since, until)
        conditions["limit"] = check_whole("limit", limit, 1)
        conditions["offset"] = check_whole("offset", offset, 0)
        return self._calls.records(TroubleRecord, connection, "read_trouble", **conditions)

    def count(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: Connection | None = None,
    ) -> int:
        """How many commands `list` with the same `domain`, `type`, `error_code`, `since` and
        `until` would return without a limit."""
        conditions = _conditions(domain, type, error_code, since, until)
        return int(self._calls.row(connection, "count_trouble", **conditions)[0])

    def summary(
        self,
        domain: str | None = None,
        type: str | None = None,
        limit: int = 100,
        *,
        error_code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: Connection | None = None,
    ) -> Sequence[TroubleCount]:
        """Counts of what waits here and meets every given condition (`domain`, `type`,
        `error_code`, `since`, `until`), by domain, type and error: the `limit` most frequent."""
        conditions = _conditions(domain, type, error_code, since, until)
        conditions["limit"] = check_whole("limit", limit, 1)
        return self._calls.records(
            TroubleCount, connection, "summarize_trouble", "monitor", **conditions
        )

    def retry(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        operator: str,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """The command `command_id` of `domain` waits for a worker again, as if it had never
        been tried. `operator` says who decided that, and `reason` why.

        Raises CommandNotFoundError for an unknown command, and InvalidOperationError for one
        that is not in troubleshooting.
        """
        recorded = resolution(operator, reason)
        self._resolve(Action.RETRY, domain, command_id, recorded, connection)

    def cancel(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        operator: str,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """The command `command_id` of `domain` is CANCELED; the reply, where one was asked for,
        has the `reason`. `operator` says who decided that.

        Raises CommandNotFoundError for an unknown command, and InvalidOperationError for one
        that is not in troubleshooting.
        """
        recorded = resolution(operator, reason)
        self._resolve(Action.CANCEL, domain, command_id, recorded, connection)

    def complete(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        operator: str,
        result: Any = None,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """The command `command_id` of `domain` is COMPLETED, done by other means; its reply
        says SUCCESS with `result`, any JSON value. `operator` says who decided that, and
        `reason` why.

        Raises CommandNotFoundError for an unknown command, and InvalidOperationError for one
        that is not in troubleshooting.
        """
        recorded = {**resolution(operator, reason), "result": self._encoded(result)}
        self._resolve(Action.COMPLETE, domain, command_id, recorded, connection)

    def retry_all(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        operator: str,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> int:
        """Does what `retry` does to all that meet every given condition (`domain`, `type`,
        `error_code`, `since`, `until`), to the `limit` oldest where one is given, for
        `operator` and `reason`; returns how many."""
        conditions = _conditions(domain, type, error_code, since, until)
        recorded = resolution(operator, reason)
        return self._resolve_all(Action.RETRY, conditions, limit, recorded, connection)

    def cancel_all(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        operator: str,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> int:
        """Does what `cancel` does to all that meet every given condition (`domain`, `type`,
        `error_code`, `since`, `until`), to the `limit` oldest where one is given, for
        `operator` and `reason`; returns how many."""
        conditions = _conditions(domain, type, error_code, since, until)
        recorded = resolution(operator, reason)
        return self._resolve_all(Action.CANCEL, conditions, limit, recorded, connection)

    def complete_all(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        operator: str,
        result: Any = None,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> int:
        """Does what `complete` does, with `result` for each, to all that meet every given
        condition (`domain`, `type`, `error_code`, `since`, `until`), to the `limit` oldest
        where one is given, for `operator` and `reason`; returns how many."""
        conditions = _conditions(domain, type, error_code, since, until)
        recorded = {**resolution(operator, reason), "result": self._encoded(result)}
        return self._resolve_all(Action.COMPLETE, conditions, limit, recorded, connection)

    def _resolve(
        self,
        action: Action,
        domain: str,
        command_id: UUID | str,
        resolution: dict[str, object],
        connection: Connection | None,
    ) -> None:
        key = check_key(domain, command_id)
        values = {"action": action.value, **key, **resolution}
        [was] = self._calls.row(connection, "resolve", **values)
        if was is None:
            raise CommandNotFoundError(domain, key["command_id"])
        if was != Status.IN_TROUBLESHOOTING_QUEUE:
            raise InvalidOperationError(
                f"command {key['command_id']} of domain {domain!r} cannot be {_DONE[action]}: "
                f"it is {was}, and not in the troubleshooting queue"
            )

    def _resolve_all(
        self,
        action: Action,
        conditions: dict[str, object],
        limit: int | None,
        resolution: dict[str, object],
        connection: Connection | None,
    ) -> int:
        left = float("inf") if limit is None else check_whole("limit", limit, 1)
        total = 0
        while True:
            limits = {"count": int(min(CHUNK, left)), "bytes": CHUNK_BYTES}
            batch = {"action": action.value, **limits, **conditions, **resolution}
            # Repeated, it takes those that the first try did not: only the count may miss some.
            resolved, last, before = self._calls.row(connection, "resolve_batch", **batch)
            total, left = total + int(resolved), left - resolved
            if last is None or left <= 0:
                return total
            conditions = {**conditions, "since": last, "until": before}

    def _encoded(self, result: object) -> str:
        return encode(result, what="result", max_bytes=self._max_bytes)


def _conditions(
    domain: str | None,
    type: str | None,
    error_code: str | None,
    since: datetime | None,
    until: datetime | None,
) -> dict[str, object]:
    conditions = check_conditions(domain, type, since, until)
    return {**conditions, "error_code": check_text("error_code", error_code)}


def resolution(operator: str, reason: str | None) -> dict[str, object]:
    return {
        "operator": check_operator(operator),
        "reason": check_text("reason", reason),
        "result": None,
    }
