"""Actions on bridges: remove one, and add a removed one again."""

from typing import Any

from cmdbus.errors import InvalidOperationError
from cmdbus.producer.bridges import OUT, BridgeRecord
from cmdbus.producer.bus import CommandBus
from cmdbus.web.action import Action, Body
from cmdbus.web.actions.answers import done, number, preview, undoing
from cmdbus.web.actions.order import Order

_TERMS = ("queue", "direction", "domain", "type", "reply_to", "batch_size")
#: Changes of a domain among which its removed bridges are looked for.
_LATEST = 500


def _find(bus: CommandBus, name: str) -> BridgeRecord:
    for each in bus.bridges.list():
        if each.name == name:
            return each
    raise InvalidOperationError(f"there is no bridge {name!r} any longer")


def _terms(record: BridgeRecord) -> dict[str, Any]:
    return {term: getattr(record, term) for term in _TERMS}


def _what(terms: dict[str, Any]) -> str:
    queue, domain, type_ = terms["queue"], terms["domain"], terms["type"]
    if terms["direction"] == OUT:
        of = f"commands {domain}/{type_}" if type_ else f"all commands of {domain}"
        return f"It moves {of} into messages of the queue {queue}."
    return f"It moves messages of the queue {queue} into commands {domain}/{type_}."


def _preview_remove(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = _find(bus, Order(body, ["name"]).name("name"))
    refused = f", and refused {number(record.refused)}" if record.refused else ""
    stays = "Commands that come stay in their domain, for workers that handle them."
    if record.direction != OUT:
        stays = "Messages that come stay in their queue."
    return preview(
        f"Remove the bridge {record.name}",
        [_what(_terms(record)), f"It has moved {number(record.moved)}{refused}.", stays],
        "Remove it",
        undo="It can be added again, and counts from 0 then.",
        grave=True,
        state=_terms(record),
    )


def _remove(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"])
    record = _find(bus, order.name("name"))
    order.check_state(f"the bridge {record.name}", _terms(record))
    bus.bridges.remove(record.name, operator=operator, reason=order.reason)
    target = {"name": record.name, "domain": record.domain}
    return done(
        f"the bridge {record.name} is removed",
        undo=undoing("restore_bridge", "Add it again", target),
    )


def _removed(bus: CommandBus, order: Order) -> tuple[str, dict[str, Any]]:
    """The name and the terms of a bridge when it was removed: a page adds no other ones."""
    name, domain = order.name("name"), order.name("domain")
    for event in reversed(bus.domain_audit(domain, latest=_LATEST)):
        details = event.details
        if isinstance(details, dict) and details.get("bridge") == name:
            if event.kind == "BRIDGE_REMOVED":
                return name, details["before"]
            break
    raise InvalidOperationError(
        f"no bridge {name!r} of {domain} was removed lately: add it with cmdbus bridge add"
    )


def _preview_restore(bus: CommandBus, body: Body) -> dict[str, Any]:
    name, terms = _removed(bus, Order(body, ["name", "domain"]))
    return preview(
        f"Add the bridge {name} again",
        [_what(terms), "What waits there is moved at once."],
        "Add it again",
        undo="Remove it undoes it, but what it has moved stays moved.",
    )


def _restore(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name", "domain"])
    name, terms = _removed(bus, order)
    bus.bridges.add(**terms, name=name, operator=operator, reason=order.reason)
    return done(
        f"the bridge {name} is added again",
        undo=undoing("remove_bridge", "Remove it again", {"name": name}),
    )


ACTIONS = [
    Action("remove_bridge", _preview_remove, _remove),
    Action("restore_bridge", _preview_restore, _restore),
]
