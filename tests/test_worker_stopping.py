"""What a worker has claimed is its own while it lives, goes back when it stops, and outlives
its sessions."""

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, connect, effects, leave_effect, running

from cmdbus import (
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    RetryPolicy,
    SendRequest,
    Timeouts,
)
from cmdbus.worker import Worker
from cmdbus.worker.pipeline import local_queue as backlog


def test_a_slow_handler_is_not_run_twice_while_its_worker_lives(dsn: str, bus: CommandBus) -> None:
    """Its lease is renewed."""
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Slow", gate, timeout=60)
    timeouts = Timeouts(statement=0.1, pool=0.3, lease=0.3, thread=20, watchdog=30)
    with running(dsn, registry, timeouts=timeouts, concurrency=2) as _:
        sent = bus.send("payments", "Slow")
        gate.wait_for(1)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 1.0)
        assert gate.inside == 1
        gate.open.set()
        assert bus.wait("payments", sent, 5).attempts == 1


def test_what_was_claimed_ahead_and_is_not_started_goes_back(dsn: str, bus: CommandBus) -> None:
    """A type that was quick hangs: nobody waits behind it."""
    gate = Gate()
    with running(dsn, hanging(gate), concurrency=1):
        bus.send_many([SendRequest("payments", "Debit")] * 500)
        eventually(lambda: bus.snapshot("payments")["depth"] == 0)
        requests = [SendRequest("payments", "Debit", "hang" if n == 200 else n) for n in range(900)]
        bus.send_many(requests)
        gate.wait_for(1)
        assert bus.snapshot("payments")["in_progress"] > 1, "it claims ahead of its thread"
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
        assert {record.attempts for record in bus.query(status="PENDING")} == {0}
        gate.open.set()
        eventually(lambda: bus.snapshot("payments")["depth"] == 0)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
    assert len(bus.query(status="COMPLETED", limit=2000)) == 1400


def hanging(gate: Gate) -> HandlerRegistry:
    """Commands that are quick, until one hangs and the others wait behind it."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        if command.data == "hang":
            gate(command, context)

    return registry


def hang(bus: CommandBus, gate: Gate) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 500)
    eventually(lambda: bus.snapshot("payments")["depth"] == 0)
    requests = [SendRequest("payments", "Debit", "hang" if n == 100 else n) for n in range(600)]
    bus.send_many(requests)
    gate.wait_for(1)
    assert bus.snapshot("payments")["in_progress"] > 1, "it claims ahead of its thread"


@contextmanager
def last_claim_locked(dsn: str) -> Iterator[psycopg.Connection]:
    """As the claim of another worker does whose snapshot is older."""
    with psycopg.connect(dsn) as connection:
        query = "SELECT FROM cmdbus.ready WHERE claimer IS NOT NULL ORDER BY id DESC LIMIT 1"
        assert connection.execute(f"{query} FOR UPDATE".encode()).rowcount == 1
        yield connection


def test_a_stopping_worker_waits_for_a_locked_claim_that_it_must_release(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also on a busy machine the stop comes before what is not started goes back by itself.
    monkeypatch.setattr(backlog, "_STARTED_WITHIN", 30.0)
    gate = Gate()
    worker = Worker(dsn, hanging(gate), concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    hang(bus, gate)
    with last_claim_locked(dsn):
        stopping = threading.Thread(target=worker.stop, kwargs={"timeout": 10})
        stopping.start()
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 2)
        gate.open.set()
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
    stopping.join(10)
    thread.join(10)
    assert bus.snapshot("payments")["in_progress"] == 0
    with connect(dsn) as connection:
        assert connection.execute("SELECT FROM cmdbus.ready WHERE losses > 0").rowcount == 0


def has_skipped(dsn: str) -> bool:
    """Whether a worker has found that a row it wanted to release was locked."""
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND query LIKE '%that are still their claimer%'"
    )
    with connect(dsn) as connection:
        return connection.execute(query).rowcount > 0


def test_a_hung_command_goes_back_once_its_row_is_not_locked(dsn: str, bus: CommandBus) -> None:
    """The steward's renewals lock it, too, from time to time."""
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Debit", gate)
    worker = Worker(dsn, registry, concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    sent = bus.send("payments", "Debit")
    gate.wait_for(1)
    with last_claim_locked(dsn):
        stopping = threading.Thread(target=worker.stop, kwargs={"timeout": 0.05})
        stopping.start()
        eventually(lambda: has_skipped(dsn))
    stopping.join(10)
    thread.join(10)
    record = bus.get("payments", sent)
    assert record is not None and record.status == "PENDING"
    gate.open.set()


def test_stopping_lets_running_commands_end_and_gives_the_others_back(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cmdbus.worker")
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Debit", gate)
    with running(dsn, registry, concurrency=2) as worker:
        bus.send_many([SendRequest("payments", "Debit")] * 6)
        gate.wait_for(2)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        eventually(lambda: "stops: what runs may end" in caplog.text)
        gate.open.set()
        stopping.join(10)
        assert not stopping.is_alive()
    snapshot = bus.snapshot("payments")
    assert (snapshot["in_progress"], snapshot["ready"]) == (0, 4)
    assert {record.attempts for record in bus.query(status="PENDING")} == {0}


def test_a_hung_handler_cannot_keep_the_worker(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    entered, let_go = threading.Event(), threading.Event()

    @registry.handler("payments", "Hang")
    def hang(command: Command, context: Context) -> None:
        leave_effect(command, context)
        entered.set()
        let_go.wait(20)

    worker = Worker(dsn, registry)
    thread = threading.Thread(target=worker.run)
    thread.start()
    sent = bus.send("payments", "Hang")
    assert entered.wait(5)
    began = time.monotonic()
    worker.stop(timeout=0.3)
    thread.join(5)
    assert time.monotonic() - began < 3
    record = bus.get("payments", sent)
    assert record is not None and (record.status, record.attempts) == ("PENDING", 0)
    sent_, received, lost = bus.audit("payments", sent)
    assert (sent_.kind, received.kind, received.attempt) == ("SENT", "RECEIVED", 1)
    assert (lost.kind, lost.code, lost.attempt) == ("LOST", "STOPPED", 1)
    assert lost.message == (
        "its worker was stopped before it had ended (does not count as an attempt)"
    )
    let_go.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("worker-")])
    assert effects(dsn) == 0


def test_a_worker_outlives_the_death_of_all_its_sessions(dsn: str, bus: CommandBus) -> None:
    """And the attempt that was cut off is not charged."""
    registry = HandlerRegistry()
    entered = threading.Semaphore(0)

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> int:
        leave_effect(command, context)
        entered.release()
        if command.data == "wait":
            context.connection.execute("SELECT pg_sleep(20)")
        return context.attempt

    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'cmdbus:%'"
        " AND application_name <> 'cmdbus:bus'"
    )
    with running(dsn, registry, concurrency=2), connect(dsn) as killer:
        for _ in range(5):
            bus.wait("payments", bus.send("payments", "Debit"), 5)
            killer.execute(kill)
            assert bus.wait("payments", bus.send("payments", "Debit"), 10).result == 1
        for _ in range(10):
            assert entered.acquire(timeout=5)
        cut_off = bus.send("payments", "Debit", "wait")
        assert entered.acquire(timeout=5)
        killer.execute(kill)
        eventually(lambda: "DATABASE_AWAY" in str(bus.audit("payments", cut_off)))
        record = bus.get("payments", cut_off)
        assert record is not None and record.attempts == 0
        assert [e.attempt for e in bus.audit("payments", cut_off)][:3] == [None, 1, 1]


