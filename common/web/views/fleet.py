"""The view `fleet`: all nodes, with their processes and threads, from what they have published.

fleet               each thread as one letter of `phases`, and in `slots` unless there are many
fleet/NODE          one node, with its slots
fleet/NODE/stacks   stacks of its processes that have exited, by the number of the exit
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.producer.node_records import NodeRecord, NodeSeat, NodeSlot
from cmdbus.web.fleet_watch import watch_fleet
from cmdbus.web.query import BadQuery, NotFound, Query

#: Threads of all nodes together up to which `fleet` has their slots.
_MAX_SLOTS = 600
#: Of a thread: "i" idle, "r" running, "l" leading, "w" resting, "a" away, "s" stuck, "?" unknown.
_LETTERS = {"resting": "w"}
_SEATS = ("seats", "quarantine", "node", "exits")


def read(bus: CommandBus, query: Query) -> object:
    if not query.parts:
        watch_fleet(bus)
        nodes = bus.fleet()
        has_slots = sum(len(seat.slots) for node in nodes for seat in _seats(node)) <= _MAX_SLOTS
        return {
            "nodes": [_node(node, has_slots=has_slots) for node in nodes],
            "has_slots": has_slots,
        }
    number = _number(query.part(0, "the node"))
    if query.parts[1:] == ("stacks",):
        return {"stacks": bus.stacks(number)}
    if query.parts[1:]:
        raise NotFound("there is no such view of a node: there is stacks")
    watch_fleet(bus)
    found = bus.fleet(number)
    if not found:
        raise NotFound(f"there is no node {number}; it may have been gone for a day")
    return {"node": _node(found[0], has_slots=True)}


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise BadQuery("a node is named by its number")
    return int(text)


def _seats(node: NodeRecord) -> list[NodeSeat]:
    return [*node.seats, *([node.quarantine] if node.quarantine else [])]


def _node(node: NodeRecord, *, has_slots: bool) -> dict[str, Any]:
    return {
        # A number of JavaScript has 53 bits.
        "node": str(node.node),
        **_values(node, _SEATS),
        "seats": [_seat(seat, has_slots=has_slots) for seat in node.seats],
        "quarantine": node.quarantine and _seat(node.quarantine, has_slots=has_slots),
        "exits": node.exits,
    }


def _seat(seat: NodeSeat, *, has_slots: bool) -> dict[str, Any]:
    return {
        **_values(seat, ("slots",)),
        "phases": "".join(map(_letter, seat.slots)),
        "slots": [_slot(slot) for slot in seat.slots] if has_slots else None,
    }


def _slot(slot: NodeSlot) -> dict[str, Any]:
    if slot.command_id is None:
        return {"slot": slot.slot, "phase": slot.phase}
    return _values(slot)


def _letter(slot: NodeSlot) -> str:
    return _LETTERS.get(slot.phase or "?") or (slot.phase or "?")[0]


def _values(record: object, without: Iterable[str] = ()) -> dict[str, Any]:
    names = (field.name for field in fields(record) if field.name not in without)  # type: ignore[arg-type]
    return {name: getattr(record, name) for name in names}
