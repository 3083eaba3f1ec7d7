"""How good the number of threads is that a fleet finds by itself within a range."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import median

from benches.comparison import Comparison, Found, Place
from benches.fleet import TYPE, compute, fleet, sleep, sleep_and_compute
from benches.yard import Yard, commands, yard
from cmdbus.handlers import HandlerFunction
from cmdbus.proc import usable_cpus

_PROCESSES, _LEAST, _MOST = 2, 1, 32
_FIXED = (1, 2, 4, 8, 16, 32)
#: Of --seconds: until a fleet must have found its number, in the window of which the rate counts,
#: in that of each fixed number that is tried, and before both, while sessions plan.
_FIND, _WINDOW, _TRY, _WARM = 30, 6, 3, 1
#: Seconds for which commands are there in addition: while the fleet starts, and looks are late.
_START_S = 4.0
_WAITS_S, _COMPUTES_S = 0.02, 0.002
_MIXED_S = 0.02, 0.005
#: The share of the best rate at which a number counts as found, over so many seconds.
_GOOD, _OVER = 0.9, 3

_RATE = """
    SELECT count(*) FROM cmdbus.finished
    WHERE finished_at BETWEEN to_timestamp(%s) AND to_timestamp(%s)"""
_BY_SECOND = """
    SELECT floor(extract(epoch FROM finished_at) - %s)::int, count(*) FROM cmdbus.finished
    WHERE finished_at >= to_timestamp(%s) GROUP BY 1 ORDER BY 1"""


def adaptive_io(slot: Place) -> Found:
    """Handlers that sleep 20 ms, by 2 processes of `--threads 1:32` from 30 s (30 x --seconds)
    after their start, against the best fixed number of threads, found in the same run."""
    most = _PROCESSES * _MOST / _WAITS_S
    return {"adaptive-io": _compare(slot, partial(sleep, _WAITS_S), most)}


def adaptive_cpu(slot: Place) -> Found:
    """The same with handlers that compute for 2 ms."""
    most = usable_cpus() / _COMPUTES_S
    return {"adaptive-cpu": _compare(slot, partial(compute, _COMPUTES_S), most)}


def adaptive_mixed(slot: Place) -> Found:
    """The same with handlers that sleep 20 ms and compute for 5 ms."""
    most = usable_cpus() / _MIXED_S[1]
    return {"adaptive-mixed": _compare(slot, partial(sleep_and_compute, *_MIXED_S), most)}


@dataclass(frozen=True, slots=True)
class _Run:
    #: Commands a second in the window.
    rate: float
    #: The number of commands in each second since the fleet was ready.
    by_second: dict[int, int]

    def found_after(self, best: float) -> int | None:
        """Seconds until the rate was good for the first time."""
        for second in sorted(self.by_second):
            following = [self.by_second.get(second + each, 0) for each in range(_OVER)]
            if sum(following) / _OVER >= _GOOD * best:
                return second
        return None


def _compare(slot: Place, handler: HandlerFunction, most: float) -> Comparison:
    """`most`: commands a second that no fleet exceeds."""
    with yard(slot) as here:
        run = partial(_run, here, handler, most)
        tried = {number: run(number, _WARM, _TRY).rate for number in _FIXED}
        best = max(tried, key=lambda number: tried[number])
        pairs = slot.rounds(
            lambda: run(best, _WARM, _WINDOW),
            lambda: run(f"{_LEAST}:{_MOST}", _FIND, _WINDOW),
        )
    found = [adaptive.found_after(fixed.rate) for fixed, adaptive in pairs]
    seconds = [second for second in found if second is not None]
    configuration = {
        "processes": _PROCESSES,
        "threads": f"{_LEAST}:{_MOST}",
        "best": best,
        "rates": {str(number): round(rate, 1) for number, rate in tried.items()},
        "found_after_s": median(seconds) if seconds else None,
        "slowest_s": max(seconds, default=None) if len(seconds) == len(found) else None,
    }
    return Comparison(
        pairs=[(fixed.rate, adaptive.rate) for fixed, adaptive in pairs],
        configuration=configuration,
    )


def _run(
    here: Yard, handler: HandlerFunction, most: float, threads: int | str, before: int, during: int
) -> _Run:
    """The rate of a window after the time before it, while commands always wait."""
    seconds = here.slot.sizes.seconds
    here.clear()
    here.bus.send_many(commands(ceil(most * ((before + during) * seconds + _START_S))))
    with fleet(here.slot.dsn, {TYPE: handler}, processes=_PROCESSES, threads=threads) as running:
        ready = _server_time(here)
        _sleep_until(ready + before * seconds, here, running.check)
        _sleep_until(ready + (before + during) * seconds, here, running.check)
        window = ready + before * seconds, ready + (before + during) * seconds
        ended = int(here.value(_RATE, *window))
        rows = here.connection.execute(_BY_SECOND, (ready, ready)).fetchall()
        if here.connection.execute("SELECT FROM cmdbus.ready LIMIT 1").fetchone() is None:
            raise RuntimeError("the commands were done before the time was over")
    return _Run(ended / (during * seconds), {second: count for second, count in rows})


def _server_time(here: Yard) -> float:
    return float(here.value("SELECT extract(epoch FROM clock_timestamp())"))


def _sleep_until(at: float, here: Yard, check: Callable[[], None]) -> None:
    time.sleep(max(0.0, at - _server_time(here)))
    check()
