"""Tests of applications: what they send, and what their handlers do, in the test's own process.

    CommandTester                   runs due commands, moves times, and shows what was sent
    Executed                        one execution that it has run
    make_command, make_context      what a handler gets, without a database

The fixtures of pytest are in `plugin`. All of these are loaded when they are first used: pytest
imports this package in every project of the environment that it runs in.
"""

if __name__ != "cmdbus.testing":
    raise ImportError(f"this directory is cmdbus.testing, not {__name__}: pip install -e .")

from importlib import import_module
from typing import TYPE_CHECKING

from cmdbus.clock import time

if TYPE_CHECKING:
    from cmdbus.testing.contexts import MadeContext as MadeContext
    from cmdbus.testing.contexts import make_command as make_command
    from cmdbus.testing.contexts import make_context as make_context
    from cmdbus.testing.executed import Executed as Executed
    from cmdbus.testing.tester import CommandTester as CommandTester

_MODULES = {
    "CommandTester": "tester",
    "Executed": "executed",
    "MadeContext": "contexts",
    "make_command": "contexts",
    "make_context": "contexts",
}
__all__ = [*_MODULES]
#: Monotonic time at which the tests of this process began: pytest loads this before them.
BEGAN = time.monotonic()


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
