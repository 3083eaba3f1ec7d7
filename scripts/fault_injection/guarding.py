"""Types behind circuit breakers, and the system that they call, which fails half of the time."""

import time
from collections.abc import Callable, Mapping

from cmdbus import (
    Breaker,
    Command,
    Context,
    HandlerRegistry,
    RetryPolicy,
    TransientCommandError,
)

_DOMAIN = "guarded"
#: Schedules that send a command of each type, and seconds from tick to tick.
GUARDED: Mapping[str, int] = {"bound": 1, "inside": 1}
#: Seconds in which the other side fails once and works once.
_FAILS_S = 8.0

Body = Callable[[Command, Context, str], object]


def register_guarded(
    registry: HandlerRegistry,
    retry: RetryPolicy,
    marked: Callable[[Body], Callable[[Command, Context], object]],
) -> None:
    registry.breaker(Breaker("bound", failures=2, cooldown=1.0, probes=1))
    registry.breaker(Breaker("inside", failures=2, cooldown=1.0, probes=2))
    registry.register(_DOMAIN, "Bound", marked(_call), retry=retry, breaker="bound")
    registry.register(_DOMAIN, "Inside", marked(_call_inside), retry=retry)
    for name, seconds in GUARDED.items():
        found = registry.find(_DOMAIN, name.capitalize())
        assert found is not None
        registry.schedule(every=seconds, name=name, missed="all")(found.function)


def _call(command: Command, context: Context, run: str) -> None:
    if time.time() % (2 * _FAILS_S) < _FAILS_S:
        raise TransientCommandError("DOWN", "the other side is down")


def _call_inside(command: Command, context: Context, run: str) -> None:
    with context.breaker("inside"):
        _call(command, context, run)
