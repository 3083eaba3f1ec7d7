"""What a worker has claimed is its own while it lives, goes back when it stops, and outlives
its sessions."""

import ctypes
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg
import pytest
from eventually import eventually, stays
from handlers import (
    ONCE,
    Gate,
    Hanging,
    await_drained,
    await_renewals,
    beside,
    effects,
    found,
    handling,
    leave_effect,
    running,
)
from queries import end_sessions, rows

from cmdbus import Command, CommandBus, Context, SendRequest, Timeouts
from cmdbus.worker import Worker, drain
from cmdbus.worker.pipeline import local_queue as backlog
from cmdbus.worker.thread_pool import ThreadPool


def test_a_slow_handler_is_not_run_twice_while_its_worker_lives(dsn: str, bus: CommandBus) -> None:
    """Its lease is renewed."""
    gate = Gate()
    timeouts = Timeouts(statement=0.1, pool=0.3, lease=0.3, thread=20, watchdog=30)
    with running(dsn, handling(gate, timeout=60), timeouts=timeouts, concurrency=2):
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        await_renewals(dsn, sent, 8)
        assert gate.inside == 1
        gate.open.set()
        assert bus.wait("payments", sent).attempts == 1


def test_what_was_claimed_ahead_and_is_not_started_goes_back(dsn: str, bus: CommandBus) -> None:
    """A type that was quick hangs: no command waits behind it."""
    hanging = Hanging()
    with running(dsn, hanging.registry, concurrency=1) as worker:
        hanging.begin(bus, worker)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
        assert {record.attempts for record in bus.query(status="PENDING")} == {0}
        hanging.gate.open.set()
        await_drained(bus)
    assert len(bus.query(status="COMPLETED", limit=2000)) == 1100


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
    hanging = Hanging()
    with running(dsn, hanging.registry, concurrency=1) as worker:
        hanging.begin(bus, worker)
        with last_claim_locked(dsn) as locking, beside(worker.stop, 10):
            eventually(lambda: bus.snapshot("payments")["in_progress"] == 2)
            hanging.gate.open.set()
            eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
            locking.rollback()
    assert bus.snapshot("payments")["in_progress"] == 0
    assert rows(dsn, "SELECT FROM cmdbus.ready WHERE losses > 0") == []


#: In which a statement waits for a lock no longer than a tenth of a second.
IMPATIENT = Timeouts(statement=0.2, pool=0.3, lease=0.3, thread=20, watchdog=30)


