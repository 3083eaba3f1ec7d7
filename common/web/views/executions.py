"""The executions of a command by its audit trail: when each ran, where, and its end. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cmdbus.producer.records import AuditEvent, CommandRecord, Status
from cmdbus.web.views.payload_values import payload_of

RECEIVED = "RECEIVED"
TROUBLE = "MOVED_TO_TROUBLESHOOTING_QUEUE"
LOST = "LOST"
#: Events that end an execution. The command's own row tells of a completion and of a cancellation.
ENDS = ("FAILED", "BUSINESS_RULE_FAILED", TROUBLE, LOST, "COMPLETED", "CANCELED")
#: Fields of an event's details that have places of their own, and what those are called.
_PLACES = {"stack": "stack", "statement": "sql", "blocked_by": "blocked_by"}
_DETAILS_BYTES = 16 * 1024


@dataclass(slots=True)
class Execution:
    """`begin` is None where only the end is on record, and `end` while it runs or where its command
    was given back without an event."""

    number: int | None
    worker: str | None
    begin: datetime | None
    end: datetime | None = None
    event: AuditEvent | None = None
    running: bool = False


def executions(record: CommandRecord, audit: Sequence[AuditEvent]) -> list[Execution]:
    """Oldest first."""
    found: list[Execution] = []
    for event in audit:
        if event.kind == RECEIVED:
            found.append(Execution(event.attempt, event.worker, event.at))
        elif event.kind in ENDS:
            begun = _ended_by(event, found)
            if begun is None:
                # A trail that does not tell of an execution: a command was set aside, or waited.
                if event.kind in ("CANCELED", "COMPLETED") or event.worker is None:
                    continue
                begun = Execution(event.attempt, event.worker, None)
                found.append(begun)
            begun.end, begun.event = event.at, event
    if found and found[-1].event is None and record.status is Status.IN_PROGRESS:
        found[-1].running = True
    return found


def _ended_by(event: AuditEvent, found: Sequence[Execution]) -> Execution | None:
    """The loss of an execution may be noticed after the next one has begun."""
    open_ones = [each for each in found if each.event is None]
    if event.kind == LOST:
        for each in open_ones:
            if (each.worker, each.number) == (event.worker, event.attempt):
                return each
        return open_ones[0] if open_ones else None
    for each in reversed(open_ones):
        if each.worker == event.worker or event.worker is None:
            return each
    return None


def value_of(execution: Execution) -> dict[str, Any]:
    """As the page lists it."""
    event = execution.event
    value: dict[str, Any] = {
        "attempt": execution.number,
        "from": execution.begin,
        "to": execution.end,
        "worker": execution.worker,
        "outcome": _outcome(execution),
        **dict.fromkeys(("code", "message", "reason", "exception", "traceback")),
        **dict.fromkeys(("stack", "sql", "blocked_by", "details")),
        "at": event.at if event else execution.begin,
    }
    if event is not None:
        value |= {"code": event.code, "message": event.message, **parts_of(event.details)}
    return value


def _outcome(execution: Execution) -> str | None:
    """None: it ended without an event, so its command was given back, or waits at a breaker."""
    if execution.running:
        return "RUNNING"
    return None if execution.event is None else execution.event.kind


def parts_of(details: object) -> dict[str, Any]:
    """Of an event's details: reason, exception and traceback, with what a hung or killed process
    has left: its stack, its statement, and the sessions that blocked it. The rest is JSON."""
    if not isinstance(details, Mapping):
        return {} if details is None else {"details": payload_of(details, _DETAILS_BYTES)}
    parts: dict[str, Any] = {
        name: _text(details.get(name)) for name in ("reason", "exception", "traceback")
    }
    rest = details.get("details")
    if isinstance(rest, Mapping):
        taken = {name: rest[name] for name in _PLACES if rest.get(name) is not None}
        parts |= {_PLACES[name]: _text(value) for name, value in taken.items()}
        if "blocked_by" in taken:
            parts["blocked_by"] = _lines(taken["blocked_by"])
        rest = {name: value for name, value in rest.items() if name not in taken}
    if rest not in (None, {}):
        parts["details"] = payload_of(rest, _DETAILS_BYTES)
    return parts


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _lines(value: object) -> list[str]:
    """Only the bus writes them, or an application that uses the same name."""
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
