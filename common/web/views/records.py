"""Values that several views have in common. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from cmdbus.producer.breakers import SetBreaker
from cmdbus.producer.limits import SetLimit
from cmdbus.producer.records import AuditEvent, DomainRecord
from cmdbus.selection import listed, priorities_text
from cmdbus.web.views.payload_values import payload_of

#: Bytes of the details of one event.
_DETAILS_BYTES = 4096


def event(found: AuditEvent) -> dict[str, Any]:
    details = None if found.details is None else payload_of(found.details, _DETAILS_BYTES)
    return {
        "at": found.at,
        "kind": found.kind,
        "attempt": found.attempt,
        "worker": found.worker,
        "operator": found.operator,
        "code": found.code,
        "message": found.message,
        "details": details,
    }


def events(found: Iterable[AuditEvent]) -> list[dict[str, Any]]:
    """The latest first."""
    return [event(each) for each in found][::-1]


def remark(operator: str | None, reason: str | None, at: datetime) -> dict[str, Any]:
    return {"operator": operator, "reason": reason, "at": at}


def set_by(found: SetLimit | SetBreaker | None) -> dict[str, Any] | None:
    """What operators have set of a limit or breaker."""
    if found is None:
        return None
    return {"values": found.values, **remark(found.operator, found.reason, found.set_at)}


def why_unclaimed(record: DomainRecord, type_: str) -> str | None:
    """Why no node claims commands of this type; None if one does, as far as is known."""
    if tags := record.missing_tags.get(type_):
        return f"no living node has {listed(tags)}, which it needs"
    if priorities := record.unclaimed_priorities.get(type_):
        return f"no living node claims {priorities_text(priorities)} of it"
    return "no living node handles it" if type_ in record.unhandled else None
