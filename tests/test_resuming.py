"""Handlers that keep checkpoints, go on from the last one, and give their command back."""

import logging
import re
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event
from typing import Any
from uuid import UUID

import psycopg
import pytest
from claiming import Claimer, ended
from cli import here
from eventually import eventually
from handlers import (
    ONCE,
    SOON,
    connect,
    effects,
    found,
    handling,
    kinds,
    leave_effect,
    promote,
    run,
    running,
)
from queries import await_lock_waits, claim_by_hand, count, insert, rows

from cmdbus import Command, CommandBus, Context, PermanentCommandError, Status
from cmdbus.board.counters import OutcomeLabel
from cmdbus.errors import InvalidOperationError
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import given_back
from cmdbus.worker.execution.checkpoints import Checkpoints
from cmdbus.worker.steward.retention import Retention

#: Before a checkpoint: whether the transaction is open then.
Before = Callable[[Command, Context], object]


def nothing(command: Command, context: Context) -> None:
    """The checkpoint is kept by itself."""


@pytest.mark.parametrize("before", [leave_effect, nothing])
def test_a_command_that_is_given_back_goes_on_from_its_checkpoint_uncharged(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture, before: Before
) -> None:
    caplog.set_level(logging.DEBUG, "cmdbus.worker")
    seen: list[tuple[Any, int]] = []

    def count_to_three(command: Command, context: Context) -> object:
        seen.append((context.resumed, context.attempt))
        before(command, context)
        done = (context.resumed or {"done": 0})["done"] + 1
        context.checkpoint({"done": done})
        assert context.resumed == {"done": done}
        return context.again() if done < 3 else done  # type: ignore[func-returns-value]

    counted = {
        ("payments", "Debit", "completed"): 1,
        ("payments", "Debit", "interrupted"): 2,
    }
    with running(dsn, handling(count_to_three)) as worker:
        sent = bus.send("payments", "Debit")
        record = bus.wait("payments", sent, 10)
        eventually(lambda: worker.metrics()["cmdbus_commands_total"] == counted)
    assert (record.status, record.result, record.attempts) == (Status.COMPLETED, 3, 1)
    assert seen == [(None, 1), ({"done": 1}, 1), ({"done": 2}, 1)]
    assert kinds(bus, sent) == ["SENT", "RECEIVED", "COMPLETED"]
    assert caplog.text.count("command was given back by its handler") == 2
    assert rows(dsn, "SELECT losses FROM cmdbus.finished") == [(0,)]
    assert effects(dsn) == (3 if before is leave_effect else 0)


def test_the_next_command_of_an_order_waits_until_one_that_gives_itself_back_has_ended(
    dsn: str, bus: CommandBus
) -> None:
    order: list[int] = []

    def twice(command: Command, context: Context) -> None:
        order.append(command.data)
        if context.resumed is None:
            context.checkpoint("half")
            context.again()

    with running(dsn, handling(twice, ordered=True)):
        sent = [bus.send("payments", "Debit", number, key="k") for number in (1, 2)]
        for command_id in sent:
            bus.wait("payments", command_id, 10)
    assert order == [1, 1, 2, 2]


@pytest.mark.parametrize(("before", "kept"), [(leave_effect, None), (nothing, "half")])
def test_a_checkpoint_of_a_failed_execution_is_rolled_back_with_its_transaction_or_stays(
    dsn: str, bus: CommandBus, before: Before, kept: object
) -> None:
    resumed = []

    def fail_once(command: Command, context: Context) -> None:
        resumed.append(context.resumed)
        if context.attempt == 1:
            before(command, context)
            context.checkpoint("half")
            raise RuntimeError("the first time")

    with running(dsn, handling(fail_once, retry=SOON)):
        assert bus.wait("payments", bus.send("payments", "Debit"), 10).attempts == 2
    assert resumed == [None, kept]


