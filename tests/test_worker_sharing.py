"""Several workers on one queue, each by itself; and one that is hard to wake."""

import threading
import time
from collections import Counter
from contextlib import ExitStack
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, await_drained, beside, connect, handling, running, seat_of
from queries import count, end_listening_sessions

from cmdbus import Command, CommandBus, Context, SendRequest
from cmdbus.board.records import Phase
from cmdbus.worker.pipeline import local_queue


def test_workers_share_the_load_and_nothing_runs_twice_while_they_come_and_go(
    dsn: str, bus: CommandBus
) -> None:
    """Five of them, none knows of another."""
    ran: Counter[UUID] = Counter()
    gate = Gate(lambda command, context: ran.update([command.command_id]))
    registry = handling(gate)
    with ExitStack() as stack:
        workers = [stack.enter_context(running(dsn, registry, concurrency=1)) for _ in range(5)]
        bus.send_many([SendRequest("payments", "Debit")] * 200)
        gate.wait_for(5)
        shown = [[slot.phase for slot in seat_of(worker).slots] for worker in workers]
        assert all(Phase.RUNNING in phases for phases in shown), "each has one"
        gate.open.set()
        eventually(lambda: len(ran) > 20)
        workers[0].stop()
        stack.enter_context(running(dsn, registry, concurrency=1))
        await_drained(bus)
    assert (len(ran), set(ran.values())) == (200, {1})
    assert {record.attempts for record in bus.query(status="COMPLETED", limit=500)} == {1}


def test_ten_workers_claim_a_thousand_commands_once_and_in_shares_of_a_size(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None claims more than three times what another claims, once all have begun."""
    # A stall of a second does not give back what was claimed ahead.
    monkeypatch.setattr(local_queue, "_STARTED_WITHIN", 30.0)
    all_begin, begun = threading.Barrier(10), threading.local()

    def debit(command: Command, context: Context) -> None:
        if not hasattr(begun, "by_this_thread"):
            begun.by_this_thread = True
            all_begin.wait(20)
        time.sleep(0.005)

    registry = handling(debit)
    with ExitStack() as stack, connect(dsn) as watcher:
        for _ in range(10):
            stack.enter_context(running(dsn, registry, concurrency=1, poll_interval=60))
        eventually(lambda: count(watcher, "cmdbus.waiter") == 10)
        bus.send_many([SendRequest("payments", "Debit")] * 1000)
        eventually(lambda: count(watcher, "cmdbus.finished") == 1000, 40)
        finished = "SELECT count(*), sum(token) FROM cmdbus.finished GROUP BY claimer"
        shares = watcher.execute(finished).fetchall()
    counts = [commands for commands, _ in shares]
    assert [claims for _, claims in shares] == counts, "one claim for each"
    assert len(counts) == 10
    assert max(counts) <= 3 * min(counts), counts


def test_five_free_threads_are_filled_by_one_claim_and_a_single_command_by_one(
    dsn: str, bus: CommandBus
) -> None:
    gate = Gate()
    bus.send_many([SendRequest("payments", "Debit")] * 5)
    with running(dsn, handling(gate), concurrency=5, poll_interval=60) as worker:

        def batches() -> int:
            return int(str(worker.metrics()["cmdbus_batches_processed_total"]))

        gate.wait_for(5)
        assert batches() == 1
        gate.open.set()
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
        bus.wait("payments", bus.send("payments", "Debit"))
        assert batches() == 2


def test_what_notifies_nobody_is_found_by_the_poll(dsn: str, bus: CommandBus) -> None:
    """The last net."""
    with running(dsn, handling(), poll_interval=0.2) as worker:
        bus.wait("payments", bus.send("payments", "Debit"))

        def has_polled() -> bool:
            wakeups = worker.metrics()["cmdbus_wakeups_total"]
            assert isinstance(wakeups, dict)
            return sum(wakeups.values()) > 5

        eventually(has_polled)
        with psycopg.connect(dsn) as sender:
            sender.execute("SET LOCAL cmdbus.notify = off")
            quiet = bus.send("payments", "Debit", connection=sender)
        assert bus.wait("payments", quiet).status == "COMPLETED"


def test_a_rest_ends_at_once_when_the_worker_stops_whoever_else_could_wake_it(
    dsn: str, bus: CommandBus
) -> None:
    """With the listening session dead and an hour to the next poll."""
    with running(dsn, handling(), poll_interval=3600) as worker:
        bus.wait("payments", bus.send("payments", "Debit"))
        eventually(lambda: Phase.RESTING in [slot.phase for slot in seat_of(worker).slots])
        end_listening_sessions(dsn)
        with beside(worker.stop):
            pass  # Within the time that a thread has.


def test_commands_behind_one_that_takes_longer_than_its_type_did_are_helped(
    dsn: str, bus: CommandBus
) -> None:
    """No second thread is woken for a type whose runs are tiny, until they wait nevertheless."""
    last_has_run = threading.Event()
    waited: list[bool] = []

    def debit(command: Command, context: Context) -> None:
        if command.data == "first":
            waited.append(last_has_run.wait(20))
        elif command.data == "last":
            last_has_run.set()

    with running(dsn, handling(debit), concurrency=2):
        bus.send_many([SendRequest("payments", "Debit")] * 1_000)
        await_drained(bus)
        for _ in range(3):
            last_has_run.clear()
            data = ["first", *[None] * 10, "last"]
            bus.send_many([SendRequest("payments", "Debit", value) for value in data])
            await_drained(bus)
    assert waited == [True] * 3
