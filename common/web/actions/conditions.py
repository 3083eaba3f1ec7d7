"""Conditions in place of names: which commands an action is about, as a target says. Pure."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from cmdbus.checks import shown, time_of_text
from cmdbus.web.actions.order import Order

_TIMES = ("since", "until")


def conditions_of(order: Order, part: str, known: Collection[str]) -> dict[str, Any]:
    """Arguments of a method of the bus, which checks them; only times are read here. What is empty
    is left out."""
    found = order.target.get(part)
    if not isinstance(found, Mapping) or not found.keys() <= {*known}:
        raise ValueError(f"target.{part} must be an object with {', '.join(known)}")
    return {
        name: read_time(f"target.{part}.{name}", value) if name in _TIMES else value
        for name, value in found.items()
        if value not in (None, "")
    }


def leave_out_newer(conditions: dict[str, Any], until: object) -> None:
    """Than the time in the state of a preview; None leaves out nothing."""
    if until is not None:
        time = read_time("state.until", until)
        conditions["until"] = min(time, conditions.get("until") or time)


def read_time(what: str, text: object) -> datetime:
    time = time_of_text(text)
    if time is None:
        raise ValueError(f"{what} must be a time with its offset, not {shown(text)}")
    return time
