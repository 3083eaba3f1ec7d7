"""How long commands wait, and what a fleet does while it has none."""

import time
from collections.abc import Sequence
from functools import partial
from statistics import median, quantiles

from benches import bare, cpu
from benches.comparison import Comparison, Found, Place, rate_of
from benches.crews import Crew, crew
from benches.fleet import DOMAIN, TYPE, Fleet, fleet, nothing, show_start, sleep
from benches.yard import DATA, Yard, commands, yard
from cmdbus.handlers import HandlerFunction
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.ids import new_id

SLOW = "Slow"

#: Of --commands.
_IO_PART, _MIXED_PART, _LATENCY_PART = 20, 10, 80

_IO_S, _IO_PROCESSES, _IO_THREADS = 0.02, 2, 16
_SLOW_ONE_IN = 100
_MIXED_BOUND_MS = 100.0
#: Seconds between sends: the worker has settled, looked again, and rests.
REST_S = 0.02
_ANSWER_S = 60.0

#: Of --seconds. A session that falls idle reports its statistics up to 10 s later.
_MIXED_TIMES, _STATISTICS_TIMES, _IDLE_TIMES = 10, 11, 10
#: Autovacuum comes once a minute, so that the median of three windows does not show it.
_IDLE_THREADS, _WINDOWS = 32.0, 3

_SPAN = """
    SELECT min((result ->> 0)::float8), max((result ->> 1)::float8)
    FROM cmdbus.finished WHERE type = %s"""
_CLAIM_TO_START = """
    SELECT percentile_cont(%s::float8[]) WITHIN GROUP (ORDER BY
        1000 * ((result #>> '{}')::float8 - extract(epoch FROM claimed_at)::float8))
    FROM cmdbus.finished WHERE type = %s"""
#: In the order of sending.
SEND_TO_START = """
    SELECT 1000 * ((result #>> '{}')::float8 - (data ->> 'sent')::float8)
    FROM cmdbus.finished WHERE type = %s ORDER BY (data ->> 'sent')::float8"""


