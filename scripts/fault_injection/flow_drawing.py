"""Draws processes: what their steps send, and what undoes it."""

import random
from typing import Any
from uuid import UUID

from fault_injection.drawing import ADDED
from fault_injection.flows import STEPS, FlowState, FlowStep
from fault_injection.handlers import DOMAIN, DOMAINS
from fault_injection.lanes import TYPES

_KINDS = {"Tx": 50, "Noop": 25, "Transient": 8, "Io": 6, "Rule": 5, "Permanent": 4, "Undone": 3}
#: Of lists, to which some of their commands add.
_LISTED_KINDS = {**_KINDS, "Adds": 10}
_UNDOING = {"Tx": 75, "Noop": 10, "Transient": 6, "Permanent": 3, "Rule": 2}
_LISTED, _WITHOUT_UNDO = 0.2, 0.15
#: Share of the commands that have a limit.
_LIMITED = 0.15
_MAX_LISTED = 5
#: Seconds that the third step takes at most: more than its deadline.
_LONG_S, _SHORT_S = 2.5, 0.1


def draw(dice: random.Random, call: str, domains: int) -> FlowState:
    steps = STEPS[: dice.randint(1, len(STEPS))]
    return FlowState(call=call, plan=[_step(dice, step, domains) for step in steps])


def draw_id(dice: random.Random) -> UUID:
    return UUID(int=dice.getrandbits(128), version=4)


def _step(dice: random.Random, step: FlowStep, domains: int) -> dict[str, Any]:
    listed = dice.random() < _LISTED
    count = dice.randint(1, _MAX_LISTED) if listed else 1
    kinds = _LISTED_KINDS if listed else _KINDS
    longest = _LONG_S if step is FlowStep.THIRD else _SHORT_S
    undo = None
    if dice.random() >= _WITHOUT_UNDO:
        undo = _command(dice, _UNDOING, domains, _SHORT_S, undoes=step)
    return {
        "commands": [_command(dice, kinds, domains, longest, step=step) for _ in range(count)],
        "listed": listed,
        "undo": undo,
    }


def _command(
    dice: random.Random, kinds: dict[str, int], domains: int, longest: float, **data: object
) -> dict[str, Any]:
    kind = dice.choices([*kinds], [*kinds.values()])[0]
    if kind in ("Tx", "Io", "Undone"):
        data["seconds"] = round(dice.uniform(0.0, longest), 3)
    elif kind == "Transient":
        data["times"] = dice.choice((1, 2, 3))
    elif kind == "Adds":
        data["adds"] = ADDED[: dice.randint(1, len(ADDED))]
    # What adds to its batch does that in its own domain.
    if kind == "Adds" or dice.random() >= _LIMITED:
        return {"domain": dice.choice((DOMAIN, *DOMAINS[:domains])), "type": kind, "data": data}
    name = dice.choice([*TYPES])
    key = f"k{dice.randrange(1, TYPES[name].keys)}"
    return {"domain": TYPES[name].domain, "type": name, "data": {**data, "does": kind}, "key": key}
