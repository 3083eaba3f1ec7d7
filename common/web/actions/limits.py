"""Actions on limits: set options of one, and clear what is set."""

from collections.abc import Mapping
from typing import Any

from cmdbus.errors import InvalidOperationError
from cmdbus.limits import Limit, rate_text, starts_per_second
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.limits import LimitRecord
from cmdbus.web.action import Action, Body
from cmdbus.web.actions.answers import done, field, preview, undoing, yes_or_no
from cmdbus.web.actions.covered import read_waiting, sentence
from cmdbus.web.actions.order import Order

_OF_ALL = ("concurrency", "rate", "burst")
#: Not for limits that several types share.
_OF_TYPES = ("ordered", "on_trouble", "fair")
_OPTIONS = (*_OF_ALL, *_OF_TYPES)


def _found(bus: CommandBus, name: str) -> LimitRecord | None:
    return next((each for each in bus.limits.list() if each.name == name), None)


def _names(name: str) -> dict[str, Any]:
    """As the methods of the bus take them; a type's limit is named domain/type."""
    domain, slash, type_ = name.partition("/")
    return {"domain": domain, "type": type_} if slash else {"name": name}


def _options(name: str) -> tuple[str, ...]:
    return _OPTIONS if "/" in name else _OF_ALL


def _terms(name: str, record: LimitRecord | None) -> dict[str, Any]:
    """Those in force, by option."""
    limit = record.in_force if record is not None else None
    terms = (limit or Limit()).terms
    return {option: terms[option] for option in _options(name)}


def _plain(terms: Mapping[str, Any]) -> dict[str, Any]:
    """As the page sends them."""
    return {
        option: yes_or_no(value) if isinstance(value, bool) else value
        for option, value in terms.items()
    }


def _covers(name: str, record: LimitRecord | None) -> list[str]:
    return record.covers if record is not None else [name]


def _for_what(name: str, record: LimitRecord | None) -> str:
    covers = _covers(name, record)
    return f"It is for {', '.join(covers)}." if covers else "It is for no type."


def _in_force(record: LimitRecord | None) -> str:
    return str(record.in_force or "no limit") if record is not None else "no limit"


def _preview_set(bus: CommandBus, body: Body) -> dict[str, Any]:
    name = Order(body, ["name"], _OPTIONS).name("name")
    record = _found(bus, name)
    if record is None and "/" not in name:
        raise InvalidOperationError(f"no app declares a shared limit {name!r}")
    plain = _plain(_terms(name, record))
    waiting = read_waiting(bus, _covers(name, record))
    return preview(
        f"Set the limit {name}",
        [
            f"In force is: {_in_force(record)}. {_for_what(name, record)} {sentence(waiting)}",
            "What is set wins over what apps declare, until it is cleared; commands that run end "
            "as usual.",
        ],
        "Set it",
        count=waiting.depth,
        fields=_fields(name, plain),
        undo="What was in force before can be put back.",
        state=plain,
    )


def _fields(name: str, plain: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = [
        field("concurrency", "How many run at once (empty: any)", "number", plain["concurrency"]),
        field("rate", "Starts, like 5/s, 100/min, 10/day (empty: any)", "text", plain["rate"]),
        field("burst", "How many may start at once", "number", plain["burst"]),
    ]
    if "/" not in name:
        return fields
    labels = {"ordered": "One at a time, in the order of sending", "fair": "Keys take turns"}
    on_trouble = "What others of an ordered key do about one in trouble"
    choices = ["yes", "no"]
    return [
        *fields,
        field("ordered", labels["ordered"], "choice", plain["ordered"], choices=choices),
        field("on_trouble", on_trouble, "choice", plain["on_trouble"], choices=["block", "skip"]),
        field("fair", labels["fair"], "choice", plain["fair"], choices=choices),
    ]


def _given(order: Order, name: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for option in filter(order.has, _OPTIONS):
        if option not in _options(name):
            raise ValueError(f"{option} is only for limits of one type, and {name} is a shared one")
        match option:
            case "concurrency" | "burst":
                given[option] = order.whole(option)
            case "rate":
                rate = order.text("rate")
                given["rate"] = rate and rate_text(starts_per_second("rate", rate))
            case "on_trouble":
                given["on_trouble"] = order.choice("on_trouble", "block", "skip") or "block"
            case _:
                given[option] = order.flag(option)
    return given


def _set(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"], _OPTIONS)
    name = order.name("name")
    given = _given(order, name)
    record = _found(bus, name)
    before = _terms(name, record)
    order.check_state(f"the limit {name}", _plain(before))
    changed = {option: value for option, value in given.items() if value != before[option]}
    if not changed:
        raise InvalidOperationError(f"nothing of the limit {name} changes: all of it is so already")
    bus.limits.set(**_names(name), **changed, operator=operator, reason=order.reason)
    after = _found(bus, name)
    state = {option: _plain(_terms(name, after))[option] for option in changed}
    if record is None or record.set is None:
        undo = undoing("clear_limit", "Clear it again", {"name": name}, state=state)
    else:
        values = {option: record.set.values.get(option, before[option]) for option in changed}
        undo = undoing("set_limit", "Put it back", {"name": name}, _plain(values), state=state)
    return done(f"the limit {name}: {_in_force(after)}", count=len(changed), undo=undo)


def _cleared(bus: CommandBus, name: str) -> LimitRecord:
    """The limit, of which something is set."""
    record = _found(bus, name)
    if record is None or record.set is None:
        raise InvalidOperationError(f"nothing is set of the limit {name}")
    return record


def _preview_clear(bus: CommandBus, body: Body) -> dict[str, Any]:
    name = Order(body, ["name"]).name("name")
    record = _cleared(bus, name)
    declared = str(record.declared[0].limit) if record.declared else "no limit"
    waiting = read_waiting(bus, record.covers)
    return preview(
        f"Clear the limit {name}",
        [
            f"In force is: {_in_force(record)}. What apps declare holds again: {declared}.",
            f"{_for_what(name, record)} {sentence(waiting)}",
        ],
        "Clear it",
        count=waiting.depth,
        undo="What is set now can be set again.",
        state=_plain(_terms(name, record)),
    )


def _clear(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"])
    name = order.name("name")
    record = _cleared(bus, name)
    order.check_state(f"the limit {name}", _plain(_terms(name, record)))
    bus.limits.clear(**_names(name), operator=operator, reason=order.reason)
    assert record.set is not None
    after = _found(bus, name)
    terms = _terms(name, after)
    lost = {key: value for key, value in record.set.values.items() if value != terms[key]}
    undo = None
    if lost:
        undo = undoing(
            *("set_limit", "Set it again", {"name": name}, _plain(lost)),
            state={option: _plain(terms)[option] for option in lost},
        )
    undone = "What was set is what apps declare: nothing has changed."
    return done(f"the limit {name}: {_in_force(after)}", undo=undo, undone=undone)


ACTIONS = [
    Action("clear_limit", _preview_clear, _clear),
    Action("set_limit", _preview_set, _set),
]