@contextmanager
def outcome_locked_out(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> Iterator[tuple[Worker, UUID, psycopg.Connection]]:
    """A worker with a command whose row another session has locked since before it ended."""
    gate = Gate()
    with running(dsn, handling(gate), concurrency=1, timeouts=IMPATIENT) as worker:
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        with last_claim_locked(dsn) as locking:
            gate.open.set()
            eventually(lambda: "cannot be stored yet" in caplog.text)
            yield worker, sent, locking


def test_an_outcome_whose_row_is_locked_is_stored_before_the_stop_ends(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Else its command would run once more."""
    with (
        outcome_locked_out(dsn, bus, caplog) as (worker, sent, locking),
        beside(worker.stop, 15) as stop,
    ):
        stays(stop.is_alive, 2)
        locking.rollback()
    assert (found(bus, sent).status, worker.abandoned) == ("COMPLETED", 0)


def test_an_outcome_that_could_not_be_stored_before_the_stop_ended_is_not_forgotten(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """In a fleet the steward then releases its command."""
    with outcome_locked_out(dsn, bus, caplog) as (worker, sent, _):
        worker.stop(0.5)
    assert (found(bus, sent).attempts, worker.abandoned) == (0, 1)
    assert "could not be stored in time" in caplog.text


def test_an_outcome_is_stored_although_all_sessions_have_ended_unnoticed(
    dsn: str, bus: CommandBus
) -> None:
    gate = Gate()
    with running(dsn, handling(gate), concurrency=2) as worker:
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        with beside(worker.stop, 15):
            eventually(lambda: len(threads_of(worker).left()) == 1)
            end_sessions(dsn)
            gate.open.set()
    assert (found(bus, sent).status, worker.abandoned) == ("COMPLETED", 0)


def test_what_runs_is_not_cut_off_because_what_has_not_started_cannot_be_released(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backlog, "_STARTED_WITHIN", 30.0)
    hanging = Hanging()
    with running(dsn, hanging.registry, concurrency=1, timeouts=IMPATIENT) as worker:
        hanging.begin(bus, worker)
        with psycopg.connect(dsn) as locking:
            locking.execute("LOCK TABLE cmdbus.ready")
            with beside(worker.stop, 15):
                eventually(lambda: "lock timeout" in caplog.text)
                locking.rollback()
                hanging.gate.open.set()
    assert worker.abandoned == 0
    [hung] = hanging.hung
    assert (found(bus, hung).status, bus.snapshot("payments")["in_progress"]) == ("COMPLETED", 0)


def threads_of(worker: Worker) -> ThreadPool:
    threads = worker._concurrency.threads
    assert threads is not None
    return threads


def test_a_stall_of_the_process_while_it_stops_ends_no_command(dsn: str, bus: CommandBus) -> None:
    """As while it runs: a deadline is put off by the time in which no thread could work."""
    gate, holds = Gate(), threading.Event()

    def hold_gil(command: Command, context: Context) -> None:
        assert holds.wait(20)
        for thread in threads_of(worker)._all():
            thread.put_off(2.5 - (thread.due - time.monotonic()))
        ctypes.PyDLL(None).usleep(3_000_000)

    registry = handling(gate, timeout=60, retry=ONCE)
    registry.register("payments", "HoldGil", hold_gil, timeout=60)
    with running(dsn, registry, concurrency=2) as worker:
        bus.send("payments", "HoldGil")
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        with beside(worker.stop, 15):
            eventually(threads_of(worker).pipeline.stopping.is_set)
            holds.set()
            stays(lambda: worker.health.stuck_threads == 0, 0.2)
            gate.open.set()
    assert (found(bus, sent).status, found(bus, sent).attempts) == ("COMPLETED", 1)


def has_skipped(dsn: str) -> bool:
    """Whether a worker has found that a row it wanted to release was locked."""
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND query LIKE '%that are still their claimer%'"
    )
    return rows(dsn, query) != []


def test_a_hung_command_goes_back_once_its_row_is_not_locked(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steward's renewals lock it, too, from time to time."""
    monkeypatch.setattr(drain, "_LOCKED_SECONDS", 15.0)
    gate = Gate()
    with running(dsn, handling(gate), concurrency=1) as worker:
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        with last_claim_locked(dsn) as locking, beside(worker.stop, 0.05):
            eventually(lambda: has_skipped(dsn))
            locking.rollback()
        assert found(bus, sent).status == "PENDING"
        gate.open.set()


def test_stopping_lets_running_commands_end_and_gives_the_others_back(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cmdbus.worker")
    gate = Gate()
    with running(dsn, handling(gate), concurrency=2) as worker:
        bus.send_many([SendRequest("payments", "Debit")] * 6)
        gate.wait_for(2)
        with beside(worker.stop):
            eventually(lambda: "stops: running commands may end" in caplog.text)
            gate.open.set()
    snapshot = bus.snapshot("payments")
    assert (snapshot["in_progress"], snapshot["ready"]) == (0, 4)
    assert {record.attempts for record in bus.query(status="PENDING")} == {0}


def test_a_hung_handler_cannot_keep_the_worker(dsn: str, bus: CommandBus) -> None:
    gate = Gate(leave_effect)
    with running(dsn, handling(gate)) as worker:
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        began = time.monotonic()
        worker.stop(timeout=0.3)
        assert time.monotonic() - began < 10
    assert (found(bus, sent).status, found(bus, sent).attempts) == ("PENDING", 0)
    sent_, received, lost = bus.audit("payments", sent)
    assert (sent_.kind, received.kind, received.attempt) == ("SENT", "RECEIVED", 1)
    assert (lost.kind, lost.code, lost.attempt) == ("LOST", "STOPPED", 1)
    assert lost.message == (
        "its worker was stopped before it had ended (does not count as an attempt)"
    )
    gate.open.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("worker-")])
    assert effects(dsn) == 0


def test_a_worker_outlives_the_death_of_all_its_sessions(dsn: str, bus: CommandBus) -> None:
    """And the attempt that was cut off is not charged."""
    entered = threading.Semaphore(0)

    def debit(command: Command, context: Context) -> int:
        leave_effect(command, context)
        entered.release()
        if command.data == "wait":
            context.connection.execute("SELECT pg_sleep(20)")
        return context.attempt

    with running(dsn, handling(debit), concurrency=2):
        for _ in range(5):
            bus.wait("payments", bus.send("payments", "Debit"))
            end_sessions(dsn)
            assert bus.wait("payments", bus.send("payments", "Debit")).result == 1
        for _ in range(10):
            assert entered.acquire(timeout=5)
        assert rows(dsn, "SELECT max(losses) FROM cmdbus.finished") == [(0,)]
        cut_off = bus.send("payments", "Debit", "wait")
        assert entered.acquire(timeout=5)
        end_sessions(dsn)
        eventually(lambda: "DATABASE_AWAY" in str(bus.audit("payments", cut_off)))
        assert found(bus, cut_off).attempts == 0
        assert [e.attempt for e in bus.audit("payments", cut_off)][:3] == [None, 1, 1]


def test_a_command_that_ends_its_own_session_each_time_comes_to_a_person(
    dsn: str, bus: CommandBus
) -> None:
    """Uncharged, like one that is interrupted by a shutdown of the server, but counted."""

    def debit(command: Command, context: Context) -> None:
        context.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with running(dsn, handling(debit), concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Debit"))
        assert record.status == "IN_TROUBLESHOOTING_QUEUE"
        assert (record.error_code, record.attempts) == ("LOST", 0)


def test_a_process_that_a_handler_forks_is_no_worker(dsn: str, bus: CommandBus) -> None:
    """It leaves with the code that it wanted, and touches nothing that it shares."""

    def fork(command: Command, context: Context) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that it has threads
            pid = os.fork()
        if pid == 0:
            sys.exit(command.data)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    with running(dsn, handling(fork, "Fork"), concurrency=2):
        forks = [bus.send("payments", "Fork", code) for code in (0, 7)]
        assert [bus.wait("payments", sent).result for sent in forks] == [0, 7]
        later = bus.send_many([SendRequest("payments", "Noop")] * 20)
        assert {bus.wait("payments", sent).status for sent in later} == {"COMPLETED"}


def test_what_hangs_while_the_worker_stops_is_given_up_as_ever(dsn: str, bus: CommandBus) -> None:
    """Its timeout ends before the stop's does; the stop waits for no thread that is given up."""
    gate = Gate()
    with running(dsn, handling(gate, timeout=0.6, retry=ONCE), concurrency=2) as worker:
        hung = bus.send("payments", "Debit")
        gate.wait_for(1)
        began = time.monotonic()
        worker.stop(timeout=15)
        assert time.monotonic() - began < 10
        record = found(bus, hung)
        assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "TIMEOUT")
        assert (record.attempts, worker.health.stuck_threads) == (1, 1)
        gate.open.set()
