"""What `CommandBus.search` returns."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from cmdbus.producer.records import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCommand:
    """One command as it is now, without its payloads, times in UTC; see CommandRecord."""

    statuses: ClassVar[type[Status]] = Status

    domain: str
    command_id: UUID
    type: str
    status: Status
    priority: int
    attempts: int
    max_attempts: int | None
    error_code: str | None
    #: The first 1000 characters; None for a role that may not read messages.
    error_message: str | None
    correlation_id: UUID
    reply_to: str | None
    batch_id: UUID | None
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    #: None for a role that may not read keys.
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStop:
    """Why a search ended before its page was full, although there are more commands."""

    #: Rows that it has read.
    rows: int
    seconds: float
    #: It has looked at commands that were sent since then; None if it cannot tell.
    reached: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPage:
    """Commands that a search has found, the last sent first."""

    commands: list[FoundCommand]
    #: For the argument `after` of the next search with the same conditions; None at the end.
    next: str | None
    #: None if the page is full or there are no more.
    stopped: SearchStop | None
    #: The database role may not read messages and keys.
    restricted: bool
