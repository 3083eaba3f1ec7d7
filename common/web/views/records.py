"""Values that several views have in common. Pure."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from cmdbus.producer.records import AuditEvent, Waiting
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


def waiting(counts: Waiting) -> dict[str, Any]:
    return asdict(counts)


def concerns(covers: Iterable[str], domain: str) -> bool:
    """Whether a limit or breaker for these types, given as domain/type, and domains is for some of
    the domain's."""
    return any(each.partition("/")[0] == domain for each in covers)
