"""Values that a CommandBus returns, filled from rows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from cmdbus.data import decode
from cmdbus.headers import decode_headers
from cmdbus.printable import hanging, one_line
from cmdbus.reply import Reply

T = TypeVar("T")
#: Fields whose values come as text.
_JSON = frozenset({"data", "result", "details", "state", "checkpoint"})
#: Details of an event that are shown as JSON: data of a command, before and after a change.
_PAYLOADS = frozenset({"data", "data_before"})


class Status(StrEnum):
    #: Waits, for a worker or for its time.
    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    #: A business rule refused it.
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    #: Waits for an operator.
    IN_TROUBLESHOOTING_QUEUE = "IN_TROUBLESHOOTING_QUEUE"

    @property
    def terminal(self) -> bool:
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELED)


class BatchStatus(StrEnum):
    #: None of its commands has been claimed.
    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    #: Over, and some of its commands are FAILED or CANCELED.
    COMPLETED_WITH_FAILURES = "COMPLETED_WITH_FAILURES"
    CANCELED = "CANCELED"

    @property
    def terminal(self) -> bool:
        return self not in (BatchStatus.PENDING, BatchStatus.IN_PROGRESS)


def check_status(status: str, kind: type[StrEnum] = Status) -> str:
    try:
        return kind(status).value
    except ValueError:
        known = ", ".join(kind)
        raise ValueError(f"status must be one of {known}, not {status!r:.80}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """One command as it is now; the columns of the view `command`, times in UTC.

    `data`, `result` and `checkpoint` are `Undecodable` where another program wrote what this Python
    cannot decode. `max_attempts` is None while the handler's policy decides.
    """

    statuses: ClassVar[type[StrEnum]] = Status

    domain: str
    command_id: UUID
    type: str
    status: Status
    priority: int
    attempts: int
    max_attempts: int | None
    data: Any
    result: Any
    error_code: str | None
    error_message: str | None
    correlation_id: UUID
    reply_to: str | None
    batch_id: UUID | None
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    key: str | None
    unique_key: str | None
    expires_at: datetime | None
    #: The latest of its handler; None if there is none, or once it is terminal.
    checkpoint: Any
    #: Empty if there are none.
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleRecord(CommandRecord):
    """A command in troubleshooting."""

    #: The time at which it came there.
    failed_at: datetime
    #: EXHAUSTED, PERMANENT, ...; None if none was recorded.
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleCount:
    """Commands in troubleshooting after the same error."""

    domain: str
    type: str
    error_code: str | None
    count: int
    first_failed_at: datetime
    last_failed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch as it is now; the columns of the view `batch`, times in UTC."""

    statuses: ClassVar[type[StrEnum]] = BatchStatus

    batch_id: UUID
    domain: str
    name: str | None
    data: Any
    status: BatchStatus
    total: int
    completed: int
    failed: int
    canceled: int
    in_troubleshooting: int
    #: Those that are not over, in troubleshooting or not.
    remaining: int
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedReply(Reply):
    """A reply that a program reads."""

    correlation_id: UUID
    #: The id of the command of type Reply, in the domain to which it was sent.
    reply_id: UUID
    #: When it was sent.
    created_at: datetime
    #: Empty if there are none.
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Commands that are not finished, by where they are."""

    #: Claimable now.
    ready: int = 0
    scheduled: int = 0
    #: Due, and waiting at a limit of their type.
    limited: int = 0
    in_progress: int = 0
    troubleshooting: int = 0
    #: Seconds that the oldest ready or limited one has waited since it was due.
    oldest_age: float = 0.0

    @property
    def depth(self) -> int:
        return self.ready + self.scheduled + self.limited

    def __add__(self, other: "Waiting") -> "Waiting":
        return Waiting(
            self.ready + other.ready,
            self.scheduled + other.scheduled,
            self.limited + other.limited,
            self.in_progress + other.in_progress,
            self.troubleshooting + other.troubleshooting,
            max(self.oldest_age, other.oldest_age),
        )


@dataclass(frozen=True, slots=True)
class DomainRecord:
    """A domain as it is now."""

    domain: str
    paused: bool
    accepting: bool
    max_depth: int | None
    warn_depth: int | None
    max_waiting_per_key: int | None
    #: How long finished commands stay, and their ids are known.
    keep: timedelta
    #: The sum of all types.
    all: Waiting
    types: dict[str, Waiting]
    #: Types without a handler in any worker, whose commands have waited for a minute.
    unhandled: list[str]
    #: Types with tags that no living node has, or not all of them together, and these tags.
    missing_tags: dict[str, list[str]]
    #: Types with priorities that no living node claims, and in which commands have waited for a
    #: minute.
    unclaimed_priorities: dict[str, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One thing that happened to a command, or to a domain."""

    at: datetime
    #: SENT, RECEIVED, COMPLETED, CANCELED, ...; of a domain PAUSED, RESUMED,
    #: CONFIGURED, LIMIT_SET, LIMIT_CLEARED, SCHEDULE_ADDED, SCHEDULE_REMOVED, ...
    kind: str
    attempt: int | None = None
    worker: str | None = None
    operator: str | None = None
    code: str | None = None
    message: str | None = None
    details: Any = None

    def __str__(self) -> str:
        """Safe for a terminal; only lines of details follow the first."""
        text = [self.at.isoformat(sep=" ", timespec="milliseconds"), self.kind]
        text += [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)[2:6]
            if getattr(self, field.name) is not None
        ]
        if self.message is not None:
            text.append(self.message)
        return "\n".join([one_line(" ".join(text)), *_shown(self.details, "    ")])


