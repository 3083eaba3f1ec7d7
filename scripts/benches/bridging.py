"""What bridges cost: messages of PGMQ that become commands, and commands that become messages."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from random import uniform
from statistics import median

from lab.pgmq_schema import MISSING, has_pgmq

from benches import cpu, queues
from benches.comparison import Comparison, Found, Place
from benches.crews import crew
from benches.fleet import DOMAIN, TYPE, Fleet, fleet, nothing, show_start
from benches.queues import BATCH
from benches.waiting import SEND_TO_START
from benches.yard import Cost, Yard, commands, rates_and_cpu, yard
from cmdbus.handlers import HandlerFunction

#: No fleet handles its commands.
BRIDGED = "bridged"
_IN, _OUT = "bench_in", "bench_out"
_PROCESSES, _THREADS = 2, 8
_SIZES = {"processes": _PROCESSES, "threads": _THREADS}
#: Divisors of --commands, and the smallest number of batches of a round.
_PART, _LATENCY_PART, _MIN_BATCHES = 2, 8_000, 3
#: Seconds of rest before a message: a bridge looks ever more rarely.
_RESTS_S = (0.5, 1.5)

_LAST = "SELECT max(msg_id) FROM pgmq.q_bench_in"
_IS_QUEUED = "SELECT FROM pgmq.q_bench_in WHERE msg_id = %(number)s"
#: Rows, and the seconds from the first batch to the last.
_MADE = """
    SELECT count(*), extract(epoch FROM max(created_at) - min(created_at))
    FROM cmdbus.ready WHERE domain = %s"""
_WRITTEN = """
    SELECT count(*), extract(epoch FROM max(enqueued_at) - min(enqueued_at))
    FROM pgmq.q_bench_out"""
_WAITS = f"""
    SELECT FROM pgmq.q_bench_in
    UNION ALL SELECT FROM cmdbus.ready WHERE domain = '{DOMAIN}'"""
_HANDLED = """
    SELECT count(*), extract(epoch FROM max(finished_at) - min(created_at))
    FROM cmdbus.finished WHERE domain = %s AND status = 'COMPLETED'"""
_SEND = "SELECT pgmq.send(%s, jsonb_build_object('sent', %s::float8))"
_NOTIFY = "SELECT pgmq.enable_notify_insert('bench_in', 0)"
_SEND_TO_MESSAGE = """
    SELECT 1000 * (extract(epoch FROM enqueued_at) - (message ->> 'sent')::float8)::float8
    FROM pgmq.q_bench_out ORDER BY msg_id"""


def _of_pgmq(measure: Callable[[Place], Found]) -> Callable[[Place], Found]:
    @wraps(measure)
    def measured(slot: Place) -> Found:
        if has_pgmq():
            return measure(slot)
        print(f"{measure.__name__}: {MISSING}", file=sys.stderr)
        return {}

    return measured


@_of_pgmq
def bridge(slot: Place) -> Found:
    """A steward moves messages (--commands / 2), 100 at a time, into commands that no fleet
    handles, against a loop of pgmq.read and pgmq.delete of 100 at a time. CPU is that of all
    processes and backends."""
    count = _count(slot)
    with (
        _prepared(slot) as here,
        crew(1, queues.reading, slot.dsn, _IN) as loop,
        fleet(slot.dsn, {TYPE: nothing}, processes=1, threads=1) as running,
    ):

        def read(seconds: float) -> Cost:
            queues.fill(here, _IN, part := _part(slot, count, seconds))
            return queues.move_bare(here, loop, part)

        pairs = slot.alternate(
            read, lambda seconds: _move_in(here, running, _part(slot, count, seconds))
        )
    return rates_and_cpu("bridge", pairs, messages=count, batch=BATCH)


def _move_in(here: Yard, running: Fleet, count: int) -> Cost:
    here.clear()
    queues.fill(here, _IN, count)
    last = here.value(_LAST)
    before = cpu.read([*running.pids(), *here.server()])
    with _bridge(here, _IN, BRIDGED, type_=TYPE):
        here.await_none(_IS_QUEUED, number=last, check=running.check)
        spent = queues.cpu_us(here, before, running.pids(), count)
    return Cost(_rate(here, _MADE, BRIDGED), spent)


@_of_pgmq
def bridge_out(slot: Place) -> Found:
    """A steward moves commands (--commands / 2), 100 at a time, into messages, against a loop of
    pgmq.send_batch of 100 at a time, of messages that it has."""
    count = _count(slot)
    with (
        _prepared(slot) as here,
        crew(1, queues.writing, slot.dsn, _OUT) as loop,
        fleet(slot.dsn, {TYPE: nothing}, processes=1, threads=1) as running,
    ):

        def write(seconds: float) -> Cost:
            queues.clear(here, _OUT)
            return queues.move_bare(here, loop, _part(slot, count, seconds))

        pairs = slot.alternate(
            write, lambda seconds: _move_out(here, running, _part(slot, count, seconds))
        )
    return rates_and_cpu("bridge-out", pairs, messages=count, batch=BATCH)


def _move_out(here: Yard, running: Fleet, count: int) -> Cost:
    here.clear()
    queues.clear(here, _OUT)
    here.bus.send_many(commands(count, domain=BRIDGED))
    before = cpu.read([*running.pids(), *here.server()])
    with _bridge(here, _OUT, BRIDGED):
        here.await_end(BRIDGED, running.check)
        spent = queues.cpu_us(here, before, running.pids(), count)
    return Cost(_rate(here, _WRITTEN), spent)


@_of_pgmq
def bridge_drain(slot: Place) -> Found:
    """The same messages are handled by a fleet of 2 x 8 whose steward moves them, from the first
    move to the last end, against the drain of as many commands that wait."""
    count = _count(slot)
    with _prepared(slot) as here, _fleet(slot, nothing) as running:

        def handle(seconds: float) -> float:
            here.clear()
            queues.fill(here, _IN, part := _part(slot, count, seconds))
            last = here.value(_LAST)
            with _bridge(here, _IN, DOMAIN, type_=TYPE):
                here.await_none(_IS_QUEUED, number=last, check=running.check)
                here.await_end(DOMAIN, running.check)
            handled, took = here.connection.execute(_HANDLED, (DOMAIN,)).fetchall()[0]
            if handled != part:
                raise RuntimeError(f"of {part} messages {handled} were handled")
            return float(handled / took)

        pairs = slot.alternate(
            lambda seconds: here.drain(running, commands(_part(slot, count, seconds))).rate, handle
        )
    configuration = {"messages": count, "batch": BATCH, **_SIZES}
    return {"bridge-drain": Comparison(pairs=pairs, configuration=configuration)}


@_of_pgmq
def bridge_latency(slot: Place) -> Found:
    """From before pgmq.send to the handler's first line in an idle fleet of 2 x 8 (p50), against
    the same from before the send of a command. PGMQ notifies of messages; in bridge-latency-polled
    it does not."""
    polled = _latency(slot)
    return {"bridge-latency": _latency(slot, [_NOTIFY]), "bridge-latency-polled": polled}


def _latency(slot: Place, settings: Sequence[str] = ()) -> Comparison:
    with (
        _prepared(slot) as here,
        _fleet(slot, show_start) as running,
        _bridge(here, _IN, DOMAIN, type_=TYPE),
    ):
        for each in settings:
            here.connection.execute(each)

        def wait_ms(send: Callable[[], object]) -> float:
            here.clear()
            _send_rarely(slot, send, lambda: here.await_none(_WAITS, check=running.check))
            rows = here.connection.execute(SEND_TO_START, (TYPE,)).fetchall()
            return float(median(ms for (ms,) in rows))

        pairs = slot.alternate(
            lambda _: wait_ms(lambda: here.send(TYPE, {"sent": time.time()})),
            lambda _: wait_ms(lambda: here.connection.execute(_SEND, (_IN, time.time()))),
        )
    return _waits(slot, pairs)


@_of_pgmq
def bridge_out_latency(slot: Place) -> Found:
    """From before the send of a command to the transaction that makes a message of it (p50), in an
    idle fleet of 2 x 8, against the same to the handler's first line."""
    with _prepared(slot) as here, _fleet(slot, show_start) as running, _bridge(here, _OUT, BRIDGED):

        def handled_ms(_: float) -> float:
            here.clear()
            _send_rarely(
                slot,
                lambda: here.send(TYPE, {"sent": time.time()}),
                lambda: here.await_none(_WAITS, check=running.check),
            )
            rows = here.connection.execute(SEND_TO_START, (TYPE,)).fetchall()
            return float(median(ms for (ms,) in rows))

        def moved_ms(_: float) -> float:
            here.clear()
            queues.clear(here, _OUT)
            _send_rarely(
                slot,
                lambda: here.bus.send(BRIDGED, TYPE, {"sent": time.time()}),
                lambda: here.await_end(BRIDGED, running.check),
            )
            rows = here.connection.execute(_SEND_TO_MESSAGE).fetchall()
            return float(median(ms for (ms,) in rows))

        pairs = slot.alternate(handled_ms, moved_ms)
    return {"bridge-out-latency": _waits(slot, pairs)}


