"""What workers and stewards do for batches: a standalone worker, and a fleet whose processes are
killed."""

import random
import time
from collections.abc import Iterable
from contextlib import closing, suppress

import psycopg
import pytest
from batches import CLOSE, DEBIT, batch_of, check_counters, kinds_of, sent_after
from claiming import Claimer, ended
from eventually import eventually
from fleet import Fleet, kill
from handlers import (
    SOON,
    Gate,
    connect,
    do_nothing,
    handling,
    leave_effect,
    running,
)

from cmdbus import (
    BatchStatus,
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    PermanentCommandError,
    SendRequest,
    TransientCommandError,
)
from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.pipeline.batch_transitions import BatchTransitions
from cmdbus.worker.pipeline.in_flight import InFlight


def end_as_asked(command: Command, context: Context) -> str:
    """By its data; in a transaction, if that begins with tx."""
    wanted = str(command.data)
    if wanted.startswith("tx"):
        leave_effect(command, context)
    if wanted.endswith("refuse"):
        raise BusinessRuleError("REFUSED", "a rule forbids it")
    if wanted.endswith("trouble"):
        raise PermanentCommandError("BROKEN", "it never works")
    if wanted.endswith("retry") and context.attempt == 1:
        raise TransientCommandError("AWAY", "it works later")
    return "done"


@pytest.mark.parametrize("wanted", ["plain", "tx", "refuse", "tx-retry", "retry"])
@pytest.mark.parametrize("threads", [1, 4])
def test_the_worker_of_the_last_command_ends_the_batch(
    dsn: str, bus: CommandBus, wanted: str, threads: int
) -> None:
    """Whichever way it was settled, and without a steward's help."""
    requests = [SendRequest("payments", "Debit", wanted) for _ in range(20)]
    with running(dsn, handling(end_as_asked, retry=SOON), concurrency=threads):
        batch_id = bus.create_batch("payments", requests, on_complete=CLOSE)
        record = bus.wait_batch(batch_id, timeout=10)
    ended = BatchStatus.COMPLETED_WITH_FAILURES if wanted == "refuse" else BatchStatus.COMPLETED
    assert (record.status, record.total, record.remaining) == (ended, 20, 0)
    assert kinds_of(bus, batch_id) == ["BATCH_CREATED", "BATCH_STARTED", "BATCH_COMPLETED"]
    assert len(sent_after(bus, batch_id)) == 1


