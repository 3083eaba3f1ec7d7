"""What `help(CommandBus)` says."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cmdbus import CommandBus, errors
from cmdbus.troubleshooting import Troubleshooting

#: What a call raises in addition to what each call may raise.
RAISES = {
    "send": {"DuplicateCommandError", "QueueFullError", "ShutdownError"},
    "send_many": {"`send`"},
    "wait": {"TimeoutError", "CommandNotFoundError"},
    "cancel": {"CommandNotFoundError", "InvalidOperationError"},
    "reschedule": {"CommandNotFoundError", "InvalidOperationError"},
    "purge": {"InvalidOperationError"},
    "retry": {"CommandNotFoundError", "InvalidOperationError"},
    "complete": {"CommandNotFoundError", "InvalidOperationError"},
}


def methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for owner in (CommandBus, Troubleshooting):
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_") or (name == "__init__" and owner is CommandBus):
                yield f"{owner.__name__}.{name}", method


@pytest.mark.parametrize(("name", "method"), list(methods()))
def test_a_call_says_what_it_takes_and_raises(name: str, method: Callable[..., Any]) -> None:
    said = inspect.getdoc(method) or ""
    taken = set(inspect.signature(method).parameters) - {"self", "connection"}
    assert {each for each in taken if f"`{each}" not in said} == set()
    assert {each for each in RAISES.get(name.split(".")[1], ()) if each not in said} == set()


def test_what_each_call_takes_and_raises_is_said_once() -> None:
    said = inspect.getdoc(CommandBus) or ""
    for each in ("`connection`", "ValueError", "DatabaseUnavailableError", "SchemaError"):
        assert each in said
    assert hasattr(errors, "DatabaseUnavailableError") and hasattr(errors, "SchemaError")
