"""A worker under fire: threads that hang, processes that die or freeze, a database that
goes away. Whatever happens, each command's effect lands once."""

import ctypes
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, connect, running
from tracing import ends_other_threads

from cmdbus import (
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    InvalidOperationError,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
    Timeouts,
    TransientCommandError,
)
from cmdbus.database.schema import install
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.worker import Worker

pytestmark = [pytest.mark.process]

#: Short rungs: layer 4 after 0.4 s.
LADDER = Timeouts(statement=0.2, pool=0.3, lease=0.3, thread=0.4, watchdog=1.0)
ONCE = RetryPolicy(max_attempts=1)


def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    with connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def leave_effect(command: Command, context: Context) -> None:
    context.connection.execute(
        "INSERT INTO effect VALUES (%s, %s)", (command.command_id, context.attempt)
    )


# Layer 4.


@pytest.mark.parametrize("touches", ["nothing", "its connection", "a table"])
def test_a_thread_that_does_not_come_back_is_given_up_and_its_slot_filled(
    dsn: str, bus: CommandBus, touches: str
) -> None:
    """With its stack and its own SQL, charged, once, and nothing of it
    lands."""
    registry, gate = HandlerRegistry(), Gate()

    @registry.handler("payments", "Hang", retry=ONCE)
    def hang(command: Command, context: Context) -> None:
        if touches == "its connection":
            assert context.connection
        elif touches == "a table":
            leave_effect(command, context)
        gate(command, context)

    registry.register("payments", "Good", lambda command, context: None)
    with running(dsn, registry, concurrency=1, timeouts=LADDER):
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        assert bus.wait("payments", bus.send("payments", "Good"), 10).status == "COMPLETED"
        record = bus.wait("payments", hung, 5)
        assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "TIMEOUT")
        assert (record.attempts, record.error_message) == (
            1,
            "gave up after 0.4 s: its thread did not come back",
        )
        gate.open.set()
        bus.wait("payments", bus.send("payments", "Good"), 5)
    [event] = [event for event in bus.audit("payments", hung) if event.code == "TIMEOUT"]
    assert "gate(command, context)" in str(event)
    statement = event.details["details"].get("statement")
    if touches == "a table":
        assert statement.startswith("idle in transaction: INSERT INTO effect")
    else:
        assert statement is None
    assert "blocked_by" not in event.details["details"]
    assert rows(dsn, "SELECT * FROM effect") == []


def test_of_a_query_that_waits_for_a_lock_it_is_known_who_holds_it(
    dsn: str, bus: CommandBus
) -> None:
    registry = HandlerRegistry()

    @registry.handler("payments", "Wait", retry=ONCE)
    def wait(command: Command, context: Context) -> None:
        context.connection.execute("SET LOCAL statement_timeout = 0; LOCK TABLE effect")

    with psycopg.connect(dsn, application_name="the report") as holder:
        holder.execute("LOCK TABLE effect")
        pid = holder.info.backend_pid
        with running(dsn, registry, concurrency=1, timeouts=LADDER):
            waited = bus.send("payments", "Wait")
            assert bus.wait("payments", waited, 10).error_code == "TIMEOUT"
    [event] = [event for event in bus.audit("payments", waited) if event.code == "TIMEOUT"]
    [blocker] = event.details["details"]["blocked_by"]
    assert blocker.startswith(f"pid {pid} (the report, role ")
    assert blocker.endswith("): LOCK TABLE effect")
    assert f"blocked_by: {blocker}" in str(event)


class Written(logging.Handler):
    """What was logged, under a lock that a handler may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def written() -> Iterator[Written]:
    handler, logger = Written(), logging.getLogger("cmdbus.worker")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def test_a_command_that_hangs_with_the_lock_of_the_log_is_settled(
    dsn: str, bus: CommandBus
) -> None:
    """The verdict's own log line needs that lock: it comes last."""
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Good", lambda command, context: None)
    with written() as log:

        @registry.handler("payments", "Hang", retry=ONCE)
        def hang(command: Command, context: Context) -> None:
            with log.lock or nullcontext():
                gate(command, context)

        with running(dsn, registry, concurrency=1, timeouts=LADDER):
            hung = bus.send("payments", "Hang")
            gate.wait_for(1)
            record = bus.wait("payments", hung, 5)
            assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "TIMEOUT")
            assert bus.wait("payments", bus.send("payments", "Good"), 10).status == "COMPLETED"
            assert not [line for line in log.lines if "failed in attempt" in line]
            gate.open.set()
            eventually(lambda: [line for line in log.lines if "failed in attempt 1 of 1" in line])


