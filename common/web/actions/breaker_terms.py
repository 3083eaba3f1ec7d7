"""Actions on the terms of circuit breakers: set some, and clear what is set."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cmdbus.breakers import BreakerTerms, check_terms
from cmdbus.errors import InvalidOperationError
from cmdbus.producer.breakers import BreakerRecord
from cmdbus.producer.bus import CommandBus
from cmdbus.web.action import Action, Body
from cmdbus.web.actions.answers import done, duration, field, preview, undoing
from cmdbus.web.actions.breakers import read
from cmdbus.web.actions.order import Order

_TIMES = {"window": "Within (window)", "cooldown": "Open for (cooldown), like 30s or 5m"}
_COUNTS = {
    "failures": "Opens at so many failures (failures)",
    "probes": "Probes at a time after that (probes)",
}
_TERMS = (*_COUNTS, *_TIMES)


def _plain(terms: Mapping[str, Any]) -> dict[str, Any]:
    """As the page sends them."""
    return {name: duration(value) if name in _TIMES else value for name, value in terms.items()}


def _in_force(record: BreakerRecord) -> dict[str, Any]:
    return _plain(asdict(record.in_force))


def _preview_set(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = read(bus, Order(body, ["name"], _TERMS).name("name"))
    plain = _in_force(record)
    return preview(
        f"Set terms of the breaker {record.name}",
        [
            f"In force is: it {record.in_force}.",
            "What is set wins over what apps declare, until it is cleared; its state stays.",
        ],
        "Set them",
        fields=[
            *(
                field(name, label, "number", plain[name], required=True)
                for name, label in _COUNTS.items()
            ),
            *(
                field(name, label, "text", plain[name], required=True)
                for name, label in _TIMES.items()
            ),
        ],
        undo="What was in force before can be put back.",
        state=plain,
    )


def _given(order: Order, name: str) -> dict[str, Any]:
    given: dict[str, Any] = {term: order.whole(term) for term in _COUNTS if order.has(term)}
    given |= {term: order.seconds(term) for term in _TIMES if order.has(term)}
    for term, value in given.items():
        if value is None:
            raise ValueError(
                f"{term} of the breaker {name} must be given: it has no value for none"
            )
    return check_terms(name, given)


def _set(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"], _TERMS)
    name = order.name("name")
    given = _given(order, name)
    record = read(bus, name)
    order.check_state(f"the breaker {name}", _in_force(record))
    before = asdict(record.in_force)
    changed = {term: value for term, value in given.items() if value != before[term]}
    if not changed:
        raise InvalidOperationError(f"nothing of the breaker {name} changes: all is so already")
    bus.breakers.set(name, **changed, operator=operator, reason=order.reason)
    state = _plain(changed)
    if record.set is None:
        undo = undoing("clear_breaker", "Clear them again", {"name": name}, state=state)
    else:
        values = _plain({term: before[term] for term in changed})
        undo = undoing("set_breaker", "Put them back", {"name": name}, values, state=state)
    in_force = BreakerTerms(**{**before, **changed})
    return done(f"the breaker {name} {in_force}", count=len(changed), undo=undo)


def _cleared(bus: CommandBus, name: str) -> tuple[BreakerRecord, dict[str, Any]]:
    """A breaker of which terms are set, and these."""
    record = read(bus, name)
    if record.set is None:
        raise InvalidOperationError(f"nothing is set of the breaker {name}")
    return record, record.set.values


def _preview_clear(bus: CommandBus, body: Body) -> dict[str, Any]:
    record, _ = _cleared(bus, Order(body, ["name"]).name("name"))
    if record.declared:
        holds = f"What apps declare holds again: it {record.declared[0].terms}."
    else:
        holds = "No app declares it any longer: it is forgotten, unless it is kept open."
    return preview(
        f"Clear what is set of the breaker {record.name}",
        [f"In force is: it {record.in_force}.", holds],
        "Clear it",
        undo="What is set now can be set again." if record.declared else None,
        state=_in_force(record),
    )


def _clear(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"])
    record, values = _cleared(bus, order.name("name"))
    order.check_state(f"the breaker {record.name}", _in_force(record))
    bus.breakers.clear(record.name, operator=operator, reason=order.reason)
    answer = f"what was set of the breaker {record.name} is cleared"
    if not record.declared:
        return done(answer)
    declared = asdict(record.declared[0].terms)
    lost = {term: value for term, value in values.items() if value != declared[term]}
    if not lost:
        return done(answer, undone="What was set is what apps declare: nothing has changed.")
    state = _plain({term: declared[term] for term in lost})
    back = "set_breaker", "Set it again", {"name": record.name}, _plain(lost)
    return done(answer, undo=undoing(*back, state=state))


ACTIONS = [
    Action("clear_breaker", _preview_clear, _clear),
    Action("set_breaker", _preview_set, _set),
]