def test_a_checkpoint_outlives_troubleshooting_where_operators_see_it(
    dsn: str, bus: CommandBus
) -> None:
    def stop_halfway(command: Command, context: Context) -> object:
        if context.resumed is None:
            context.checkpoint(["half", 1.5, None])
            raise PermanentCommandError("HALF", "an operator must decide")
        return context.resumed

    with running(dsn, handling(stop_halfway)):
        sent = bus.send("payments", "Debit")
        assert bus.wait("payments", sent, 10).status is Status.IN_TROUBLESHOOTING_QUEUE
        for record in (found(bus, sent), *bus.query("payments"), *bus.troubleshooting.list()):
            assert record.checkpoint == ["half", 1.5, None]
        shown = here("get", "payments", str(sent), "--dsn", dsn).stdout
        assert re.search(r' checkpoint +\["half", 1.5, null\]\n', shown)
        bus.troubleshooting.retry("payments", sent, operator="eve")
        record = bus.wait("payments", sent, 10)
    assert (record.result, record.checkpoint) == (["half", 1.5, None], None)


@pytest.mark.parametrize("before", [leave_effect, nothing])
@pytest.mark.parametrize("lose", ["claimed again", "canceled"])
def test_a_claim_that_was_lost_keeps_no_checkpoint(
    dsn: str, bus: CommandBus, lose: str, before: Before
) -> None:
    raised = SimpleQueue[str]()

    def debit(command: Command, context: Context) -> None:
        before(command, context)
        if lose == "canceled":
            bus.cancel("payments", command.command_id, running=True)
        else:
            claim_by_hand(dsn, command.command_id)
        try:
            context.checkpoint("late")
        except Exception as error:
            raised.put(str(error))
            raise

    with running(dsn, handling(debit, retry=ONCE)) as worker, connect(dsn) as connection:
        bus.send("payments", "Debit")
        assert "the command was canceled, or another worker has" in raised.get(timeout=10)
        label = "canceled" if lose == "canceled" else "lost"
        expected = {("payments", "Debit", label): 1}
        eventually(lambda: worker.metrics()["cmdbus_commands_total"] == expected)
        assert (count(connection, "cmdbus.checkpoint"), effects(dsn)) == (0, 0)


def test_a_checkpoint_that_is_being_kept_holds_the_next_claim_off_for_that_time(
    dsn: str, claimer: Claimer, bus: CommandBus
) -> None:
    """Else the next claim could read the one before, and then lose this one's progress."""
    bus.send("payments", "Debit")
    claim = claimer.claim_one()
    lock = "SELECT FROM cmdbus.ready FOR NO KEY UPDATE NOWAIT"
    with connect(dsn) as other, connect(dsn) as watcher:
        alone = Checkpoints(claimer.statements, claim, lambda _, work: work(other, False))
        within = Checkpoints(claimer.statements, claim, lambda _, work: work(other, True))
        with other.transaction():
            alone.save(1)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                watcher.execute(lock)
        with other.transaction():
            within.save(2)
            watcher.execute(lock)


