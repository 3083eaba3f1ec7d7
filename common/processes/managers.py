"""What cmdbus asks of every manager. Functions, so that a manager may have methods of any name."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from cmdbus.checks import check_name, check_whole, shown
from cmdbus.errors import PermanentCommandError, TransientCommandError

if TYPE_CHECKING:
    from cmdbus.processes.process_manager import ProcessManager

S = TypeVar("S")


def check_manager(manager: "ProcessManager[Any]") -> None:
    """Raises a ValueError if it cannot be registered."""
    name = type(manager).__name__
    for attribute in ("domain", "type"):
        if not hasattr(manager, attribute):
            raise ValueError(f"{name} has no {attribute}: give its class {attribute} = '...'")
        check_name(f"{attribute} of {name}", getattr(manager, attribute))
    check_whole(f"version of {name}", manager.version, 1)
    steps = getattr(manager, "Step", None)
    if not (isinstance(steps, type) and issubclass(steps, StrEnum)):
        raise ValueError(f"{name} has no steps: give it a class Step(StrEnum)")


def load_state(manager: "ProcessManager[S]", data: Any, version: int) -> S:
    """The state from its stored form."""
    if version > manager.version:
        raise TransientCommandError(
            "STATE_TOO_NEW",
            f"the state is of version {version}, and {type(manager).__name__} here of version "
            f"{manager.version}: newer workers must run it",
        )
    if version < manager.version:
        data = manager.upgrade(data, version)
    try:
        state: S = manager.state_type(**data)
        return state
    except TypeError as error:
        raise PermanentCommandError(
            "STATE_NOT_READABLE",
            f"the state {shown(data)} does not fit {manager.state_type.__name__} ({error}): raise "
            f"version, and write upgrade",
        ) from None


def step_of(manager: "ProcessManager[Any]", step: Any, method: str) -> StrEnum:
    """`step`, if it is one; a stored step may be one of an older build."""
    name = type(manager).__name__
    try:
        return manager.Step(step)
    except ValueError:
        raise PermanentCommandError(
            "NOT_A_STEP",
            f"{method} of {name} gave {shown(step)}, which is no step of {name}: "
            f"{', '.join(manager.Step)}",
        ) from None
