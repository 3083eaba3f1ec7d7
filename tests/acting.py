"""Actions of the operators' page, as its requests call them."""

from typing import Any

from cmdbus import CommandBus
from cmdbus.web.actions import ACTIONS


def preview(bus: CommandBus, action: str, /, *, values: Any = None, **target: Any) -> Any:
    return ACTIONS[action].preview(bus, {"target": target, "values": values or {}})


def act(
    bus: CommandBus,
    action: str,
    /,
    *,
    values: Any = None,
    state: Any = None,
    reason: str | None = "test",
    **target: Any,
) -> Any:
    """By ann."""
    body = {"target": target, "values": values or {}, "reason": reason, "operator": "ann"}
    if state is not None:
        body["state"] = state
    return ACTIONS[action].perform(bus, body, "ann")


def undo(bus: CommandBus, answer: Any) -> Any:
    """What the button Undo of an answer does, by bob."""
    return ACTIONS[answer["undo"]["action"]].perform(bus, answer["undo"]["body"], "bob")
