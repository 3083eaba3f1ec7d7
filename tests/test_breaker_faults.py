"""Breakers in workers while something fails: lost notifications, locks, errors, an outage, threads
that a handler leaves behind, and stops."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import psycopg
import pytest
from eventually import eventually, stays
from handlers import Gate, beside, connect, found, running
from other_side import (
    LATER,
    OtherSide,
    await_state,
    bound_to,
    break_it,
    calling,
    scalar_of,
    send,
    state,
)
from proxy import Proxy
from queries import end_listening_sessions, rows
from test_breaker_states import report
from test_floors import claim

from cmdbus import (
    Breaker,
    BreakerOpenError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    SendRequest,
)
from cmdbus.clock import time
from cmdbus.worker import Worker
from cmdbus.worker.breakers.claimed_probes import ClaimedProbes
from cmdbus.worker.claims import pools
from cmdbus.worker.claims.claim import Claim, fence_of

Logs = pytest.LogCaptureFixture
#: Seconds; a thread that waits for a session of the pool waits for 30.
WITHIN_S = 20


@pytest.fixture
def other() -> OtherSide:
    return OtherSide()


def test_a_change_that_no_session_heard_of_is_read_after_the_next_one_listens(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection
) -> None:
    with calling(dsn, other):
        bus.wait("payments", bus.send("payments", "Charge"), 20)
        # As if its notification was lost.
        connection.execute("SET cmdbus.notify = off")
        connection.execute("SELECT cmdbus.steer_breaker('stripe', 'open', 'ann', NULL)")
        end_listening_sessions(dsn)
        made = len(other.calls)

        def is_kept() -> bool:
            sent = bus.send("payments", "Charge")
            bus.wait("payments", bus.send("payments", "Noop"), 20)
            return found(bus, sent).status == "PENDING"

        eventually(is_kept)
        made = len(other.calls)
        send(bus, count=3)
        stays(lambda: len(other.calls) == made, 0.2)


def test_while_the_database_is_away_a_call_is_decided_by_what_was_seen_last(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """Soon, also where a cooldown has ended and a probe's place cannot be had."""
    gates, decided = {name: Gate() for name in ("open", "closed")}, list[str]()
    registry = HandlerRegistry()
    for name in gates:
        registry.breaker(Breaker(name, cooldown=0.3))

    def call(command: Command, context: Context) -> None:
        gates[command.data](command, context)
        began = time.monotonic()
        try:
            with context.breaker(command.data):
                decided.append(f"{command.data}: called")
        except BreakerOpenError:
            decided.append(f"{command.data}: denied")
        assert time.monotonic() - began < WITHIN_S

    registry.register("payments", "Ask", call, retry=LATER)
    with Proxy(dsn) as proxy, running(proxy.dsn, registry, concurrency=2):
        eventually(lambda: len(bus.breakers.list()) == 2)
        with psycopg.connect(dsn, autocommit=True) as connection:
            report(connection, name="open", failed_ago=[0] * 5)
        bus.send_many([SendRequest("payments", "Ask", name) for name in gates])
        for gate in gates.values():
            gate.wait_for(1)
        eventually(lambda: scalar_of(dsn, "count(*) FILTER (WHERE retry_at < now())") == 1)
        with proxy.away():
            for gate in gates.values():
                gate.open.set()
            eventually(lambda: len(decided) == 2, WITHIN_S)
            assert sorted(decided) == ["closed: called", "open: denied"]
        eventually(lambda: len(bus.query(status="COMPLETED")) == 2, 20)


def test_a_worker_stops_while_a_breaker_is_open(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, cooldown=600) as worker:
        break_it(dsn, bus, other, worker)
        send(bus, count=5)
        with beside(worker.stop):
            pass
    assert rows(dsn, "SELECT count(*) FROM cmdbus.ready WHERE claimer IS NOT NULL") == [(0,)]


def test_a_change_of_which_nothing_is_heard_is_read_with_a_later_claim(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection
) -> None:
    """Although a session listens; also that it is closed again."""
    connection.execute("SET cmdbus.notify = off")
    with calling(dsn, other):
        bus.wait("payments", bus.send("payments", "Charge"), 20)
        connection.execute("SELECT cmdbus.steer_breaker('stripe', 'open', 'ann', NULL)")

        def status_of_one() -> str:
            sent = bus.send("payments", "Charge")
            bus.wait("payments", bus.send("payments", "Noop"), 20)
            return str(found(bus, sent).status)

        eventually(lambda: status_of_one() == "PENDING", WITHIN_S)
        connection.execute("SELECT cmdbus.steer_breaker('stripe', 'close', 'ann', NULL)")
        eventually(lambda: status_of_one() == "COMPLETED", WITHIN_S)


def seconds_of_calls(bus: CommandBus, count: int) -> float:
    began = time.monotonic()
    for _ in range(count):
        bus.call("payments", "Noop")
    return time.monotonic() - began


def test_an_error_of_their_statements_stops_no_claims_and_is_tried_again(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection, caplog: Logs
) -> None:
    functions = ["report_calls(json)", "lock_probes(text)"]
    with calling(dsn, other, cooldown=0.1):
        bus.wait("payments", bus.send("payments", "Noop"), 20)
        for function in functions:
            connection.execute(f"ALTER FUNCTION cmdbus.{function} SET SCHEMA public".encode())
        other.fail()
        send(bus, count=5)
        for _ in range(5):
            bus.call("payments", "Noop")
        eventually(lambda: len(other.calls) == 5)
        connection.execute(f"ALTER FUNCTION public.{functions[0]} SET SCHEMA cmdbus".encode())
        await_state(dsn, "OPEN")
        other.error = None
        send(bus)
        eventually(lambda: scalar_of(dsn, "retry_at < clock_timestamp()"))
        assert any(seconds_of_calls(bus, 5) < 1.0 for _ in range(3))
        connection.execute(f"ALTER FUNCTION public.{functions[1]} SET SCHEMA cmdbus".encode())
        await_state(dsn, "CLOSED")
    warnings = [
        each.getMessage() for each in caplog.records if "breakers hold" in each.getMessage()
    ]
    assert len(warnings) == 2, warnings