def filled(kind: type[T], row: Sequence[Any]) -> T:
    """The record of a row."""
    values = dict(zip((field.name for field in fields(kind)), row, strict=True))  # type: ignore[arg-type]
    for name, value in values.items():
        if isinstance(value, datetime):
            values[name] = value.astimezone(UTC)
        elif name == "headers":
            values[name] = decode_headers(value)
        elif name in _JSON and value is not None:
            values[name] = decode(value)
        elif name == "status":
            values[name] = kind.statuses(value)  # type: ignore[attr-defined]
    return kind(**values)


def domains_of(rows: Iterable[Sequence[Any]]) -> list[DomainRecord]:
    """From the rows of read_domains."""
    return [_domain_of(list(group)) for _, group in groupby(rows, key=itemgetter(0))]


def _domain_of(rows: Sequence[Sequence[Any]]) -> DomainRecord:
    types = {row[1]: Waiting(*row[2:8]) for row in rows if row[1] is not None}
    domain, *_, paused, accepting, max_depth, warn_depth, most_of_key, keep = rows[0][:-3]
    settings = paused, accepting, max_depth, warn_depth, most_of_key, keep
    unhandled = [row[1] for row in rows if row[-3]]
    tags, priorities = ({row[1]: row[column] for row in rows if row[column]} for column in (-2, -1))
    counts = sum(types.values(), Waiting()), types
    return DomainRecord(domain, *settings, *counts, unhandled, tags, priorities)


def _text(value: object) -> str:
    """Text as it is, and other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _shown(details: object, margin: str) -> list[str]:
    if details is None:
        return []
    if not isinstance(details, dict):
        return [f"{margin}{line}" for line in hanging(_text(details), "")]
    lines = []
    for key, value in details.items():
        deeper = margin + "    "
        if key in _PAYLOADS:
            value = json.dumps(value, ensure_ascii=False, default=str)
        if isinstance(value, dict):
            lines += [f"{margin}{one_line(key)}:", *_shown(value, deeper)]
            continue
        text = "\n".join(map(_text, value)) if isinstance(value, list) else _text(value)
        first, *rest = hanging(text, deeper)
        lines += [f"{margin}{one_line(key)}: {first}", *rest]
    return lines
