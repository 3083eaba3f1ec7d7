"""What waits for an operator: lists, pages, counts and groups of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from cmdbus.checks import check_flag, check_key, check_name, check_whole
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.connections import Connections
from cmdbus.producer.page_cursors import cursor_of, position_of
from cmdbus.producer.records import TroubleCount, TroubleRecord
from cmdbus.producer.requests import check_conditions

#: Commands that one reading of the groups counts, at most: the latest.
MAX_GROUPED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleGroup(TroubleCount):
    """Commands in troubleshooting after the same error, with the one that came last."""

    command_id: UUID
    error_message: str | None


@dataclass(frozen=True, slots=True)
class TroubleGroups:
    """The latest to come first."""

    groups: Sequence[TroubleGroup]
    #: There are no others, and the counts are whole: else those of the latest commands.
    complete: bool


@dataclass(frozen=True, slots=True)
class TroublePage:
    """Commands in troubleshooting, the latest to come first."""

    commands: Sequence[TroubleRecord]
    #: `after` of the next page; None after the last one.
    next: str | None


class TroubleReading:
    """`since` (inclusive) and `until` (exclusive) are about when commands came here."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def list(
        self,
        domain: str | None = None,
        type: str | None = None,
        limit: int = 100,
        offset: int = 0,
        *,
        error_code: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: CallersConnection | None = None,
    ) -> list[TroubleRecord]:
        """The commands that meet every given condition (`domain`, `type`, `error_code`,
        `key`, `since`, `until`), the latest to come first: at most `limit`, after leaving out
        `offset`."""
        conditions = conditions_of(domain, type, error_code, key, since, until)
        conditions["limit"] = check_whole("limit", limit, 1)
        conditions["offset"] = check_whole("offset", offset, 0)
        return self._connections.records(TroubleRecord, connection, "read_trouble", **conditions)

    def count(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: CallersConnection | None = None,
    ) -> int:
        """The number of commands that meet every given condition (`domain`, `type`,
        `error_code`, `key`, `since`, `until`)."""
        conditions = conditions_of(domain, type, error_code, key, since, until)
        conditions["limit"] = None
        return sum(each.count for each in self._counts(conditions, connection, "operator"))

    def summary(
        self,
        domain: str | None = None,
        type: str | None = None,
        limit: int = 100,
        *,
        error_code: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: CallersConnection | None = None,
    ) -> Sequence[TroubleCount]:
        """Counts of the commands that meet every given condition (`domain`, `type`,
        `error_code`, `key`, `since`, `until`), by domain, type and error: the `limit` most
        frequent."""
        conditions = conditions_of(domain, type, error_code, key, since, until)
        conditions["limit"] = check_whole("limit", limit, 1)
        return self._counts(conditions, connection, "monitor")

    def page(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
        with_data: bool = True,
        connection: CallersConnection | None = None,
    ) -> TroublePage:
        """The commands that meet every given condition (`domain`, `type`, `error_code`,
        `key`, `since`, `until`), the latest to come first: at most `limit`, and after the first
        page those behind the last one, with its `next` as `after`. What comes meanwhile moves
        none. Without `with_data` their data and checkpoints, which may be large, are not read."""
        conditions = conditions_of(domain, type, error_code, key, since, until)
        size = check_whole("limit", limit, 1, MAX_GROUPED)
        at, in_domain, command_id = position_of(after, partial(check_name, "after"), UUID)
        conditions |= {"after": at, "after_domain": in_domain, "after_id": command_id}
        conditions["with_data"] = check_flag("with_data", with_data)
        records = self._connections.records(
            TroubleRecord, connection, "page_trouble", limit=size + 1, **conditions
        )
        if len(records) <= size:
            return TroublePage(records, None)
        last = records[size - 1]
        return TroublePage(records[:size], cursor_of(last.failed_at, last.domain, last.command_id))

    def groups(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        error_code: str | None = None,
        limit: int = 100,
        connection: CallersConnection | None = None,
    ) -> TroubleGroups:
        """The commands that meet every given condition (`domain`, `type`, `error_code`) by domain,
        type and error, with counts and the latest of each: the `limit` groups to which
        a command came last. Counts at most the latest 100,000 commands."""
        conditions = conditions_of(domain, type, error_code, None, None, None)
        size = check_whole("limit", limit, 1, MAX_GROUPED)
        values = {**conditions, "read": MAX_GROUPED, "limit": size + 1}
        found = self._connections.records(TroubleGroup, connection, "group_trouble", **values)
        read = sum(group.count for group in found)
        return TroubleGroups(found[:size], len(found) <= size and read < MAX_GROUPED)

    def _counts(
        self, conditions: dict[str, object], connection: CallersConnection | None, kind: str
    ) -> Sequence[TroubleCount]:
        """`kind` of role that may do that."""
        if conditions["key"] is not None:  # Which monitors may not read.
            return self._connections.records(
                TroubleCount, connection, "summarize_trouble_of_key", **conditions
            )
        return self._connections.records(
            TroubleCount, connection, "summarize_trouble", kind, **conditions
        )


def conditions_of(
    domain: str | None,
    type: str | None,
    error_code: str | None,
    key: str | None,
    since: datetime | None,
    until: datetime | None,
) -> dict[str, Any]:
    """Values of a statement; None leaves a condition out."""
    checked = check_conditions(domain, type, since, until, error_code=error_code)
    return {**checked, "key": check_key("key", key)}