def test_a_command_that_ends_its_own_session_each_time_comes_to_a_person(
    dsn: str, bus: CommandBus
) -> None:
    """Uncharged, like one that is interrupted by a shutdown of the server, but counted."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        context.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with running(dsn, registry, concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Debit"), 20)
        assert record.status == "IN_TROUBLESHOOTING_QUEUE"
        assert (record.error_code, record.attempts) == ("LOST", 0)


def test_a_process_that_a_handler_forks_is_no_worker(dsn: str, bus: CommandBus) -> None:
    """It leaves with the code that it wanted, and touches nothing that it shares."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Fork")
    def fork(command: Command, context: Context) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that it has threads
            pid = os.fork()
        if pid == 0:
            sys.exit(command.data)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @registry.handler("payments", "Pid")
    def pid(command: Command, context: Context) -> int:
        return os.getpid()

    with running(dsn, registry, concurrency=2):
        forks = [bus.send("payments", "Fork", code) for code in (0, 7)]
        assert [bus.wait("payments", sent, 10).result for sent in forks] == [0, 7]
        pids = bus.send_many([SendRequest("payments", "Pid")] * 20)
        assert {bus.wait("payments", sent, 10).result for sent in pids} == {os.getpid()}


def test_what_hangs_while_the_worker_stops_is_given_up_as_ever(dsn: str, bus: CommandBus) -> None:
    """Its time is over before the stop's is; the stop waits for nobody who is given up."""
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Hang", gate, timeout=0.6, retry=RetryPolicy(max_attempts=1))
    worker = Worker(dsn, registry, concurrency=2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        began = time.monotonic()
        worker.stop(timeout=15)
        assert time.monotonic() - began < 10
        record = bus.get("payments", hung)
        assert record is not None and record.error_code == "TIMEOUT"
        assert (record.status, record.attempts) == ("IN_TROUBLESHOOTING_QUEUE", 1)
        assert worker.health.stuck_threads == 1
    finally:
        gate.open.set()
        worker.stop(timeout=1)
        thread.join(10)