def _send_rarely(slot: Place, send: Callable[[], object], wait: Callable[[], None]) -> None:
    for _ in range(_rare(slot)):
        time.sleep(uniform(*_RESTS_S))
        send()
        wait()


def _rare(slot: Place) -> int:
    return max(1, slot.sizes.commands // _LATENCY_PART)


def _waits(slot: Place, pairs: list[tuple[float, float]]) -> Comparison:
    configuration = {"messages": _rare(slot), **_SIZES}
    return Comparison(pairs=pairs, configuration=configuration, less=True)


@contextmanager
def _prepared(slot: Place) -> Iterator[Yard]:
    with yard(slot) as here:
        queues.create(here, _IN, _OUT)
        yield here


def _fleet(slot: Place, handler: HandlerFunction) -> AbstractContextManager[Fleet]:
    return fleet(slot.dsn, {TYPE: handler}, processes=_PROCESSES, threads=_THREADS)


@contextmanager
def _bridge(here: Yard, queue: str, domain: str, type_: str | None = None) -> Iterator[None]:
    """Inwards, if commands get a type."""
    direction = "out" if type_ is None else "in"
    here.bus.bridges.add(queue, domain, type_, direction=direction, batch_size=BATCH)
    yield
    here.bus.bridges.remove(f"{queue}-{direction}")


def _rate(here: Yard, query: str, *values: object) -> float:
    """Without the first batch, which began before its time."""
    moved, seconds = here.connection.execute(query, values).fetchall()[0]
    return float((moved - BATCH) / seconds)


def _count(slot: Place) -> int:
    return max(_MIN_BATCHES * BATCH, slot.sizes.commands // _PART)


def _part(slot: Place, count: int, seconds: float) -> int:
    """All of them in a round of full length."""
    return max(_MIN_BATCHES * BATCH, int(count * seconds / slot.sizes.seconds))
