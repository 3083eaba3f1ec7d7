"""The schedules of the app: each of their ticks must be sent once."""

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from cmdbus import CommandBus, HandlerRegistry, RetryPolicy
from fault_injection.history import Time

_DOMAIN = "ticks"
HAS_CRON = find_spec("cronsim") is not None
_CRON = {"cron": 2} if HAS_CRON else {}
#: Names, and seconds from tick to tick.
SCHEDULES: Mapping[str, int] = {"often": 1, **_CRON}


def register_schedules(
    registry: HandlerRegistry, retry: RetryPolicy, function: Callable[..., object]
) -> None:
    registry.register(_DOMAIN, "Noop", function, retry=retry)
    for name, seconds in SCHEDULES.items():
        if name in _CRON:
            times, zone, every = f"*/{seconds} * * * * *", "Europe/Zurich", None
        else:
            times, zone, every = None, None, seconds
        registry.schedule(times, timezone=zone, every=every, name=name, missed="all")(function)


def pause_schedules(bus: CommandBus, *names: str) -> Time:
    """Returns when: later ticks are not sent."""
    for name in names:
        bus.schedules.pause(name)
    return time.time()
