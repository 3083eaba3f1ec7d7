"""Actions on circuit breakers: open, close, reset."""

from typing import Any

from cmdbus.breakers import BreakerState
from cmdbus.counting import count_of
from cmdbus.errors import InvalidOperationError
from cmdbus.producer.breakers import BreakerRecord
from cmdbus.producer.bus import CommandBus
from cmdbus.web.action import Action, Body
from cmdbus.web.actions.answers import done, preview, undoing
from cmdbus.web.actions.covered import read_waiting
from cmdbus.web.actions.covered import sentence as waiting_sentence
from cmdbus.web.actions.order import Order

_OPEN, _CLOSED = BreakerState.OPEN, BreakerState.CLOSED


def _found(bus: CommandBus, name: str) -> BreakerRecord | None:
    return next((each for each in bus.breakers.list() if each.name == name), None)


def read(bus: CommandBus, name: str) -> BreakerRecord:
    record = _found(bus, name)
    if record is None:
        bus.breakers.audit(name)  # It raises the sentence about a name that no breaker has.
        raise InvalidOperationError(f"there is no breaker {name!r} any longer")
    return record


def _state(record: BreakerRecord) -> dict[str, Any]:
    """An open breaker is either kept so by an operator, or open until probes are let through."""
    return {"state": record.state.value, "kept_open": _is_kept(record)}


def _is_kept(record: BreakerRecord) -> bool:
    return record.state is _OPEN and record.retry_at is None


def _bound(bus: CommandBus, record: BreakerRecord, sentence: str) -> tuple[list[str], int | None]:
    """What becomes of commands, and how many of them wait now."""
    if not record.covers:
        return ["No type is bound to it: it is only about calls that handlers make."], None
    waiting = read_waiting(bus, record.covers)
    commands = f"Commands of {', '.join(record.covers)} {sentence}."
    return [commands, waiting_sentence(waiting)], waiting.depth


def _preview_open(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = read(bus, Order(body, ["name"]).name("name"))
    if _is_kept(record):
        raise InvalidOperationError(f"the breaker {record.name} is kept open already")
    state = f"It is {record.state} now. No call is made, and no probe, until an operator closes it."
    bound, count = _bound(bus, record, "wait while it is open")
    return preview(
        f"Open the breaker {record.name}",
        [state, *bound],
        "Open it",
        count=count,
        undo="Close it undoes it.",
        grave=True,
        state=_state(record),
    )


def _preview_close(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = read(bus, Order(body, ["name"]).name("name"))
    if record.state is _CLOSED:
        raise InvalidOperationError(f"the breaker {record.name} is closed already")
    failures = count_of(record.in_force.failures, "failure")
    state = f"It is {record.state} now. Calls are made again, and {failures} open it again."
    bound, count = _bound(bus, record, "start again")
    return preview(
        f"Close the breaker {record.name}",
        [state, *bound],
        "Close it",
        count=count,
        undo="Open it undoes it: then it stays open until an operator closes it.",
        state=_state(record),
    )


def _preview_reset(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = read(bus, Order(body, ["name"]).name("name"))
    on_record = count_of(record.failures, "failure")
    return preview(
        f"Reset the breaker {record.name}",
        f"It is {record.state} now, with {on_record} on record: it is CLOSED then, with none.",
        "Reset it",
        undo=None if record.state is _CLOSED else "Open it again undoes it, but for the record.",
        state=_state(record),
    )


def _open(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"])
    before = _checked(bus, order)
    bus.breakers.open(before.name, operator=operator, reason=order.reason)
    undo = undoing(
        *("close_breaker", "Close it again", {"name": before.name}),
        state={"state": _OPEN.value, "kept_open": True},
    )
    return done(f"the breaker {before.name} is open until an operator closes it", undo=undo)


def _close(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"])
    before = _checked(bus, order)
    bus.breakers.close(before.name, operator=operator, reason=order.reason)
    return done(f"the breaker {before.name} is closed", undo=_opening(before))


def _reset(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"])
    before = _checked(bus, order)
    bus.breakers.reset(before.name, operator=operator, reason=order.reason)
    undo = None if before.state is _CLOSED else _opening(before)
    undone = "Failures that are forgotten do not come back."
    return done(f"the breaker {before.name} is reset", undo=undo, undone=undone)


def _opening(before: BreakerRecord) -> dict[str, Any]:
    return undoing(
        *("open_breaker", "Open it again", {"name": before.name}),
        state={"state": _CLOSED.value},
    )


def _checked(bus: CommandBus, order: Order) -> BreakerRecord:
    record = read(bus, order.name("name"))
    order.check_state(f"the breaker {record.name}", _state(record))
    return record


ACTIONS = [
    Action("close_breaker", _preview_close, _close),
    Action("open_breaker", _preview_open, _open),
    Action("reset_breaker", _preview_reset, _reset),
]
