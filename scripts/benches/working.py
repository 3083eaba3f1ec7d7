"""What running commands costs beside the bare statements, or beside the ideal."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from benches.comparison import Comparison, Place, scenario
from benches.fleet import fleet, nothing
from benches.workers import (
    BARE,
    EFFECT,
    TYPE,
    Loop,
    Yard,
    bare,
    commands,
    insert,
    insert_singly,
    settle_and_claim,
    sleep,
    tell_start,
    yard,
)
from cmdbus.registry import HandlerFunction
from cmdbus.requests import SendRequest

SLOW = "Slow"

#: Processes x threads, and which of them is the double of which.
_SHAPES = ((1, 8), (2, 8), (2, 16), (2, 32), (4, 16))
_DOUBLINGS = (
    ((1, 8), (2, 8)),
    ((2, 8), (2, 16)),
    ((2, 16), (2, 32)),
    ((2, 16), (4, 16)),
)

#: Of --commands.
_TX_PART = 10
_MIXED_PART = 10
_BLOAT_TIMES = 3.75
_LATENCY_PART = 40

_IO_S, _IO_SLOTS = 0.02, 32
_IO_LONG, _IO_LONG_SLOTS = 100, 4
_SLOW_ONE_IN = 100
_MIXED_BOUND_MS = 100.0
_P50_BOUND_MS, _P99_BOUND_MS = 3.0, 10.0
#: Between sends: the worker has settled, looked again, and rests.
_REST_S = 0.02

#: Of --seconds. A session that falls idle tells its statistics up to 10 s later.
_MIXED_TIMES, _STATISTICS_TIMES, _IDLE_TIMES = 10, 11, 10
#: Autovacuum comes once a minute, so that the median of three knows nothing of it.
_IDLE_THREADS, _WINDOWS = 32.0, 3

_CLAIM_TO_START = """
    SELECT percentile_cont(%s::float8[]) WITHIN GROUP (ORDER BY
        1000 * ((result #>> '{}')::float8 - extract(epoch FROM claimed_at)::float8))
    FROM cmdbus.finished WHERE type = %s"""
_SEND_TO_START = """
    SELECT percentile_cont(%s::float8[]) WITHIN GROUP (ORDER BY
        1000 * ((result #>> '{}')::float8 - (data ->> 'sent')::float8))
    FROM cmdbus.finished WHERE type = %s"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded(Comparison):
    """The baseline is a bound, and less is better."""

    @property
    def ratios(self) -> list[float]:
        return [bound / measured for bound, measured in self.pairs]


@scenario("drain", unit="commands/s", limit=0.5, goal=0.8)
def drain(place: Place) -> Comparison:
    """Workers with a handler that does nothing, 2 processes x 8 threads, against two bare
    processes that settle 100 and claim 100 in one statement."""
    return _compare(place, nothing, settle_and_claim, place.sizes.commands, bare_threads=1)


@scenario("tx", unit="commands/s", limit=0.6)
def tx(place: Place) -> Comparison:
    """Workers with a handler that inserts a row through context.connection, against bare
    loops of the same statements with as many connections, each claiming one at a time."""
    with place.connect() as connection:
        connection.execute(EFFECT)
    count = max(1, place.sizes.commands // _TX_PART)
    return _compare(place, insert, insert_singly, count, bare_threads=8)


def _compare(
    place: Place, handler: HandlerFunction, loop: Loop, count: int, *, bare_threads: int
) -> Comparison:
    ours, theirs = commands(count), commands(count, domain=BARE)
    with (
        yard(place) as here,
        bare(place.dsn, loop, processes=2, threads=bare_threads) as bare_crew,
        fleet(place.dsn, {TYPE: handler}, processes=2, threads=8) as running,
    ):
        here.warm(running, 2)
        return place.compare(
            lambda seconds: here.drain_bare(bare_crew, _part(place, theirs, seconds)).rate,
            lambda seconds: here.drain(running, _part(place, ours, seconds)).rate,
            commands=count,
            payload_bytes=100,
            processes=2,
            threads=8,
            bare=f"2 processes x {bare_threads} threads",
        )


def _part(place: Place, requests: Sequence[SendRequest], seconds: float) -> Sequence[SendRequest]:
    """All of them in a round of full length."""
    return requests[: max(1, int(len(requests) * seconds / place.sizes.seconds))]


@scenario("drain-wide", unit="commands/s", limit=0.85)
def drain_wide(place: Place) -> Comparison:
    """The same workers in growing numbers: the double against its half, in the worst of
    the doublings."""
    figures: dict[tuple[int, int], list[float]] = {shape: [] for shape in _SHAPES}
    requests = commands(place.sizes.commands)
    with yard(place) as here:
        for number in range(place.sizes.rounds):
            for shape in reversed(_SHAPES) if number % 2 else _SHAPES:
                figures[shape].append(_drain_once(here, shape, requests))
    pairs = {
        f"{_name(half)} to {_name(double)}": tuple(zip(figures[half], figures[double], strict=True))
        for half, double in _DOUBLINGS
    }
    ratios = {
        name: median(double / half for half, double in found) for name, found in pairs.items()
    }
    worst = min(ratios, key=ratios.__getitem__)
    return Comparison(
        pairs=pairs[worst],
        configuration={
            "commands": len(requests),
            "payload_bytes": 100,
            "figures": {_name(shape): round(median(f)) for shape, f in figures.items()},
            "doublings": {name: round(ratio, 4) for name, ratio in ratios.items()},
            "worst": worst,
        },
    )


def _drain_once(here: Yard, shape: tuple[int, int], requests: Sequence[SendRequest]) -> float:
    processes, threads = shape
    with fleet(here.place.dsn, {TYPE: nothing}, processes=processes, threads=threads) as running:
        here.warm(running, processes)
        here.drain(running, requests[: len(requests) // 4 or 1])
        return here.drain(running, requests).rate


def _name(shape: tuple[int, int]) -> str:
    return "{}x{}".format(*shape)


@scenario("io", unit="commands/s", limit=0.97)
def io(place: Place) -> Comparison:
    """Handlers that sleep 20 ms in 2 processes x 16 threads, against 32 slots that are
    never empty."""
    ideal = _IO_SLOTS / _IO_S
    count = max(_IO_SLOTS, int(ideal * 3 * place.sizes.seconds))
    handlers = {TYPE: partial(sleep, _IO_S)}
    rates = _drains(place, handlers, [count] * place.sizes.rounds, processes=2, threads=16)
    return Comparison(
        pairs=tuple((ideal, rate) for rate in rates),
        configuration={"commands": count, "handler_s": _IO_S, "processes": 2, "threads": 16},
    )


@scenario("io-long", unit="commands/s", limit=round(1 / 1.02, 4))
def io_long(place: Place) -> Comparison:
    """100 handlers that sleep 1 s (--seconds) in 4 slots, against 25 such waits."""
    handler_s = place.sizes.seconds
    handlers = {TYPE: partial(sleep, handler_s)}
    rates = _drains(place, handlers, [_IO_LONG], processes=1, threads=_IO_LONG_SLOTS)
    return Comparison(
        pairs=tuple((_IO_LONG_SLOTS / handler_s, rate) for rate in rates),
        configuration={
            "commands": _IO_LONG,
            "handler_s": handler_s,
            "processes": 1,
            "threads": _IO_LONG_SLOTS,
            "rounds": 1,
        },
    )


def _drains(
    place: Place,
    handlers: Mapping[str, HandlerFunction],
    counts: Sequence[int],
    *,
    processes: int,
    threads: int,
) -> list[float]:
    with (
        yard(place) as here,
        fleet(place.dsn, handlers, processes=processes, threads=threads) as running,
    ):
        here.warm(running, processes)
        return [here.drain(running, commands(count)).rate for count in counts]


@scenario("mixed", unit="ms", limit=1.0)
def mixed(place: Place) -> Comparison:
    """Claim to start (p99) of quick handlers, at half of the rate at which the slots of
    2 processes x 8 threads are full with one handler of 2 s (2 x --seconds) among 100."""
    seconds = place.sizes.seconds
    slow_s = 2 * seconds
    handlers: dict[str, HandlerFunction] = {TYPE: tell_start, SLOW: partial(sleep, slow_s)}
    count = max(_SLOW_ONE_IN, place.sizes.commands // _MIXED_PART)
    with yard(place) as here, fleet(place.dsn, handlers, processes=2, threads=8) as running:
        here.warm(running, 2)
        mixture = [(SLOW if not n % _SLOW_ONE_IN else TYPE) for n in range(count)]
        requests = [request for type_ in mixture for request in commands(1, type_=type_)]
        capacity = here.drain(running, requests).rate
        here.clear()
        sent = _pace(here, capacity / 2, _MIXED_TIMES * seconds)
        here.await_end(running)
        p50, p99 = here.percentiles(_CLAIM_TO_START, (0.5, 0.99))
    return Bounded(
        pairs=((_MIXED_BOUND_MS, p99),),
        configuration={
            "capacity": round(capacity, 1),
            "capacity_bound_by": f"slots: 16 / ({slow_s:g} s / {_SLOW_ONE_IN})",
            "sent_per_s": round(sent, 1),
            "p50_ms": round(p50, 2),
            "p99_ms": round(p99, 2),
            "slow_s": slow_s,
            "processes": 2,
            "threads": 8,
            "rounds": 1,
        },
    )


def _pace(here: Yard, rate: float, seconds: float) -> float:
    """Sends one by one, each at its time, every hundredth slow; returns the rate reached."""
    began = time.monotonic()
    count = max(_SLOW_ONE_IN, int(rate * seconds))
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        here.send(SLOW if not number % _SLOW_ONE_IN else TYPE)
    return count / (time.monotonic() - began)


@scenario("bloat", unit="commands/s", limit=0.6, goal=0.9)
def bloat(place: Place) -> Comparison:
    """The drain while another session holds a snapshot from before the first command,
    against the same drain without."""
    requests = commands(int(place.sizes.commands * _BLOAT_TIMES))
    flatness: dict[bool, list[float]] = {True: [], False: []}

    def rate(here: Yard, seconds: float, *, held: bool) -> float:
        here.clear()
        with place.connect() as holder:
            if held:
                holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT 1")
            drained = here.drain_uncleared(running, _part(place, requests, seconds))
        if drained.commands == len(requests):
            flatness[held].append(drained.flatness)
        return drained.rate

    with (
        yard(place) as here,
        fleet(place.dsn, {TYPE: nothing}, processes=2, threads=8) as running,
    ):
        here.warm(running, 2)
        comparison = place.compare(
            lambda seconds: rate(here, seconds, held=False),
            lambda seconds: rate(here, seconds, held=True),
            commands=len(requests),
            payload_bytes=100,
            processes=2,
            threads=8,
        )
    comparison.configuration["last_third_to_first"] = round(median(flatness[True]), 4)
    comparison.configuration["without_snapshot"] = round(median(flatness[False]), 4)
    return comparison


@scenario("latency", unit="ms", limit=1.0)
def latency(place: Place) -> Comparison:
    """From before the send to the handler's start, in an idle fleet of 4 x 8: p50
    within 3 ms and p99 within 10 ms; the figure is the one that is nearer to its bound."""
    count = max(2, place.sizes.commands // _LATENCY_PART)
    with (
        yard(place) as here,
        fleet(place.dsn, {TYPE: tell_start}, processes=4, threads=8) as running,
    ):
        here.warm(running, 1)
        here.clear()
        for number in range(count):
            time.sleep(_REST_S + number % 10 / 1000)
            here.send(TYPE, {"sent": time.time()})
        here.await_end(running)
        p50, p99 = here.percentiles(_SEND_TO_START, (0.5, 0.99))
    bounds = ((_P50_BOUND_MS, p50), (_P99_BOUND_MS, p99))
    return Bounded(
        pairs=(min(bounds, key=lambda pair: pair[0] / pair[1]),),
        configuration={
            "commands": count,
            "p50_ms": round(p50, 2),
            "p99_ms": round(p99, 2),
            "p50_bound_ms": _P50_BOUND_MS,
            "p99_bound_ms": _P99_BOUND_MS,
            "processes": 4,
            "threads": 8,
            "rounds": 1,
        },
    )


@scenario("idle", unit="statements/s")
def idle(place: Place) -> Comparison:
    """What a fleet of 4 x 8 sends while there is nothing to do, against one whose
    threads each ask once a second. Counted are transactions, of which each statement of a
    resting fleet is one."""
    seconds = place.sizes.seconds
    with (
        yard(place) as here,
        fleet(place.dsn, {TYPE: nothing}, processes=4, threads=8) as running,
    ):
        here.warm(running, 1)
        time.sleep(_STATISTICS_TIMES * seconds)
        window_s = _IDLE_TIMES * seconds
        rates = [here.transactions_within(window_s) / window_s for _ in range(_WINDOWS)]
    return Comparison(
        pairs=tuple((_IDLE_THREADS, rate) for rate in rates),
        configuration={
            "counted": "xact_commit + xact_rollback of pg_stat_database: the bench's own are "
            "not in it, autovacuum's are",
            "windows_s": [window_s] * _WINDOWS,
            "processes": 4,
            "threads": 8,
            "rounds": _WINDOWS,
        },
    )