def test_what_a_handler_that_was_given_up_ends_with_is_not_logged(
    dsn: str, bus: CommandBus
) -> None:
    """It settles nothing: the verdict has settled it."""
    registry, gate = HandlerRegistry(), Gate()

    @registry.handler("payments", "Hang", retry=ONCE)
    def hang(command: Command, context: Context) -> None:
        gate(command, context)
        raise RuntimeError("too late")

    registry.register("payments", "Good", lambda command, context: None)
    with written() as log, running(dsn, registry, concurrency=1, timeouts=LADDER):
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        assert bus.wait("payments", hung, 5).error_code == "TIMEOUT"
        gate.open.set()
        bus.wait("payments", bus.send("payments", "Good"), 5)
    failures = [line for line in log.lines if "failed in attempt" in line]
    assert len(failures) == 1 and "TIMEOUT" in failures[0], failures


def test_all_threads_hang_and_work_goes_on(dsn: str, bus: CommandBus) -> None:
    """Whoever had the lead, or waited for it."""
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Hang", gate, retry=ONCE)
    registry.register("payments", "Good", lambda command, context: None)
    with running(dsn, registry, concurrency=3, timeouts=LADDER):
        bus.send_many([SendRequest("payments", "Hang")] * 7)
        good = bus.send("payments", "Good")
        assert bus.wait("payments", good, 10).status == "COMPLETED"
        eventually(lambda: bus.snapshot("payments")["troubleshooting"] == 7)
        gate.open.set()


def test_a_slot_that_was_given_up_is_filled_however_its_thread_leaves(
    dsn: str, bus: CommandBus
) -> None:
    """A thread in the driver is freed by the verdict itself, and leaves before it."""
    registry = HandlerRegistry()
    timeouts = Timeouts(statement=20, pool=20, lease=25, thread=30, watchdog=40)

    @registry.handler("payments", "Hang", timeout=0.2, retry=ONCE)
    def hang(command: Command, context: Context) -> None:
        context.connection.execute("SELECT pg_sleep(15)")

    registry.register("payments", "Good", lambda command, context: None)
    with running(dsn, registry, concurrency=2, timeouts=timeouts):
        for _ in range(2):
            hung = bus.send_many([SendRequest("payments", "Hang")] * 2)
            for id_ in hung:
                assert bus.wait("payments", id_, 10).error_code == "TIMEOUT"
        names = re.compile(r"worker-(payments-)?\d+$")
        eventually(lambda: sum(bool(names.match(t.name)) for t in threading.enumerate()) == 2)
        assert bus.wait("payments", bus.send("payments", "Good"), 5).status == "COMPLETED"


class OutOfStock(PermanentCommandError):
    def __init__(self, sku: str) -> None:
        self.sku = sku


