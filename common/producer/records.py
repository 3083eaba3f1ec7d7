"""What a look at the bus shows: values, filled from rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from cmdbus.data import decode
from cmdbus.printable import hanging, one_line


class Status(StrEnum):
    #: Waits, for a worker or for its time.
    PENDING = "PENDING"
    #: A worker holds it.
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    #: A business rule refused it.
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    #: A person must decide.
    IN_TROUBLESHOOTING_QUEUE = "IN_TROUBLESHOOTING_QUEUE"

    @property
    def terminal(self) -> bool:
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELED)


def check_status(status: Status | str) -> str:
    try:
        return Status(status).value
    except ValueError:
        known = ", ".join(Status)
        raise ValueError(f"status must be one of {known}, not {status!r:.80}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """One command as it is now; the columns of the view `command`, times in UTC.

    `data` and `result` are `Undecodable` where another program wrote what this Python
    cannot decode. `max_attempts` is None while the handler's policy decides.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleRecord(CommandRecord):
    """One that waits for a person."""

    #: When it came there.
    failed_at: datetime
    #: EXHAUSTED, PERMANENT, ...; None if none was recorded.
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleCount:
    """Commands that wait for a person after the same error."""

    domain: str
    type: str
    error_code: str | None
    count: int
    first_failed_at: datetime
    last_failed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Commands that are not finished, by where they are."""

    #: Claimable, and not claimed yet.
    ready: int = 0
    scheduled: int = 0
    in_progress: int = 0
    troubleshooting: int = 0
    #: Seconds that the oldest ready one has waited since it was due.
    oldest_age: float = 0.0

    def __add__(self, other: "Waiting") -> "Waiting":
        return Waiting(
            ready=self.ready + other.ready,
            scheduled=self.scheduled + other.scheduled,
            in_progress=self.in_progress + other.in_progress,
            troubleshooting=self.troubleshooting + other.troubleshooting,
            oldest_age=max(self.oldest_age, other.oldest_age),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRecord:
    """A domain as it is now."""

    domain: str
    paused: bool
    accepting: bool
    max_depth: int | None
    warn_depth: int | None
    #: How long finished commands stay, and their ids are known.
    keep: timedelta
    #: Of all types.
    all: Waiting
    types: dict[str, Waiting]
    #: Types whose commands have waited for a minute while none ran, and of which no worker
    #: that is at work has a handler.
    unhandled: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One thing that happened to a command, or to a domain."""

    at: datetime
    #: SENT, RECEIVED, COMPLETED, CANCELED, ...; of a domain PAUSED, RESUMED, CONFIGURED.
    kind: str
    attempt: int | None = None
    worker: str | None = None
    operator: str | None = None
    code: str | None = None
    message: str | None = None
    details: Any = None

    def __str__(self) -> str:
        """All that it holds, safe for a terminal; only lines of details follow the first."""
        text = [self.at.isoformat(sep=" ", timespec="milliseconds"), self.kind]
        text += [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)[2:6]
            if getattr(self, field.name) is not None
        ]
        if self.message is not None:
            text.append(self.message)
        return "\n".join([one_line(" ".join(text)), *_shown(self.details, "    ")])


def record_of(row: Sequence[Any]) -> CommandRecord:
    return CommandRecord(**_values(row))


def trouble_of(row: Sequence[Any]) -> TroubleRecord:
    *columns, failed_at, reason = row
    return TroubleRecord(**_values(columns), failed_at=failed_at.astimezone(UTC), reason=reason)


def trouble_count_of(row: Sequence[Any]) -> TroubleCount:
    domain, type_, error_code, count, first, last = row
    return TroubleCount(
        domain=domain,
        type=type_,
        error_code=error_code,
        count=count,
        first_failed_at=first.astimezone(UTC),
        last_failed_at=last.astimezone(UTC),
    )


def domains_of(rows: Iterable[Sequence[Any]]) -> list[DomainRecord]:
    """From the rows of read_domains, which are in the domains' order."""
    return [_domain_of(list(group)) for _, group in groupby(rows, key=itemgetter(0))]


def event_of(row: Sequence[Any]) -> AuditEvent:
    at, kind, attempt, worker, operator, code, message, details = row
    return AuditEvent(
        at=at.astimezone(UTC),
        kind=kind,
        attempt=attempt,
        worker=worker,
        operator=operator,
        code=code,
        message=message,
        details=None if details is None else decode(details),
    )


def _domain_of(rows: Sequence[Sequence[Any]]) -> DomainRecord:
    types = {}
    for _, type_, ready, scheduled, in_progress, troubleshooting, oldest_age, *_ in rows:
        if type_ is not None:
            types[type_] = Waiting(
                ready=ready,
                scheduled=scheduled,
                in_progress=in_progress,
                troubleshooting=troubleshooting,
                oldest_age=oldest_age,
            )
    domain, *_, paused, accepting, max_depth, warn_depth, keep, _ = rows[0]
    return DomainRecord(
        domain=domain,
        paused=paused,
        accepting=accepting,
        max_depth=max_depth,
        warn_depth=warn_depth,
        keep=keep,
        all=sum(types.values(), Waiting()),
        types=types,
        unhandled=[row[1] for row in rows if row[-1]],
    )


def _values(row: Sequence[Any]) -> dict[str, Any]:
    """From a row of read_*: data and result as text, times never out of Python's range."""
    values = dict(zip((field.name for field in fields(CommandRecord)), row, strict=True))
    values["status"] = Status(values["status"])
    for name in ("data", "result"):
        values[name] = None if values[name] is None else decode(values[name])
    for name in ("created_at", "due_at", "started_at", "finished_at"):
        values[name] = _in_utc(values[name])
    return values


def _in_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


def _shown(details: object, margin: str) -> list[str]:
    if details is None:
        return []
    if not isinstance(details, dict):
        return [f"{margin}{line}" for line in hanging(str(details), "")]
    lines = []
    for key, value in details.items():
        deeper = margin + "    "
        if isinstance(value, dict):
            lines += [f"{margin}{one_line(key)}:", *_shown(value, deeper)]
            continue
        text = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        first, *rest = hanging(text, deeper)
        lines += [f"{margin}{one_line(key)}: {first}", *rest]
    return lines
