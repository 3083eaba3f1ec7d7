"""What a process knows of each command type that it handles: its handler and limits, its row among
the counters, and how long its runs take. No clock inside."""

from collections.abc import Sequence

from cmdbus.board.seats import Seat
from cmdbus.handlers import Handler
from cmdbus.headers import FORWARDED
from cmdbus.registry import HandlerRegistry
from cmdbus.surroundings import Layer
from cmdbus.timeouts import Timeouts

#: Seconds of a run below which a type is quick: it is claimed ahead of the threads.
QUICK_SECONDS = 0.05
#: Seconds of a run below which a type is tiny: to wake a second thread takes longer.
TINY_SECONDS = 0.001
#: Weight of the latest run in a type's mean. One run of up to 0.4 s among quick ones leaves it
#: quick, as its thread may have waited for the interpreter. One quick run makes it quick again: a
#: wrong guess costs a second, after which commands that were not started are released.
_WEIGHT = 1 / 8


class RunTimes:
    """Of one type, which is neither quick nor tiny before its first run. Written by all threads: a
    lost update costs nothing."""

    def __init__(self) -> None:
        self.is_quick = self.is_tiny = False
        #: Seconds of a run, on average.
        self._mean: float | None = None

    def count_within(self, seconds: float) -> int:
        """The number of runs that take this time together; at least one."""
        return max(1, int(seconds / self._mean)) if self._mean else 1

    def add(self, seconds: float, count: int = 1) -> None:
        """`count` runs that took these seconds each, without those in which the thread waited for
        a CPU."""
        mean = self._mean
        weight = _WEIGHT if count == 1 else 1 - (1 - _WEIGHT) ** count
        mean = seconds if mean is None else mean + (seconds - mean) * weight
        if mean >= QUICK_SECONDS > seconds:
            mean = seconds
        self._mean = mean
        self.is_quick, self.is_tiny = mean < QUICK_SECONDS, mean < TINY_SECONDS


class HandledType:
    def __init__(
        self,
        handler: Handler,
        seat: Seat,
        timeouts: Timeouts,
        surroundings: Layer | None = None,
        forward_headers: Sequence[str] = FORWARDED,
    ) -> None:
        self.handler = handler
        self.surroundings = surroundings
        #: The handler, within its surroundings if there are any.
        self.run = handler.run if surroundings is None else surroundings(handler.run)
        #: Names of headers that its executions forward.
        self.forward_headers = forward_headers
        #: The name of the circuit breaker that it is bound to.
        self.breaker = handler.breaker
        #: Of commands whose sender has set none.
        self.max_attempts = handler.policy.max_attempts
        self.timeout = handler.timeout or timeouts.thread
        self.timeout_ns = int(self.timeout * 1e9)
        self.command_type = seat.command_type(handler.domain, handler.type)
        self.run_times = RunTimes()


class HandledTypes:
    """Each type is added by its first command, as the board has room for a limited number."""

    def __init__(self, registry: HandlerRegistry, seat: Seat, timeouts: Timeouts) -> None:
        self._registry, self._seat, self._timeouts = registry, seat, timeouts
        self._types: dict[tuple[str, str], HandledType] = {}

    def find(self, domain: str, type: str) -> HandledType:
        """The same object for the same names."""
        return self._types.get((domain, type)) or self._add(domain, type)

    def is_quick(self, name: str) -> bool:
        """`name`: "domain type"."""
        domain, type = name.split(" ")
        known = self._types.get((domain, type))
        return known is not None and known.run_times.is_quick

    def _add(self, domain: str, type: str) -> HandledType:
        handler = self._registry.find(domain, type)
        assert handler is not None, "only types with a handler are claimed"
        surroundings = self._registry.surroundings_of(domain, type)
        forwarded = self._registry.forward_headers
        added = HandledType(handler, self._seat, self._timeouts, surroundings, forwarded)
        return self._types.setdefault((domain, type), added)