def io(slot: Place) -> Found:
    """Handlers that sleep 20 ms in a fleet of 2 x 16 that was just started, against as many
    threads that only sleep; both from the first start to the last end."""
    count = max(_IO_PROCESSES * _IO_THREADS, slot.sizes.commands // _IO_PART)
    with (
        yard(slot) as here,
        crew(_IO_PROCESSES, bare.sleepers, _IO_THREADS, _IO_S) as sleepers,
    ):
        pairs = slot.rounds(partial(_sleep, sleepers, count), partial(_io, here, count))
    configuration = {
        "commands": count,
        "handler_s": _IO_S,
        "processes": _IO_PROCESSES,
        "threads": _IO_THREADS,
    }
    return {"io": Comparison(pairs=[(a, b) for a, b in pairs], configuration=configuration)}


def _sleep(sleepers: Crew, count: int) -> float:
    each = count // _IO_PROCESSES
    sleepers.order(each)
    began, ended = zip(*sleepers.answers(_ANSWER_S + each * _IO_S), strict=True)
    return each * _IO_PROCESSES / float(max(ended) - min(began))


def _io(here: Yard, count: int) -> float:
    handlers = {TYPE: partial(sleep, _IO_S)}
    with fleet(here.slot.dsn, handlers, processes=_IO_PROCESSES, threads=_IO_THREADS) as running:
        here.drain(running, commands(count))
        began, ended = here.connection.execute(_SPAN, (TYPE,)).fetchall()[0]
    return count / float(ended - began)


def latency(slot: Place) -> Found:
    """From before the send to the handler's first line in an idle fleet of 2 x 8 (p50), against
    the bare floor, in alternation: from before an INSERT with a NOTIFY to the end of the claim in
    another process that listens. CPU is that of the fleet and of its and the sender's backends,
    against that of the other process and its backend."""
    count = max(slot.sizes.rounds, slot.sizes.commands // _LATENCY_PART)
    with yard(slot) as here, crew(1, bare.claimer, slot.dsn) as claimer:
        theirs = here.server()
        with fleet(slot.dsn, {TYPE: show_start}, processes=2, threads=8) as running:
            bare.create_plain(here.connection)
            here.clear()
            before = cpu.read([*claimer.pids, *running.pids(), *here.server()])
            floors = _send_in_turns(here, claimer, count)
            here.await_end(DOMAIN, running.check)
            server = here.server()
            spent = [
                cpu.spent(before, cpu.read(pids))
                for pids in (
                    [*claimer.pids, *theirs],
                    [*running.pids(), *(pid for pid in server if pid not in theirs)],
                )
            ]
            ours = [ms for (ms,) in here.connection.execute(SEND_TO_START, (TYPE,)).fetchall()]
    configuration = {
        "commands": count,
        "p99_ms": _p99(ours),
        "floor_p99_ms": _p99(floors),
        "processes": 2,
        "threads": 8,
    }
    of_rounds = zip(_medians(floors, slot), _medians(ours, slot), strict=True)
    pairs = {"latency": list(of_rounds)}
    if server:
        floor_us, our_us = (1e6 * seconds / count for seconds in spent)
        pairs["latency-cpu"] = [(floor_us, our_us)]
    return {
        name: Comparison(pairs=each, configuration=configuration, less=True)
        for name, each in pairs.items()
    }


def _send_in_turns(here: Yard, claimer: Crew, count: int) -> list[float]:
    """Commands and bare rows; returns the times of the rows in milliseconds."""
    floors = []
    for number in range(count):
        rest = REST_S + number % 10 / 1000
        claimer.order()
        time.sleep(rest)
        floors.append(_floor_ms(here, claimer))
        time.sleep(rest)
        here.send(TYPE, {"sent": time.time()})
    return floors


def _floor_ms(here: Yard, claimer: Crew) -> float:
    began = time.time()
    values = {"id": new_id(), "data": '{"sent": 1700000000.123456}'}
    here.connection.execute(bare.INSERT_AND_NOTIFY, values, prepare=True)
    [claimed] = claimer.answers(_ANSWER_S)
    return 1000 * (float(claimed) - began)


def _medians(times: Sequence[float], slot: Place) -> list[float]:
    """Of each round's share."""
    rounds = slot.sizes.rounds
    return [median(times[number::rounds]) for number in range(rounds)]


def _p99(times: Sequence[float]) -> float:
    return round(quantiles([*times, *times], n=100)[-1], 2)


def mixed(slot: Place) -> Found:
    """Claim to start (p99) of quick handlers, at half of the rate at which the slots of
    2 x 8 are full with one handler of 2 s (2 x --seconds) among 100; against 100 ms."""
    seconds = slot.sizes.seconds
    slow_s = 2 * seconds
    handlers: dict[str, HandlerFunction] = {TYPE: show_start, SLOW: partial(sleep, slow_s)}
    count = max(_SLOW_ONE_IN, slot.sizes.commands // _MIXED_PART)
    with yard(slot) as here, fleet(slot.dsn, handlers, processes=2, threads=8) as running:
        mixture = [(SLOW if not n % _SLOW_ONE_IN else TYPE) for n in range(count)]
        requests = [request for type_ in mixture for request in commands(1, type_=type_)]
        capacity = here.drain(running, requests).rate
        here.clear()
        sent = _pace(here, running, capacity / 2, _MIXED_TIMES * seconds)
        p50, p99 = here.value(_CLAIM_TO_START, [0.5, 0.99], TYPE)
    configuration = {
        "capacity": round(capacity, 1),
        "capacity_bound_by": f"slots: 16 / ({slow_s:g} s / {_SLOW_ONE_IN})",
        "sent_per_s": round(sent, 1),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "slow_s": slow_s,
        "processes": 2,
        "threads": 8,
        "rounds": 1,
    }
    pairs = [(_MIXED_BOUND_MS, p99)]
    return {"mixed": Comparison(pairs=pairs, configuration=configuration, less=True)}


def _pace(here: Yard, running: Fleet, rate: float, seconds: float) -> float:
    """Sends one by one, each at its time, every hundredth slow; returns the rate reached."""
    began = time.monotonic()
    count = max(_SLOW_ONE_IN, int(rate * seconds))
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        here.send(SLOW if not number % _SLOW_ONE_IN else TYPE, DATA)
    reached = count / (time.monotonic() - began)
    here.await_end(DOMAIN, running.check)
    return reached


def call(slot: Place) -> Found:
    """Calls one after the other to an idle fleet of 2 x 8, against sends, each with a wait for the
    command's end."""
    with (
        yard(slot),
        fleet(slot.dsn, {TYPE: nothing}, processes=2, threads=8),
        CommandBus(slot.dsn) as bus,
    ):

        def send_and_wait() -> None:
            bus.wait(DOMAIN, bus.send(DOMAIN, TYPE, DATA))

        pairs = slot.alternate(
            partial(rate_of, send_and_wait), partial(rate_of, lambda: bus.call(DOMAIN, TYPE, DATA))
        )
    return {"call": Comparison(pairs=pairs, configuration={"processes": 2, "threads": 8})}


def idle(slot: Place) -> Found:
    """What a fleet of 4 x 8 sends while there is nothing to do, against one whose
    threads each ask once a second. Counted are transactions, of which each statement of a
    resting fleet is one."""
    with yard(slot) as here, fleet(slot.dsn, {TYPE: nothing}, processes=4, threads=8):
        return {"idle": idle_windows(here)}


def idle_windows(here: Yard, **configuration: object) -> Comparison:
    """Of a fleet of 4 x 8, which has settled all that it ran."""
    seconds = here.slot.sizes.seconds
    time.sleep(_STATISTICS_TIMES * seconds)
    window_s = _IDLE_TIMES * seconds
    # At least one, so that there is a ratio.
    counts = [max(1, here.transactions_within(window_s)) for _ in range(_WINDOWS)]
    configuration |= {
        "counted": "xact_commit + xact_rollback of pg_stat_database: the bench's own are "
        "not in it, autovacuum's are",
        "windows_s": [window_s] * _WINDOWS,
        "processes": 4,
        "threads": 8,
        "rounds": _WINDOWS,
    }
    pairs = [(_IDLE_THREADS, count / window_s) for count in counts]
    return Comparison(pairs=pairs, configuration=configuration, less=True)
