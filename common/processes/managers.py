"""What cmdbus asks of every manager. Functions, so that a manager may have methods of any name."""

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from cmdbus.checks import check_name, check_whole, shown
from cmdbus.data import Undecodable, decode
from cmdbus.errors import PermanentCommandError
from cmdbus.payloads.mismatch import Mismatch
from cmdbus.payloads.pydantic_models import check_dumped
from cmdbus.payloads.readers import name_of
from cmdbus.processes.states import class_of, state_reader

if TYPE_CHECKING:
    from cmdbus.processes.process_manager import ProcessManager

S = TypeVar("S")
T = TypeVar("T")


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
    with suppress(NameError):  # It is defined further down: see `check_states`.
        _check_state_type(manager)


def check_states(manager: "ProcessManager[Any]") -> None:
    """All of the application is imported. Raises a ValueError if its states cannot be read."""
    try:
        _check_state_type(manager)
    except NameError as error:
        raise ValueError(
            f"{type(manager).__name__} cannot read its states again: {error}; define or import it "
            f"at the top level of its module, outside of `if TYPE_CHECKING`"
        ) from None


def _check_state_type(manager: "ProcessManager[Any]") -> None:
    try:
        state_reader(manager.state_type)
        check_dumped(manager.state_type)
    except ValueError as error:
        name = type(manager).__name__
        raise ValueError(f"{name} cannot read its states again: {error}") from None


def load_state(manager: "ProcessManager[S]", text: str, version: int) -> S:
    """The state from its stored form."""
    data: Any = decode(text)
    if isinstance(data, Undecodable):
        raise PermanentCommandError("STATE_NOT_READABLE", data.reason)
    if version < manager.version:
        data = manager.upgrade(data, version)
    try:
        state: S = state_reader(manager.state_type)(data)
        return state
    except (Mismatch, RecursionError) as error:
        problem = error.of("state") if isinstance(error, Mismatch) else "it is nested too deeply"
        raise PermanentCommandError(
            "STATE_NOT_READABLE",
            f"the stored state does not fit {name_of(manager.state_type)} ({problem}): raise "
            f"version, and write upgrade",
        ) from error.__cause__


def checked_state(value: S, manager: "ProcessManager[S]") -> S:
    """A state that a method has returned."""
    kind: type[S] = class_of(manager.state_type)
    return checked_result(value, kind)


def checked_result(value: object, kind: type[T]) -> T:
    """What a method has returned. The error does not show it: it may be confidential."""
    if not isinstance(value, kind):
        found = "None" if value is None else type(value).__name__
        raise ValueError(f"it must return a {kind.__name__}, not {found}")
    return value


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
