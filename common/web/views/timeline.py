"""How a command has spent its time: waiting, running, paused, in troubleshooting. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cmdbus.producer.records import AuditEvent, CommandRecord
from cmdbus.web.views.executions import TROUBLE, Execution

#: Shorter pauses after something else are of the clock: an event is written a moment later.
_MIN_PAUSE = timedelta(milliseconds=10)

WAITED, RAN, RETRIED, LATER, IN_TROUBLE = "waited", "ran", "retried", "later", "trouble"


@dataclass(frozen=True, slots=True)
class Part:
    kind: str
    begin: datetime
    #: None: it lasts.
    end: datetime | None
    attempt: int | None = None
    worker: str | None = None


def timeline(
    record: CommandRecord,
    executions: Sequence[Execution],
    audit: Sequence[AuditEvent],
    now: datetime,
) -> list[dict[str, Any]]:
    """Parts without gaps, from when the command was sent until it ended or, if it has not, with a
    last one that lasts. Of the times at which it was due only the latest is known. `now` only tells
    whether that is still to come."""
    parts: list[Part] = []
    busy = sorted([*_runs(executions), *_troubles(audit)], key=lambda part: part.begin)
    at: datetime | None = record.created_at
    for number, part in enumerate(busy):
        if at is None:
            break
        begin = max(part.begin, at)
        parts += _pause(record, at, begin, parts, now)
        following = busy[number + 1].begin if number + 1 < len(busy) else None
        end = part.end
        if following is not None and (end is None or end > following):
            end = max(following, begin)  # Its end was noticed late, or is not on record.
        if end is None and part.kind == RAN and _is_over(record, part):
            end = record.finished_at or begin
        parts.append(Part(part.kind, begin, end, part.attempt, part.worker))
        at = end
    if at is not None and (record.finished_at is None or record.finished_at > at):
        parts += _pause(record, at, record.finished_at, parts, now)
    return [
        {"kind": p.kind, "from": p.begin, "to": p.end, "attempt": p.attempt, "worker": p.worker}
        for p in parts
    ]


def _runs(executions: Sequence[Execution]) -> list[Part]:
    return [
        Part(RAN, each.begin, each.end if not each.running else None, each.number, each.worker)
        for each in executions
        if each.begin is not None
    ]


def _troubles(audit: Sequence[AuditEvent]) -> list[Part]:
    """From the move until an operator's decision."""
    parts = []
    for number, event in enumerate(audit):
        if event.kind == TROUBLE:
            decided = (each.at for each in audit[number + 1 :] if each.kind.startswith("OPERATOR_"))
            parts.append(Part(IN_TROUBLE, event.at, next(decided, None)))
    return parts


def _is_over(record: CommandRecord, part: Part) -> bool:
    """A claim that was given back leaves no event."""
    return record.status != "IN_PROGRESS" or record.started_at != part.begin


def _pause(
    record: CommandRecord,
    begin: datetime,
    end: datetime | None,
    before: Sequence[Part],
    now: datetime,
) -> list[Part]:
    """Until the command is due it is kept back: by its sender, or after an attempt."""
    if end is not None and end - begin <= (_MIN_PAUSE if before else timedelta()):
        return []
    after_attempt = bool(before) and before[-1].kind == RAN
    held = RETRIED if after_attempt else LATER
    due = record.due_at
    if due - begin > _MIN_PAUSE:
        if end is None and due > now:
            return [Part(held, begin, None)]
        if end is None or due < end:
            return [Part(held, begin, due), Part(WAITED, due, end)]
    return [Part(RETRIED if after_attempt else WAITED, begin, end)]
