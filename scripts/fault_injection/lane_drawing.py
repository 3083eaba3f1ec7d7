"""Draws commands that have limits."""

import random
from dataclasses import replace

from cmdbus import SendRequest
from fault_injection.drawing import Drawing
from fault_injection.lanes import TYPES

_PRIORITIES = ("high", "normal", "normal", "low")
_DELAYED = 0.1


def draw_limited(
    dice: random.Random,
    drawing: Drawing,
    call: str,
    index: int,
    name: str,
    expires: float | None = None,
) -> SendRequest:
    """Of the type `name`, which does what another type does. A few have no key, and a few a delay;
    `expires` are seconds after that."""
    limited = TYPES[name]
    kind = dice.choices([*limited.kinds], [*limited.kinds.values()])[0]
    delay = round(dice.uniform(0.05, 2.0), 2) if dice.random() < _DELAYED else None
    drawn = drawing.of_type(kind, call, index, delay=delay)
    number = dice.randrange(limited.keys)
    return replace(
        drawn,
        domain=limited.domain,
        type=name,
        data={**drawn.data, "does": kind},
        priority=dice.choice(_PRIORITIES),
        key=f"k{number}" if number else None,
        expires=None if expires is None else expires + (delay or 0.0),
    )