@contextmanager
def reading_blocked(dsn: str, worker: Worker) -> Iterator[None]:
    """A thread that reads the states again must wait; each must read."""
    with connect(dsn) as locking:
        locking.execute("BEGIN; LOCK TABLE cmdbus.breaker IN ACCESS EXCLUSIVE MODE")
        worker._telemetry.board.breaker_changes += 1
        yield


def test_while_one_thread_reads_the_states_other_calls_rely_on_those_before(
    dsn: str, bus: CommandBus, other: OtherSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_LOCK_TIMEOUT", 60.0)  # The one that reads waits until the end.
    gate = Gate()

    def call(command: Command, context: Context) -> None:
        gate(command, context)
        with context.breaker("stripe"):
            other()

    registry = bound_to(other)
    registry.register("payments", "Within", call)
    with running(dsn, registry, concurrency=4) as worker:
        send(bus, "Within", 4)
        gate.wait_for(4)
        with reading_blocked(dsn, worker):
            gate.open.set()
            eventually(lambda: len(other.calls) >= 3, 5)
        eventually(lambda: len(other.calls) == 4)


def seconds_of_use(context: Context) -> float:
    began = time.monotonic()
    context.extend(5)
    context.connection.execute("SELECT 1")
    return time.monotonic() - began


def test_a_thread_that_waits_for_the_states_keeps_no_other_one_of_its_handler(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """From more time, from its connection, and from its end."""
    gate, done = Gate(), list[str]()

    def call(command: Command, context: Context) -> None:
        def one() -> None:
            gate(command, context)
            with context.breaker("stripe"):
                other()

        with beside(one):
            gate.wait_for(1)
            with reading_blocked(dsn, worker):
                gate.open.set()
                query = "SELECT FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
                eventually(lambda: rows(dsn, query, "cmdbus.breaker"))
                assert any(seconds_of_use(context) < 0.5 for _ in range(3))
        done.append("done")

    registry = bound_to(other)
    registry.register("payments", "Within", call)
    with running(dsn, registry) as worker:
        bus.wait("payments", bus.send("payments", "Within"), 10)
    assert done == ["done"]


def test_a_thread_that_outlives_its_handler_is_refused(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """And takes no session away from the next command."""
    returned, refused = threading.Event(), list[BaseException]()
    threads: list[threading.Thread] = []

    def leave(command: Command, context: Context) -> None:
        def later() -> None:
            returned.wait(10)
            try:
                with context.breaker("stripe"):
                    other()
            except BaseException as error:
                refused.append(error)

        threads.append(threading.Thread(target=later))
        threads[0].start()

    def follow(command: Command, context: Context) -> None:
        context.connection.execute("SELECT 1")
        returned.set()
        threads[0].join(10)
        context.connection.execute("SELECT 2")

    registry = bound_to(other)
    registry.register("payments", "Leave", leave)
    registry.register("payments", "Follow", follow)
    with running(dsn, registry, concurrency=1):
        bus.wait("payments", bus.send("payments", "Leave"), 20)
        bus.breakers.open("stripe")
        sent = bus.send("payments", "Follow", max_attempts=1)
        assert bus.wait("payments", sent, 20).status == "COMPLETED"
    assert [str(error)[:60] for error in refused] == [
        "context.breaker() was used after the handler returned: make "
    ]
    assert not other.calls


def test_probes_are_forgotten_while_others_are_claimed() -> None:
    probes, stopping = ClaimedProbes(), threading.Event()

    def made(id_: int) -> Claim:
        return claim(("payments", 5), id_)

    held = [made(id_) for id_ in range(2000)]
    probes.add("stripe", held, range(2000))

    def churn() -> None:
        for id_ in count(10_000):
            probes.add("stripe", [made(id_)], [id_])
            assert probes.take("stripe", made(id_)) in (id_, None)
            if stopping.is_set():
                break

    known = {fence_of(claim) for claim in held}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with beside(churn):
            for _ in range(300):
                probes.forget_all_but(known)
            stopping.set()
    finally:
        sys.setswitchinterval(interval)
    assert all(probes.has("stripe", claim) for claim in held)


def test_the_end_of_a_probe_is_reported_by_a_worker_that_stops(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """Also if another session has locked its breaker for a while."""
    with calling(dsn, other, cooldown=0.1) as worker, connect(dsn) as locking:
        break_it(dsn, bus, other, worker)
        other.error = None
        other.answers.clear()
        sent = bus.send("payments", "Charge")
        await_state(dsn, "HALF_OPEN")
        eventually(lambda: len(other.calls) > 3)
        locking.execute("BEGIN; SELECT FROM cmdbus.breaker FOR UPDATE")
        with beside(worker.stop, 5):
            other.answers.set()
            eventually(lambda: found(bus, sent).status == "COMPLETED")
            eventually(lambda: not any("worker-" in each.name for each in threading.enumerate()))
            stays(lambda: state(dsn) == "HALF_OPEN", 0.2)
            locking.execute("COMMIT")
        assert state(dsn) == "CLOSED"
    assert rows(dsn, "SELECT count(*) FROM cmdbus.breaker_probe") == [(0,)]
