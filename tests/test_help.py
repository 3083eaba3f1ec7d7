"""What `help(CommandBus)` says."""

import inspect
import pydoc
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cmdbus
from cmdbus import CommandBus, errors
from cmdbus.producer.breakers import BreakerOperations
from cmdbus.producer.limits import LimitOperations
from cmdbus.producer.troubleshooting import Troubleshooting

#: What a call raises in addition to what each call may raise.
RAISES = {
    "send": {"DuplicateCommandError", "QueueFullError", "ShutdownError"},
    "send_many": {"`send`"},
    "create_batch": {"`send_many`"},
    "wait_batch": {"TimeoutError", "BatchNotFoundError"},
    "cancel_batch": {"BatchNotFoundError", "InvalidOperationError"},
    "wait": {"TimeoutError", "CommandNotFoundError"},
    "cancel": {"CommandNotFoundError", "InvalidOperationError"},
    "reschedule": {"CommandNotFoundError", "InvalidOperationError"},
    "purge": {"InvalidOperationError"},
    "retry": {"CommandNotFoundError", "InvalidOperationError"},
    "complete": {"CommandNotFoundError", "InvalidOperationError"},
}


def methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for owner in (CommandBus, Troubleshooting, LimitOperations, BreakerOperations):
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_") or (name == "__init__" and owner is CommandBus):
                yield f"{owner.__name__}.{name}", method


@pytest.mark.parametrize(("name", "method"), list(methods()))
def test_a_call_says_what_it_takes_and_raises(name: str, method: Callable[..., Any]) -> None:
    text = inspect.getdoc(method) or ""
    taken = set(inspect.signature(method).parameters) - {"self", "connection"}
    assert {each for each in taken if f"`{each}" not in text} == set()
    assert {each for each in RAISES.get(name.split(".")[1], ()) if each not in text} == set()


def test_what_each_call_takes_and_raises_is_said_once() -> None:
    text = inspect.getdoc(CommandBus) or ""
    for each in ("`connection`", "ValueError", "DatabaseUnavailableError", "SchemaError"):
        assert each in text
    assert hasattr(errors, "DatabaseUnavailableError") and hasattr(errors, "SchemaError")


def test_help_names_the_public_names_before_the_modules() -> None:
    begins, _, _ = pydoc.plain(pydoc.render_doc(cmdbus)).partition("PACKAGE CONTENTS")
    assert set(cmdbus.__all__) <= set(re.findall(r"\w+", begins))


def test_help_shows_every_attribute_and_readable_defaults() -> None:
    shown = pydoc.plain(pydoc.render_doc(CommandBus))
    assert "object at 0x" not in shown and "= not given" in shown
    assert "wait for an operator: list, count" in shown
    bus = CommandBus("host=nowhere")
    named = {name for name in vars(bus) if not name.startswith("_")}
    assert not named, "an attribute that help does not show"