def test_the_checkpoint_of_an_earlier_command_with_the_same_id_is_none(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    resumed = []

    def debit(command: Command, context: Context) -> None:
        resumed.append(context.resumed)
        if context.attempt == 1:
            raise RuntimeError("the first time")

    command_id = UUID(int=7)
    insert(
        connection,
        "cmdbus.checkpoint",
        domain="payments",
        command_id=command_id,
        created_at="2020-01-01",
        data='"of another"',
    )
    with running(dsn, handling(debit, retry=SOON)):
        bus.wait("payments", bus.send("payments", "Debit", command_id=command_id), 10)
    assert resumed == [None, None]


def test_checkpoints_of_commands_that_have_ended_are_removed_and_those_of_others_stay(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    def keep(command: Command, context: Context) -> None:
        context.checkpoint(command.data)
        if command.data == "troubleshooting":
            raise PermanentCommandError("HALF", "an operator must decide")
        if command.data == "scheduled":
            context.again(delay=300)

    with running(dsn, handling(keep)):
        for place in ("ended", "troubleshooting", "scheduled"):
            bus.send("payments", "Debit", place)
        eventually(lambda: count(connection, "cmdbus.checkpoint") == 3)
    running_id = bus.send("payments", "Debit")
    claim_by_hand(dsn, running_id)
    insert(
        connection,
        "cmdbus.checkpoint",
        domain="payments",
        command_id=running_id,
        created_at="now",
        data='"ready"',
    )
    removed = Retention(ClaimStatements("cmdbus", 30), Event()).remove_checkpoints(connection)
    left = connection.execute("SELECT data FROM cmdbus.checkpoint ORDER BY data::text").fetchall()
    assert (removed, left) == (1, [("ready",), ("scheduled",), ("troubleshooting",)])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"at": [float("nan")]}, r"checkpoint\.at\[0\] is nan: JSON has no such number"),
        ("x" * 2**20, r"checkpoint has 1048578 bytes as JSON: at most 1048576 are taken"),
    ],
    ids=["no JSON", "too large"],
)
def test_what_cannot_be_a_checkpoint_is_an_error_and_the_one_before_stays(
    dsn: str, bus: CommandBus, data: object, sentence: str
) -> None:
    def debit(command: Command, context: Context) -> object:
        context.checkpoint("before")
        with pytest.raises(ValueError, match=sentence):
            context.checkpoint(data)
        return context.resumed

    assert run(dsn, bus, debit)[0].result == "before"


def test_checkpoints_cannot_be_used_after_the_handler_has_returned(
    dsn: str, bus: CommandBus
) -> None:
    kept = SimpleQueue[Context]()
    run(dsn, bus, lambda command, context: kept.put(context))
    context = kept.get()
    with pytest.raises(InvalidOperationError, match=r"context\.resumed was used after"):
        _ = context.resumed
    with pytest.raises(InvalidOperationError, match=r"context\.checkpoint\(\) was used after"):
        context.checkpoint(1)


def test_a_checkpoint_whose_session_has_ended_is_kept_in_a_new_one(
    dsn: str, bus: CommandBus
) -> None:
    def debit(command: Command, context: Context) -> object:
        context.checkpoint(1)
        rows(
            dsn,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE '%save_checkpoint%'"
            " AND pid <> pg_backend_pid()",
        )
        context.checkpoint(2)
        return context.resumed

    [record] = run(dsn, bus, debit)
    assert (record.result, record.attempts) == (2, 1)


@pytest.mark.parametrize("before", [leave_effect, nothing])
def test_a_checkpoint_whose_row_is_locked_charges_no_command(
    dsn: str, bus: CommandBus, before: Before
) -> None:
    """By an execution that has lost its claim, say, and whose transaction is still open."""
    held = Event()

    def debit(command: Command, context: Context) -> None:
        if not held.is_set():
            context.checkpoint(1)
            held.wait(10)
        before(command, context)
        context.checkpoint(2)

    registry = handling(debit, retry=ONCE, statement_timeout=0.2)
    with running(dsn, registry), connect(dsn) as other:
        sent = bus.send("payments", "Debit")
        eventually(lambda: count(other, "cmdbus.checkpoint") == 1)
        with other.transaction():
            other.execute("SELECT FROM cmdbus.checkpoint FOR UPDATE")
            held.set()
            await_lock_waits(dsn)
            eventually(lambda: found(bus, sent).error_code == "CHECKPOINT_BLOCKED")
        assert bus.wait("payments", sent, 10).attempts == 1


def test_a_claim_that_was_given_back_is_known_although_its_reply_was_lost(
    claimer: Claimer, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send("payments", "Debit")
    claim = claimer.claim_one()
    assert claimer.statements.ends(connection, [claim]) == [None]
    assert claimer.settle(ended(claim, given_back(0))) == []
    assert claimer.statements.ends(connection, [claim]) == [OutcomeLabel.INTERRUPTED]
    assert promote(claimer.statements, connection) == 1
    assert claimer.statements.ends(connection, [claim]) == [OutcomeLabel.INTERRUPTED]
    assert claimer.claim_one().token == claim.token + 1
    assert claimer.statements.ends(connection, [claim]) == [None]
