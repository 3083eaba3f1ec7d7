"""Pages of batches and processes, for operators: each goes on behind the last record of the one
before, however many there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cmdbus.checks import check_id, check_text, check_whole
from cmdbus.errors import InvalidOperationError
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.connections import Connections
from cmdbus.producer.page_cursors import cursor_of, position_of
from cmdbus.producer.process_records import ProcessRecord, ProcessStatus
from cmdbus.producer.records import BatchRecord, BatchStatus, Status, check_status
from cmdbus.producer.requests import check_conditions

_MAX_LIMIT = 1000
_NAMES = "roles of monitors cannot read names of batches: leave `name` out"


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Batches without their data, the newest first."""

    batches: Sequence[BatchRecord]
    #: `after` of the next page; None after the last one.
    next: str | None


@dataclass(frozen=True, slots=True)
class ProcessPage:
    """Processes without their states, the latest started first."""

    processes: Sequence[ProcessRecord]
    #: `after` of the next page; None after the last one.
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFollowUp:
    """A command that a batch sends at its end."""

    #: COMPLETED, also with failures, or CANCELED: the end after which it is sent.
    after: str
    domain: str
    type: str
    command_id: UUID
    #: Of the command; None while it is not sent, and if its history is gone.
    status: Status | None


class Pages:
    """The methods of CommandBus that page, and what else operators see of batches."""

    _connections: Connections

    def batch_follow_ups(
        self, batch_id: UUID | str, *, connection: CallersConnection | None = None
    ) -> list[BatchFollowUp]:
        """What the batch `batch_id` sends at its end: its on_complete and its on_cancel."""
        id_ = check_id("batch_id", batch_id)
        rows = self._connections.rows(connection, "read_batch_follow_ups", batch_id=id_)
        return [
            BatchFollowUp(
                **{"after": after, "domain": domain, "type": type_, "command_id": command_id},
                status=None if status is None else Status(status),
            )
            for after, domain, type_, command_id, status in rows
        ]

    def page_batches(
        self,
        status: BatchStatus | str | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        *,
        domain: str | None = None,
        batch_id: UUID | str | None = None,
        after: str | None = None,
        for_monitors: bool = False,
        connection: CallersConnection | None = None,
    ) -> BatchPage:
        """Batches that meet every given condition, the newest first, without their data: at most
        `limit`, and after the first page those behind the last one, with its `next` as `after`.

        The conditions are those of `list_batches` (`status`, `name`, `since`, `until`), the
        `domain` under which they are listed, and one `batch_id`. `for_monitors` leaves out what
        roles of monitors cannot read: the names.
        """
        if for_monitors and name is not None:
            raise InvalidOperationError(_NAMES)
        conditions = {
            **check_conditions(domain, None, since, until),
            "status": None if status is None else check_status(status, BatchStatus),
            "batch_id": None if batch_id is None else check_id("batch_id", batch_id),
        }
        del conditions["type"]
        if not for_monitors:
            conditions["name"] = check_text("name", name)
        found, next_ = self._page(
            BatchRecord, "page_batches", for_monitors, connection, limit, after, conditions
        )
        return BatchPage(found, next_)

    def page_processes(
        self,
        type: str | None = None,
        status: ProcessStatus | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        *,
        domain: str | None = None,
        batch_id: UUID | str | None = None,
        process_id: UUID | str | None = None,
        after: str | None = None,
        for_monitors: bool = False,
        connection: CallersConnection | None = None,
    ) -> ProcessPage:
        """Processes that meet every given condition, the latest started first, without their
        states: at most `limit`, and after the first page those behind the last one, with its
        `next` as `after`.

        The conditions are those of `query_processes` (`type`, `status`, `since`, `until`, `domain`,
        `batch_id`), and one `process_id`. `for_monitors` leaves out what roles of monitors cannot
        read: the errors.
        """
        wanted = None if status is None else check_status(status, ProcessStatus)
        conditions = {
            **check_conditions(domain, type, since, until),
            "status": wanted,
            "batch_id": None if batch_id is None else check_id("batch_id", batch_id),
            "process_id": None if process_id is None else check_id("process_id", process_id),
            "unfinished": wanted is not None and not ProcessStatus(wanted).terminal,
        }
        found, next_ = self._page(
            ProcessRecord, "page_processes", for_monitors, connection, limit, after, conditions
        )
        return ProcessPage(found, next_)

    def _page(
        self,
        kind: type[Any],
        name: str,
        for_monitors: bool,
        connection: CallersConnection | None,
        limit: int,
        after: str | None,
        conditions: dict[str, object],
    ) -> tuple[list[Any], str | None]:
        """The records of a page, and where the next one begins."""
        size = check_whole("limit", limit, 1, _MAX_LIMIT)
        at, id_ = position_of(after, UUID)
        statement = f"{name}_for_monitors" if for_monitors else name
        values = {**conditions, "after": at, "after_id": id_, "limit": size + 1}
        found = self._connections.records(
            kind, connection, statement, "monitor" if for_monitors else "operator", **values
        )
        if len(found) <= size:
            return found, None
        last = found[size - 1]
        id_ = last.batch_id if kind is BatchRecord else last.process_id
        return found[:size], cursor_of(last.created_at, id_)