def test_a_batch_has_started_while_its_first_command_runs(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with running(dsn, handling(gate)):
        batch_id = bus.create_batch("payments", [DEBIT] * 2)
        gate.wait_for(1)
        eventually(lambda: batch_of(bus, batch_id).status is BatchStatus.IN_PROGRESS)
        gate.open.set()
        record = bus.wait_batch(batch_id, timeout=10)
    assert record.started_at is not None and record.completed_at is not None
    assert record.created_at <= record.started_at <= record.completed_at


def test_a_batch_ends_that_an_operator_has_canceled_under_a_worker(
    dsn: str, bus: CommandBus
) -> None:
    """The worker finds at its settlement that the row is gone, and checks the batch after that."""
    gate = Gate()
    with running(dsn, handling(gate), concurrency=2):
        batch_id = bus.create_batch("payments", [DEBIT] * 2, on_complete=CLOSE)
        gate.wait_for(2)
        one = bus.batch_commands(batch_id)[0]
        bus.cancel("payments", one.command_id, running=True)
        gate.open.set()
        record = bus.wait_batch(batch_id, timeout=10)
    assert (record.completed, record.canceled) == (1, 1)


def test_a_worker_that_stops_ends_the_batch_of_its_last_command(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with running(dsn, handling(gate), concurrency=1) as worker:
        batch_id = bus.create_batch("payments", [DEBIT])
        gate.wait_for(1)
        worker.request_stop(time.monotonic() + 10)
        gate.open.set()
    assert batch_of(bus, batch_id).status is BatchStatus.COMPLETED


def test_a_look_that_fails_is_made_again(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """Here the function is missing for a while."""
    rename = "ALTER FUNCTION cmdbus.{} RENAME TO {}"
    batch_id = bus.create_batch("payments", [DEBIT] * 2)
    claimer.settle(*[ended(claim) for claim in claimer.claim(2)])
    with closing(Board.in_memory(1, 2)) as board:
        in_flight = InFlight(claimer.statements, board.seat(0))
        in_flight.left_batches.append(batch_id)
        batches = BatchTransitions(claimer.statements, in_flight)
        thread = ThreadConnection(lambda: connection)
        connection.execute(rename.format("end_batches(uuid[])", "hidden"))
        with pytest.raises(psycopg.errors.UndefinedFunction):
            batches.attend(thread)
        assert batches.due and not batch_of(bus, batch_id).status.terminal
        connection.execute(rename.format("hidden(uuid[])", "end_batches"))
        batches.attend(thread)
    assert batch_of(bus, batch_id).completed == 2 and batch_of(bus, batch_id).status.terminal


def test_a_batch_that_cannot_end_stops_neither_workers_nor_stewards(
    dsn: str, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Here a constraint of an application refuses what it sends."""
    constraint = "ALTER TABLE cmdbus.ready ADD CONSTRAINT no_close CHECK (type <> 'Close')"
    connection.execute(constraint)
    with CommandBus(dsn) as bus, running(dsn, handling(do_nothing)) as worker:
        stuck = bus.create_batch("payments", [DEBIT], on_complete=CLOSE)
        eventually(lambda: f"batch {stuck} cannot go on" in caplog.text)
        for _ in range(3):
            assert bus.wait_batch(bus.create_batch("payments", [DEBIT]), timeout=10).completed == 1
        assert worker.metrics()["claim_failures"] == 0
        connection.execute("ALTER TABLE cmdbus.ready DROP CONSTRAINT no_close")
        eventually(lambda: batch_of(bus, stuck).status is BatchStatus.COMPLETED, 40)


def test_housekeeping_hears_of_a_batch_that_was_left_when_nothing_else_was_in_flight(
    bus: CommandBus, claimer: Claimer
) -> None:
    bus.create_batch("payments", [DEBIT])
    claim = claimer.claim_one()
    with closing(Board.in_memory(1, 2)) as board:
        in_flight = InFlight(claimer.statements, board.seat(0))
        in_flight.take([claim], lambda: False)
        in_flight.filled.clear()
        in_flight.free([claim])
        assert in_flight.filled.is_set()


TYPES = ("Noop", "Debit", "Refuse", "Fail", "FailOnce")


@pytest.mark.fleet(
    procs=2,
    threads=4,
    statement_timeout=25,
    pool_timeout=30,
    visibility_timeout=60,
    thread_timeout=70,
    watchdog_timeout=90,
)
@pytest.mark.parametrize("most_kills", [3, pytest.param(12, marks=pytest.mark.long)])
def test_counters_equal_the_rows_whatever_is_killed(
    fleet: Fleet, dsn: str, most_kills: int
) -> None:
    """At every look, with random outcomes; each transition happens once."""
    dice = random.Random(7)

    def requests(count: int) -> Iterable[SendRequest]:
        for _ in range(count):
            type_ = dice.choice(TYPES)
            yield SendRequest("shop", type_, 0.01 if type_ == "Debit" else None)

    close = SendRequest("shop", "Noop", "closed")
    with CommandBus(dsn) as bus, connect(dsn) as watcher:
        batch_ids = [
            bus.create_batch("shop", requests(count), on_complete=close)
            for count in (30 * most_kills, 15 * most_kills, 50, 10, 1)
        ]
        kills = 0
        left = list(batch_ids)
        while left:
            victims = [*fleet.pids().values(), *filter(None, [fleet.steward()])]
            if kills < most_kills and victims:
                with suppress(ProcessLookupError):  # One that was killed may still be shown.
                    kill(dice.choice(victims))
                    kills += 1
            for _ in range(10):
                left = [id_ for id_ in left if not is_over(check_counters(watcher, id_))]
            resolve = bus.troubleshooting.cancel_all, bus.troubleshooting.complete_all
            dice.choice(resolve)("shop", limit=20, operator="ann")
        for batch_id in batch_ids:
            assert is_over(check_counters(watcher, batch_id))
            kinds = kinds_of(bus, batch_id)
            assert kinds == ["BATCH_CREATED", "BATCH_STARTED", "BATCH_COMPLETED"]
            assert len(sent_after(bus, batch_id)) == 1
        # The last of fewer kills may have a successor only now.
        eventually(lambda: kills == most_kills or len(fleet.look().with_role(Role.WORKER)) == 2)


def is_over(status: str) -> bool:
    return BatchStatus(status).terminal


@pytest.mark.fleet(procs=1, threads=1, http="127.0.0.1:0")
def test_batches_are_counted_by_status_for_metrics(fleet: Fleet, dsn: str) -> None:
    with CommandBus(dsn) as bus:
        bus.wait_batch(bus.create_batch("shop", [SendRequest("shop", "Noop")]), timeout=20)
        bus.create_batch("shop", [SendRequest("shop", "Noop", delay=3600)])

    def page() -> bool:
        _, text = fleet.ask("/metrics", timeout=20)
        wanted = ('{status="completed"} 1', '{status="pending"} 1', '{status="canceled"} 0')
        return all(f"cmdbus_batches{line}" in text for line in wanted)

    eventually(page, 20)
