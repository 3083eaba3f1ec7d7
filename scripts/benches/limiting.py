"""What limits cost: the drain of many keys, one key in order, tenants side by side, and keys that
wait."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import median, quantiles
from typing import Any

import psycopg

from benches import bare
from benches.comparison import Comparison, Found, Place
from benches.crews import crew
from benches.fleet import DOMAIN, TYPE, Fleet, fleet, nothing, show_start, sleep
from benches.waiting import REST_S, SEND_TO_START, idle_windows
from benches.yard import BARE, DATA, Drained, Yard, commands, part, rates_and_cpu, yard
from cmdbus.database import schema
from cmdbus.handlers import HandlerFunction
from cmdbus.producer.requests import SendRequest
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import ClaimRequest, LaneRequest
from cmdbus.worker.claims.claim_statements import ClaimStatements

OTHER = "Other"

_PROCESSES, _THREADS = 2, 8
_KEYS, _PLACES = 1_000, 5
#: Of --commands.
_KEYED_PART, _ORDERED_PART, _LATENCY_PART, _WAITING_TIMES = 2, 20, 200, 2.5
#: Commands of one key that must run in a second.
_ORDERED_RATE = 200.0
#: Seconds of a handler, commands sent together, and the part of --seconds.
_FAIR_S, _FEW, _FAIR_TIMES = 0.01, 10, 3
_CLAIMED_AT_ONCE, _CLAIMS = 8, 50

_STARTS = "SELECT (result ->> 0)::float8 FROM cmdbus.finished WHERE key = %s"
_OF_KEY = """
    SELECT FROM cmdbus.ready WHERE key = %(key)s
    UNION ALL SELECT FROM cmdbus.limited WHERE key = %(key)s"""
_CLAIMED = "SELECT FROM cmdbus.ready WHERE claimer IS NOT NULL"
_HAS_TURNS = "SELECT FROM cmdbus.turn"
_VACUUM = "VACUUM cmdbus.ready, cmdbus.limited, cmdbus.turn, cmdbus.lane"
_WAITING = "SELECT count(*) FROM cmdbus.limited"


def keyed(slot: Place) -> Found:
    """The drain of commands (--commands / 2) of 1,000 keys with a limit of five at once for each,
    against the drain of as many without a limit by the same fleet of 2 x 8."""
    plain = commands(max(1, slot.sizes.commands // _KEYED_PART))
    limited = keyed_commands(len(plain), _KEYS)
    with yard(slot) as here, _fleet(slot) as running:

        def drain_keys(seconds: float) -> Drained:
            here.clear()
            with limit(here, concurrency=_PLACES):
                return here.drain(running, part(slot, limited, seconds))

        pairs = slot.alternate(
            lambda seconds: here.drain(running, part(slot, plain, seconds)), drain_keys
        )
    return rates_and_cpu(
        "keyed", pairs, commands=len(plain), keys=_KEYS, places=_PLACES, **_configuration()
    )


def ordered(slot: Place) -> Found:
    """Commands (--commands / 20) of one ordered key, one after the other in a fleet of 2 x 8,
    against 200 a second; and against a bare loop that settles one and claims the next in one
    statement."""
    count = max(1, slot.sizes.commands // _ORDERED_PART)
    requests, bare_requests = keyed_commands(count, 1), commands(count, domain=BARE)
    with (
        yard(slot) as here,
        crew(1, bare.loop, slot.dsn, 1) as loop,
        limit(here, ordered=True),
        _fleet(slot) as running,
    ):
        pairs = slot.alternate(
            lambda seconds: here.drain_bare(loop, part(slot, bare_requests, seconds)).rate,
            lambda seconds: here.drain(running, part(slot, requests, seconds)).rate,
        )
    configuration = {"commands": count, **_configuration()}
    due = [(_ORDERED_RATE, rate) for _, rate in pairs]
    return {
        "ordered": Comparison(pairs=due, configuration=configuration),
        "ordered-of-bare": Comparison(pairs=pairs, configuration=configuration),
    }


def fair(slot: Place) -> Found:
    """Send to start (p99) of the commands of a tenant that sends ten at a time, with handlers of
    10 ms and fair=True in a fleet of 2 x 8, alone, against the same while 100,000 commands
    (2.5 x --commands) of another tenant wait."""
    waiting = keyed_commands(int(slot.sizes.commands * _WAITING_TIMES), 1)
    handlers = {TYPE: partial(sleep, _FAIR_S)}
    with (
        yard(slot) as here,
        limit(here, fair=True),
        fleet(slot.dsn, handlers, processes=_PROCESSES, threads=_THREADS) as running,
    ):
        seconds = _FAIR_TIMES * slot.sizes.seconds
        pairs = []
        for _ in range(slot.sizes.rounds):
            alone = _start_ms(here, running, seconds)
            here.bus.send_many(waiting)
            pairs.append((alone, _start_ms(here, running, seconds)))
            here.bus.pause(DOMAIN)
            here.await_none(_CLAIMED, check=running.check)
            here.clear()
            here.bus.resume(DOMAIN)
    configuration = {"handler_s": _FAIR_S, "few": _FEW, "waiting": len(waiting)}
    comparison = Comparison(
        pairs=pairs, configuration={**configuration, **_configuration()}, less=True
    )
    return {"fair": comparison}


def _start_ms(here: Yard, running: Fleet, seconds: float) -> float:
    """The p99 of a key whose commands are sent when those before have ended."""
    began = time.time()
    times: list[float] = []
    while not times or time.time() < began + seconds:
        key, sent = f"few-{time.monotonic_ns()}", time.time()
        here.bus.send_many([SendRequest(DOMAIN, TYPE, DATA, key=key)] * _FEW)
        here.await_none(_OF_KEY, key=key, check=running.check)
        starts = here.connection.execute(_STARTS, (key,)).fetchall()
        times += [1000 * (start - sent) for (start,) in starts]
    return quantiles([*times, *times], n=100)[-1]


def limited_latency(slot: Place) -> Found:
    """From before the send to the handler's first line in an idle fleet of 2 x 8 (p50), of a type
    with a limit of five at once, against the same without a limit."""
    count = max(1, slot.sizes.commands // _LATENCY_PART)
    handlers: dict[str, HandlerFunction] = {TYPE: show_start}
    with (
        yard(slot) as here,
        fleet(slot.dsn, handlers, processes=_PROCESSES, threads=_THREADS) as running,
    ):

        def wait_ms(seconds: float) -> float:
            here.clear()
            for _ in range(max(1, int(count * seconds / slot.sizes.seconds))):
                time.sleep(REST_S)
                here.send(TYPE, {"sent": time.time()})
            here.await_end(DOMAIN, running.check)
            rows = here.connection.execute(SEND_TO_START, (TYPE,)).fetchall()
            return float(median(ms for (ms,) in rows))

        def limited_ms(seconds: float) -> float:
            with limit(here, concurrency=_PLACES):
                return wait_ms(seconds)

        pairs = slot.alternate(wait_ms, limited_ms)
    configuration = {"commands": count, "places": _PLACES, **_configuration()}
    comparison = Comparison(pairs=pairs, configuration=configuration, less=True)
    return {"limited-latency": comparison}


def limited_idle(slot: Place) -> Found:
    """What a fleet of 4 x 8 sends while each of 100,000 keys (2.5 x --commands) has a command that
    waits for its limit, against one whose threads each ask once a second. And the time of a claim
    of eight commands of another type of their domain, after a vacuum, against that of the same
    claim before."""
    keys = max(1, int(slot.sizes.commands * _WAITING_TIMES))
    statements = ClaimStatements(schema.DEFAULT, Timeouts().lease)
    with yard(slot) as here, slot.connect() as connection, limit(here, rate="1/day"):
        statements.register(connection, "bench")
        here.bus.send_many(commands(_CLAIMED_AT_ONCE, type_=OTHER))

        def claim_ms() -> float:
            return median(_claim_ms(statements, connection) for _ in range(_CLAIMS))

        before = [claim_ms() for _ in range(slot.sizes.rounds)]
        with fleet(slot.dsn, {TYPE: nothing}, processes=4, threads=8) as running:
            here.bus.send_many(keyed_commands(2 * keys, keys))
            here.await_none(_HAS_TURNS, check=running.check)
            here.await_none(_CLAIMED, check=running.check)
            waiting = here.value(_WAITING)
            if waiting != keys:
                raise RuntimeError(f"{waiting} commands wait, not one of each of {keys} keys")
            connection.execute(_VACUUM)
            claims = [(one, claim_ms()) for one in before]
            windows = idle_windows(here, keys=keys)
    return {
        "limited-idle": windows,
        "limited-claim": Comparison(pairs=claims, configuration={"keys": keys}, less=True),
    }


def _claim_ms(statements: ClaimStatements, connection: psycopg.Connection) -> float:
    limited = LaneRequest([f"{DOMAIN} {TYPE}"], [], [], 4, 0, {}, True)
    request = ClaimRequest(
        _CLAIMED_AT_ONCE, 0, [DOMAIN], [f"{DOMAIN} {OTHER}"], [], {}, lanes=limited
    )
    with connection.transaction(force_rollback=True):
        began = time.perf_counter()
        _, claims = statements.settle_and_claim(connection, [], request)
        took = 1000 * (time.perf_counter() - began)
    assert len(claims) == _CLAIMED_AT_ONCE
    return took


@contextmanager
def limit(here: Yard, **options: Any) -> Iterator[None]:
    """Of the type that is measured."""
    here.bus.limits.set(DOMAIN, TYPE, **options)
    yield
    here.bus.limits.clear(DOMAIN, TYPE)


def keyed_commands(count: int, keys: int) -> list[SendRequest]:
    return [
        SendRequest(DOMAIN, TYPE, DATA, key=f"tenant-{number % keys}") for number in range(count)
    ]


def _fleet(slot: Place) -> AbstractContextManager[Fleet]:
    return fleet(slot.dsn, {TYPE: nothing}, processes=_PROCESSES, threads=_THREADS)


def _configuration() -> dict[str, object]:
    return {"processes": _PROCESSES, "threads": _THREADS}
