"""A worker that waits: for a notification, a timer, and never longer than it must."""

import time

import psycopg
import pytest
from eventually import eventually
from handlers import connect, running

from cmdbus import (
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    SendRequest,
)
from cmdbus.worker import Worker

pytestmark = pytest.mark.db


def test_a_delayed_command_starts_on_time_and_never_early(dsn: str, bus: CommandBus) -> None:
    """M063, M081, M085, M180: and the second timer is not forgotten."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> float:
        return time.time()

    with running(dsn, registry, poll_interval=60):
        bus.wait("payments", bus.send("payments", "Debit"), 5)
        ids = [bus.send("payments", "Debit", delay=delay) for delay in (0.6, 0.3)]
        for id_ in reversed(ids):
            record = bus.wait("payments", id_, 5)
            late = record.result - record.due_at.timestamp()
            assert -0.001 < late < 1.0


def test_an_idle_worker_is_woken_by_a_send_and_asks_nothing_meanwhile(
    dsn: str, bus: CommandBus
) -> None:
    """M007, M008, M012, M019, M028, M137, M138, R17."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with running(dsn, registry, poll_interval=60), connect(dsn) as watcher:
        for _ in range(20):
            bus.wait("payments", bus.send("payments", "Debit"), 2)
        query = (
            "SELECT array_agg((pid, state_change) ORDER BY pid)::text,"
            " bool_and(state = 'idle') FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'cmdbus:%'"
            " AND application_name <> 'cmdbus:bus'"
        )

        def look() -> tuple[object, object]:
            row = watcher.execute(query).fetchone()
            assert row is not None
            return row[0], row[1]

        history = [look()]

        def quiet() -> bool:
            history.append(look())
            return len(history) > 60 and len(set(history[-50:])) == 1

        eventually(quiet)
        assert history[-1][1] is True


def test_a_worker_whose_listener_died_finds_work_and_listens_again(
    dsn: str, bus: CommandBus
) -> None:
    """M060, M090, fault 36."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    listeners = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    )
    with running(dsn, registry, poll_interval=60), connect(dsn) as watcher:
        bus.wait("payments", bus.send("payments", "Debit"), 5)
        eventually(lambda: watcher.execute(listeners).fetchone() == (1,))
        for _ in range(5):
            bus.wait("payments", bus.send("payments", "Debit"), 5)


def test_a_send_that_began_before_the_arming_and_ends_after_it_is_found(
    dsn: str, bus: CommandBus
) -> None:
    """Its trigger saw that nothing was armed, so that it notifies nobody: only the wait for
    the transactions that wrote before the arming can find it."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with psycopg.connect(dsn) as slow, connect(dsn) as watcher:
        for _ in range(3):
            held = bus.send("payments", "Debit", connection=slow)
            with running(dsn, registry, poll_interval=600) as worker:
                eventually(lambda: armed(watcher))
                await_looks_in_vain(worker, 4)
                slow.commit()
                bus.wait("payments", held, 5)
            assert not armed(watcher)


def test_a_send_to_a_worker_at_rest_is_found_by_its_notification(dsn: str, bus: CommandBus) -> None:
    """At rest nothing else looks: the wait for earlier writers is over, and the poll is far."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    still = (
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database()"
        " AND starts_with(application_name, 'cmdbus:')"
        " AND (state <> 'idle' OR state_change > clock_timestamp() - interval '0.5 s')"
    )
    with running(dsn, registry, poll_interval=600), connect(dsn) as watcher:
        for _ in range(3):
            eventually(lambda: armed(watcher) and watcher.execute(still).fetchone() == (True,))
            bus.wait("payments", bus.send("payments", "Debit"), 5)


def await_looks_in_vain(worker: Worker, count: int) -> None:
    """Waits for `count` more claims that find nothing."""

    def looks() -> int:
        return int(str(worker.metrics()["cmdbus_empty_receives_total"]))

    before = looks()
    eventually(lambda: looks() >= before + count)


def armed(watcher: psycopg.Connection) -> bool:
    row = watcher.execute("SELECT last_value FROM cmdbus.armed").fetchone()
    assert row is not None
    return bool(row[0])


def test_a_delayed_send_that_commits_after_the_look_at_its_time_is_on_time(
    dsn: str, bus: CommandBus
) -> None:
    """Race 1f: it compared with a look that the worker has had meanwhile, and told nobody."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: time.time())
    with (
        running(dsn, registry, poll_interval=60),
        psycopg.connect(dsn) as slow,
        connect(dsn) as watcher,
    ):

        def looks_in() -> float:
            row = watcher.execute("SELECT last_value / 1e6 FROM cmdbus.alarm").fetchone()
            assert row is not None
            return float(row[0]) - time.time()

        for _ in range(2):
            eventually(lambda: 50 < looks_in() <= 60)
            sooner = bus.send("payments", "Debit", delay=0.2)
            eventually(lambda: looks_in() < 0.2)
            held = bus.send("payments", "Debit", delay=0.4, connection=slow)
            bus.wait("payments", sooner, 5)
            eventually(lambda: looks_in() > 50)
            slow.commit()
            record = bus.wait("payments", held, 5)
            assert record.result - record.due_at.timestamp() < 1.0


def test_what_is_due_is_not_late_for_a_worker_that_never_rests(dsn: str, bus: CommandBus) -> None:
    """Race 1f: it looks often enough, whoever tells it."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: time.time())
    going = True

    @registry.handler("payments", "Again")
    def again(command: Command, context: Context) -> None:
        if going:
            bus.send("payments", "Again")
        time.sleep(0.002)

    with running(dsn, registry, poll_interval=60, concurrency=2), psycopg.connect(dsn) as slow:
        bus.send_many([SendRequest("payments", "Again")] * 20)
        sooner = bus.send("payments", "Debit", delay=0.1, priority="high")
        held = bus.send("payments", "Debit", delay=0.2, priority="high", connection=slow)
        bus.wait("payments", sooner, 5)
        slow.commit()
        for id_ in (sooner, held):
            record = bus.wait("payments", id_, 5)
            assert record.result - record.due_at.timestamp() < 3.0
        going = False


def test_no_command_is_left_in_the_queue_while_its_thread_rests(dsn: str, bus: CommandBus) -> None:
    """races.md 5: in bursts to one thread, the lead is drawn before the last of them."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with running(dsn, registry, concurrency=1, poll_interval=600):
        for size in (500, *(3 + n % 8 for n in range(40))):
            bus.send_many([SendRequest("payments", "Debit")] * size)
            eventually(lambda: bus.snapshot("payments")["depth"] == 0)
            eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
