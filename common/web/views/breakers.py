"""The view `breakers`: their states now, and their latest changes."""

from typing import Any

from cmdbus.breakers import BreakerState
from cmdbus.producer.breakers import BreakerRecord
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import AuditEvent
from cmdbus.web.covers import domains_covered
from cmdbus.web.query import Query
from cmdbus.web.views.records import event, set_by

#: Changes of each breaker, and of one alone.
_LATEST, _LATEST_OF_ONE = 50, 300
#: The state that a breaker has after a change.
_STATES = {
    "OPENED": BreakerState.OPEN,
    "HALF_OPENED": BreakerState.HALF_OPEN,
    "CLOSED": BreakerState.CLOSED,
    "RESET": BreakerState.CLOSED,
}


def read(bus: CommandBus, query: Query) -> object:
    name, domain = query.text("name"), query.text("domain")
    query.check()
    restricted = not bus.rights().reads_data
    records = bus.breakers.list()
    if name is not None:
        records = [each for each in records if each.name == name]
    if domain is not None:
        records = [each for each in records if domain in domains_covered(each.covers)]
    audits: dict[str, list[AuditEvent]] = {}
    if not restricted and records:
        audits = bus.breakers.audits(_LATEST if name is None else _LATEST_OF_ONE)
    return {
        "breakers": [
            breaker(each, None if restricted else audits.get(each.name, []), whole=name is not None)
            for each in records
        ],
        "restricted": restricted,
    }


def breaker(
    record: BreakerRecord, audit: list[AuditEvent] | None, *, whole: bool = False
) -> dict[str, Any]:
    """Without `whole` events are without their details."""
    return {
        "name": record.name,
        "state": record.state,
        "changed_at": record.changed_at,
        "opened_at": record.opened_at,
        "retry_at": record.retry_at,
        "kept_open": record.state is BreakerState.OPEN and record.retry_at is None,
        "failures": record.failures,
        "probing": record.probing,
        "covers": record.covers,
        "in_force": record.in_force,
        "terms": str(record.in_force),
        "declared": [
            {
                "app": each.app,
                "declared_at": each.declared_at,
                "terms": str(each.terms),
                "counts": each.counts,
            }
            for each in record.declared
        ],
        "set": set_by(record.set),
        "events": None if audit is None else [_event(each, whole) for each in audit][::-1],
    }


def _event(found: AuditEvent, whole: bool) -> dict[str, Any]:
    """`state`: that after the change; None if it changes none."""
    state = _STATES.get(found.kind)
    if whole:
        return {**event(found), "state": state}
    return {"at": found.at, "kind": found.kind, "state": state}