class Unreportable(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("no notes")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Unnamed(Unreportable, metaclass=Nameless):
    pass


def test_an_error_that_cannot_be_reported_costs_no_thread(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    soon = TransientCommandError("BUSY", "later")
    soon.retry_after = "soon"  # type: ignore[assignment]
    errors = [OutOfStock("x"), Unreportable(), soon, Unnamed()]

    @registry.handler("payments", "Debit", retry=ONCE)
    def debit(command: Command, context: Context) -> None:
        raise errors[command.data]

    with running(dsn, registry, concurrency=1):
        for index in range(len(errors)):
            record = bus.wait("payments", bus.send("payments", "Debit", index), 5)
            assert (record.status, record.attempts) == ("IN_TROUBLESHOOTING_QUEUE", 1)


def test_an_error_outside_of_the_handler_is_logged_and_counted_and_the_command_runs_again(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread goes on, and is not found to be stuck later."""
    registry, ran = HandlerRegistry(), list[Context]()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        ran.append(context)
        if len(ran) == 1:
            context._execution.began = None  # type: ignore[attr-defined]

    timeouts = Timeouts(0.2, 0.2, 0.5, 1.0, 3.0)
    with running(dsn, registry, concurrency=4, poll_interval=60, timeouts=timeouts) as worker:
        lost = bus.send("payments", "Debit")
        record = bus.wait("payments", lost, 10)
        assert (record.status, record.attempts) == ("COMPLETED", 1)
        counts = {
            ("payments", "Debit", "completed"): 1,
            ("payments", "Debit", "lost"): 1,
        }
        eventually(lambda: worker.metrics()["cmdbus_commands_total"] == counts)
        [line] = [r for r in caplog.records if "outside of its handler" in r.getMessage()]
        assert f"command {lost} (payments/Debit)" in line.getMessage()
        assert line.levelname == "ERROR" and line.exc_info is not None
        again = bus.send("payments", "Debit", delay=1.2)
        bus.wait("payments", again, 10)
        assert worker.health.stuck_threads == 0


def threads_of_workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("worker-")]


@ends_other_threads
@pytest.mark.parametrize("whose", ["a thread", "the housekeeping thread"])
def test_a_worker_whose_thread_is_ended_stops_with_an_error(
    dsn: str, bus: CommandBus, whose: str
) -> None:
    """An exception that was sent to a thread, as libraries for timeouts do, ends it anywhere."""
    registry = HandlerRegistry()

    @registry.handler("payments", "End")
    def end(command: Command, context: Context) -> None:
        others = {*threading.enumerate()} - {threading.current_thread()}
        for thread in others:
            is_housekeeping = thread.name == "worker-housekeeping"
            if thread.name.startswith("worker-") and is_housekeeping == (
                whose == "the housekeeping thread"
            ):
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
                )
        bus.send_many([SendRequest("payments", "Noop")] * 10)  # which wakes them

    registry.register("payments", "Noop", lambda command, context: None)
    bus.send("payments", "End")
    with pytest.raises(RuntimeError, match=f"{whose} was ended by SystemExit"):
        Worker(dsn, registry, concurrency=3, timeouts=LADDER).run()
    eventually(lambda: not threads_of_workers())


def test_an_interrupted_worker_leaves_no_threads_that_go_on(dsn: str, bus: CommandBus) -> None:
    """Ctrl-C where no handler of SIGINT calls stop."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Interrupt")
    def interrupt(command: Command, context: Context) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    bus.send("payments", "Interrupt")
    with pytest.raises(KeyboardInterrupt):
        Worker(dsn, registry, concurrency=2, timeouts=LADDER).run()
    eventually(lambda: not threads_of_workers())
    assert bus.snapshot("payments")["in_progress"] == 0


def test_a_thread_that_a_handler_left_behind_gets_no_connection(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    refused: list[BaseException] = []
    returned = threading.Event()
    left: list[threading.Thread] = []

    @registry.handler("payments", "Leave")
    def leave(command: Command, context: Context) -> None:
        def late() -> None:
            returned.wait(10)
            try:
                leave_effect(command, context)
            except InvalidOperationError as error:
                refused.append(error)

        left.append(threading.Thread(target=late))
        left[0].start()

    registry.register("payments", "Debit", leave_effect)
    with running(dsn, registry, concurrency=1):
        bus.wait("payments", bus.send("payments", "Leave"), 5)
        returned.set()
        left[0].join(5)
        assert len(refused) == 1
        assert bus.wait("payments", bus.send("payments", "Debit"), 5).status == "COMPLETED"


def test_a_verdict_that_cannot_be_carried_out_keeps_no_lease_from_being_renewed(
    dsn: str, bus: CommandBus
) -> None:
    """A stranger holds the row of a command that hangs; another one runs long."""
    registry, hangs, runs = HandlerRegistry(), Gate(), Gate()
    registry.register("payments", "Hang", hangs, timeout=0.2, retry=ONCE)
    registry.register("payments", "Long", runs, timeout=60)
    ladder = Timeouts(statement=0.8, pool=1.0, lease=1.2, thread=1.3, watchdog=2.0)
    with running(dsn, registry, concurrency=3, timeouts=ladder), psycopg.connect(dsn) as stranger:
        hung, long = bus.send("payments", "Hang"), bus.send("payments", "Long")
        hangs.wait_for(1)
        runs.wait_for(1)
        stranger.execute("SELECT 1 FROM cmdbus.ready WHERE command_id = %s FOR UPDATE", (hung,))
        first = bus.get("payments", long)
        query = "SELECT lease_until FROM cmdbus.ready WHERE command_id = %s"
        with connect(dsn) as watcher:
            seen: set[object] = set()

            def renewed() -> bool:
                seen.add(watcher.execute(query, (long,)).fetchone())
                return len(seen) > 5

            eventually(renewed)
        stranger.rollback()
        assert bus.wait("payments", hung, 10).error_code == "TIMEOUT"
        runs.open.set()
        record = bus.wait("payments", long, 5)
        assert first is not None and record.started_at == first.started_at
        assert runs.most == 1
        hangs.open.set()


def test_a_handlers_own_timeout_wins_and_can_be_extended(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    released = threading.Event()

    @registry.handler("payments", "Long", timeout=0.2, retry=ONCE)
    def long(command: Command, context: Context) -> str:
        if command.data:
            context.extend(command.data)
        released.wait(20)
        return "done"

    with running(dsn, registry, timeouts=LADDER):
        patient = bus.send("payments", "Long", 10)
        hasty = bus.send("payments", "Long")
        assert bus.wait("payments", hasty, 5).error_code == "TIMEOUT"
        released.set()
        assert bus.wait("payments", patient, 5).result == "done"


def test_a_worker_takes_more_and_fewer_threads_while_it_runs(dsn: str, bus: CommandBus) -> None:
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Debit", gate)
    with running(dsn, registry, concurrency=1) as worker:
        bus.send_many([SendRequest("payments", "Debit")] * 20)
        gate.wait_for(1)
        worker.set_concurrency(5)
        gate.open.set()
        gate.wait_for(19)
        eventually(lambda: gate.inside == 0)
        gate.open.clear()
        worker.set_concurrency(2)
        worker.set_poll_interval(30)
        threads = re.compile(r"worker-(payments-)?\d+$")
        eventually(lambda: sum(bool(threads.match(t.name)) for t in threading.enumerate()) == 2)
        bus.send_many([SendRequest("payments", "Debit")] * 4)
        gate.wait_for(2)
        # What was claimed ahead of a type that was quick until now goes back.
        eventually(lambda: bus.snapshot("payments")["ready"] == 2)
        gate.open.set()
        eventually(lambda: bus.snapshot("payments")["ready"] == 0)
        with pytest.raises(ValueError, match="concurrency must be"):
            worker.set_concurrency(0)
        with pytest.raises(ValueError, match="poll_interval must be"):
            worker.set_poll_interval(0.09)


# Processes that die or freeze.


class Fleet:
    """Worker processes of one database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.workers: list[subprocess.Popen[str]] = []

    def add(self) -> "subprocess.Popen[str]":
        program = str(Path(__file__).with_name("worker_process.py"))
        worker = subprocess.Popen(
            [sys.executable, program, self._dsn], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        self.workers.append(worker)
        return worker

    def kill(self, worker: "subprocess.Popen[str]") -> None:
        worker.send_signal(signal.SIGCONT)
        worker.kill()
        worker.communicate()
        self.workers.remove(worker)


@contextmanager
def fleet(dsn: str, count: int) -> Iterator[Fleet]:
    made = Fleet(dsn)
    try:
        for _ in range(count):
            made.add()
        yield made
        for worker in made.workers:
            worker.send_signal(signal.SIGCONT)
            worker.terminate()
        assert [worker.wait(15) for worker in made.workers] == [0] * len(made.workers)
    finally:
        for worker in list(made.workers):
            made.kill(worker)


@pytest.mark.timeout(90)
def test_effects_land_once_while_workers_are_killed_and_frozen(dsn: str, bus: CommandBus) -> None:
    """Kill -9 and SIGSTOP at random, leases of a second."""
    dice = random.Random(4711)
    with fleet(dsn, 4) as workers:
        for _ in range(20):
            requests = [SendRequest("payments", "Debit", dice.random() < 0.01) for _ in range(150)]
            bus.send_many(requests)
            victim = dice.choice(workers.workers)
            if dice.random() < 0.5:
                workers.kill(victim)
                workers.add()
            else:
                victim.send_signal(dice.choice([signal.SIGSTOP, signal.SIGCONT]))
        for worker in workers.workers:
            worker.send_signal(signal.SIGCONT)
        eventually(lambda: bus.snapshot("payments")["depth"] == 0, 60)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0, 60)
    once = "SELECT count(*), count(DISTINCT command_id) FROM effect"
    done = "SELECT count(*), count(*) FROM cmdbus.finished WHERE status = 'COMPLETED'"
    assert rows(dsn, once) == rows(dsn, done)
    # Whose claimers were frozen three times, one after the other, is for a person.
    others = "SELECT DISTINCT error_code FROM cmdbus.command WHERE status <> 'COMPLETED'"
    assert rows(dsn, others) in ([], [("LOST",)])
    assert rows(dsn, "SELECT count(*) FROM cmdbus.command") == [(3000,)]


@pytest.mark.timeout(60)
def test_a_frozen_workers_effects_do_not_land_when_it_is_revived(dsn: str, bus: CommandBus) -> None:
    with fleet(dsn, 1) as workers:
        frozen = workers.workers[0]
        sent = bus.send("payments", "Debit", 1.5)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
        active = (
            "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"
            " AND datname = current_database()"
        )
        eventually(lambda: rows(dsn, active))
        frozen.send_signal(signal.SIGSTOP)
        workers.add()
        eventually(lambda: _status(bus, sent), 20)
        frozen.send_signal(signal.SIGCONT)
        later = bus.send("payments", "Debit")
        assert bus.wait("payments", later, 10).status == "COMPLETED"
    assert len(rows(dsn, f"SELECT * FROM effect WHERE command_id = '{sent}'")) == 1


def _left(bus: CommandBus) -> int:
    snapshot = bus.snapshot("payments")
    return int(snapshot["depth"]) + int(snapshot["in_progress"])


def _status(bus: CommandBus, sent: object) -> bool:
    record = bus.get("payments", sent)  # type: ignore[arg-type]
    return record is not None and record.status == "COMPLETED"


# A database that goes away.


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_work_resumes_when_the_database_is_back_and_nothing_is_charged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """It reconnects in under 3 s, no log flood."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", leave_effect)
    directory = Path(os.environ["TMPDIR"]) / "pg"
    with EmbeddedPostgres(directory, durable=True) as server:
        install(server.dsn)
        with connect(server.dsn) as connection:
            connection.execute("CREATE TABLE effect (command_id uuid, attempt int)")
        caplog.set_level(logging.WARNING, "cmdbus")
        # What a step had claimed when its reply was lost runs again when its lease ends.
        timeouts = Timeouts(statement=2, pool=3, lease=3, thread=10, watchdog=20)
        with (
            CommandBus(server.dsn) as bus,
            running(server.dsn, registry, concurrency=4, timeouts=timeouts),
        ):
            bus.send_many([SendRequest("payments", "Debit")] * 3000)
            eventually(lambda: bus.snapshot("payments")["depth"] < 2900)
            server.stop("fast" if mode == "fast" else "immediate")
            server.start()
            sent = bus.send("payments", "Debit", priority="high")
            eventually(lambda: _status(bus, sent), 20)
            eventually(lambda: _left(bus) == 0, 30)
        with connect(server.dsn) as connection:
            row = connection.execute(
                "SELECT count(*), count(DISTINCT command_id), max(attempt) FROM effect"
            ).fetchone()
            assert row == (3001, 3001, 1)
    shutil.rmtree(directory)
    assert len(caplog.records) < 60, "a line for each connection, not for each try"


def test_a_worker_waits_for_no_password_it_cannot_have(dsn: str) -> None:
    """It fails fast, with one sentence."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    worker = Worker("postgresql://ann:s3cr3t@127.0.0.1:1/shop", registry)
    with pytest.raises(Exception, match="cannot connect to database 'shop'") as refused:
        worker.run()
    assert "s3cr3t" not in str(refused.value)
