"""Batches as programs see them: what is created, counted, sent at the end, and refused."""

import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from batches import (
    CLOSE,
    DEBIT,
    FAILED,
    RETRY,
    TROUBLE,
    UNDO,
    batch_of,
    check_counters,
    end,
    kinds_of,
    sent_after,
)
from claiming import Claimer, ended
from handlers import connect
from queries import count

from cmdbus import (
    BatchStatus,
    CommandBus,
    DuplicateCommandError,
    InvalidOperationError,
    SendRequest,
)
from cmdbus.arrays import ids
from cmdbus.worker.steward.batch_round import MAX_LINES, BatchRound


def test_a_batch_is_sent_counted_and_over(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    batch_id = bus.create_batch(
        "payments", [DEBIT] * 3, name="March", data={"month": 3}, on_complete=CLOSE, on_cancel=UNDO
    )
    record = batch_of(bus, batch_id)
    assert (record.domain, record.name, record.data) == ("payments", "March", {"month": 3})
    assert (record.status, record.total, record.remaining) == (BatchStatus.PENDING, 3, 3)
    assert record.started_at is record.completed_at is None
    assert kinds_of(bus, batch_id) == ["BATCH_CREATED"]
    claims = claimer.claim(9)
    assert {claim.batch_id for claim in claims} == {batch_id}
    start = claimer.statements.value(connection, "start_batches", batch_ids=ids([batch_id]))
    assert start == []
    assert batch_of(bus, batch_id).status is BatchStatus.IN_PROGRESS
    claimer.settle_as_batch(*map(ended, claims[:2]))
    end(claimer, batch_id)
    assert check_counters(connection, batch_id) == "IN_PROGRESS"
    claimer.settle(ended(claims[2]))
    assert check_counters(connection, batch_id) == "IN_PROGRESS", "no worker has checked yet"
    end(claimer, batch_id)
    end(claimer, batch_id)
    record = batch_of(bus, batch_id)
    assert (record.status, record.completed, record.remaining) == (BatchStatus.COMPLETED, 3, 0)
    assert record.created_at <= record.started_at <= record.completed_at  # type: ignore[operator]
    assert kinds_of(bus, batch_id) == ["BATCH_CREATED", "BATCH_STARTED", "BATCH_COMPLETED"]
    assert sent_after(bus, batch_id) == [("payments", "Close", {"month": 3})]
    assert bus.get("payments", claims[0].command_id).batch_id == batch_id  # type: ignore[union-attr]
    assert bus.query(type="Close")[0].batch_id is None
    assert count(connection, "cmdbus.tally") == 0


def test_what_is_sent_at_the_end_has_the_options_of_its_request(
    bus: CommandBus, claimer: Claimer
) -> None:
    own = uuid4()
    later = SendRequest(
        "orders", "Close", "x\\y\n", own, "high", 3600, reply_to="payments", max_attempts=7
    )
    batch_id = bus.create_batch("payments", [DEBIT], on_complete=later)
    with pytest.raises(DuplicateCommandError):
        bus.send("orders", "Close", command_id=own)
    claimer.settle(ended(claimer.claim_one()))
    end(claimer, batch_id)
    record = bus.get("orders", own)
    assert record is not None and record.due_at > datetime.now(UTC) + timedelta(minutes=59)
    assert (record.data, record.priority, record.reply_to) == ("x\\y\n", 0, "payments")
    assert (record.max_attempts, record.correlation_id) == (7, batch_id)
    forgotten = uuid4()
    undo = SendRequest("orders", "Undo", command_id=forgotten)
    batch_id = bus.create_batch("payments", [DEBIT], on_cancel=undo)
    claimer.settle(ended(claimer.claim_one()))
    end(claimer, batch_id)
    bus.send("orders", "Undo", command_id=forgotten)


def test_failures_and_operators_decisions_count(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """A command in troubleshooting keeps its batch open until an operator decides; the decision
    that is the last ends the batch."""
    batch_id = bus.create_batch("payments", [DEBIT] * 7, on_complete=CLOSE)
    one, two, three, four, five, six, seven = claimer.claim(9)
    claimer.settle(ended(one, FAILED), ended(two, RETRY))
    claimer.settle(*(ended(claim, TROUBLE) for claim in (three, four, five)))
    bus.cancel("payments", six.command_id, running=True)
    claimer.settle_as_batch(ended(seven))
    end(claimer, batch_id)
    assert check_counters(connection, batch_id) == "PENDING"  # no worker has noted the start
    record = batch_of(bus, batch_id)
    assert (record.failed, record.canceled, record.in_troubleshooting) == (1, 1, 3)
    assert record.remaining == 4
    claimer.statements.value(connection, "promote", count=9, bytes=10**6, skipped="{}")
    [again] = claimer.claim(9)
    assert (again.command_id, again.batch_id) == (two.command_id, batch_id)
    claimer.settle(ended(again))
    bus.troubleshooting.retry("payments", three.command_id, operator="ann")
    [again] = claimer.claim(9)
    assert (again.command_id, again.batch_id) == (three.command_id, batch_id)
    claimer.settle(ended(again))
    end(claimer, batch_id)
    bus.troubleshooting.cancel("payments", four.command_id, operator="ann")
    assert not batch_of(bus, batch_id).status.terminal
    assert bus.troubleshooting.list()[0].batch_id == batch_id
    bus.troubleshooting.complete("payments", five.command_id, operator="ann")
    assert check_counters(connection, batch_id) == "COMPLETED_WITH_FAILURES"
    record = batch_of(bus, batch_id)
    assert (record.completed, record.failed, record.canceled) == (4, 1, 2)
    assert sent_after(bus, batch_id) == [("payments", "Close", {"month": 3})]
    assert kinds_of(bus, batch_id) == ["BATCH_CREATED", "BATCH_STARTED", "BATCH_COMPLETED"]


def test_a_command_keeps_its_batch_wherever_it_goes(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    later = SendRequest("payments", "Debit", delay=3600)
    batch_id = bus.create_batch("payments", [later, DEBIT])
    [delayed] = bus.query(type="Debit", status="PENDING", limit=1, offset=0)
    for command in bus.batch_commands(batch_id):
        bus.reschedule("payments", command.command_id, delay=60)
        bus.reschedule("payments", command.command_id, delay=0)
    claims = claimer.claim(9)
    assert [claim.batch_id for claim in claims] == [batch_id] * 2
    key = claimer.statements.key(claims[0])
    assert claimer.statements.set_aside(connection, key, "CODE", "why")
    assert check_counters(connection, batch_id) == "PENDING"
    assert batch_of(bus, batch_id).in_troubleshooting == 1
    assert delayed.batch_id == batch_id


def test_a_batch_is_waited_for(bus: CommandBus, claimer: Claimer) -> None:
    batch_id = bus.create_batch("payments", [DEBIT] * 2)
    with pytest.raises(TimeoutError, match=r"is PENDING after 0\.05 s: 2 of 2 commands remain"):
        bus.wait_batch(batch_id, timeout=0.05)
    claimer.settle_as_batch(*map(ended, claimer.claim(2)))
    end(claimer, batch_id)
    assert bus.wait_batch(str(batch_id), timeout=5).completed == 2


def test_a_canceled_batch_ends_when_the_last_running_command_has(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    later = SendRequest("orders", "Ship", delay=3600, reply_to="replies")
    batch_id = bus.create_batch(
        "payments", [*[DEBIT] * 500, *[later] * 10], on_complete=CLOSE, on_cancel=UNDO
    )
    running, again = claimer.claim(2)
    bus.cancel_batch(batch_id, reason="wrong prices", operator="ann")
    record = batch_of(bus, batch_id)
    assert (record.canceled, record.remaining, record.status.terminal) == (508, 2, False)
    canceled = bus.batch_commands(batch_id, "CANCELED", limit=1)[0]
    event = bus.audit(canceled.domain, canceled.command_id)[-1]
    assert (event.kind, event.operator, event.message) == ("CANCELED", "ann", "wrong prices")
    assert len(bus.query("replies", limit=20)) == 10
    claimer.settle(ended(again, RETRY))
    see_to = BatchRound(claimer.statements)
    began = time.monotonic()
    pause = see_to.run(connection)
    assert 0 < pause <= max(30, 50 * (time.monotonic() - began)), "by what its search has taken"
    assert batch_of(bus, batch_id).canceled == 509, "it does not run again"
    bus.cancel_batch(batch_id, reason="in vain")
    claimer.settle(ended(running))
    end(claimer, batch_id)
    assert check_counters(connection, batch_id) == "CANCELED"
    assert sent_after(bus, batch_id) == [("orders", "Undo", {"month": 3})]
    kinds = ["BATCH_CREATED", "BATCH_CANCEL_REQUESTED", "BATCH_CANCELED"]
    assert [kind for kind in kinds_of(bus, batch_id) if kind != "BATCH_STARTED"] == kinds
    with pytest.raises(InvalidOperationError, match="cannot be canceled: it is CANCELED"):
        bus.cancel_batch(batch_id)


def test_a_batch_that_only_waits_is_canceled_at_once(bus: CommandBus) -> None:
    batch_id = bus.create_batch("payments", [DEBIT] * 3, on_cancel=UNDO)
    bus.cancel_batch(batch_id)
    record = batch_of(bus, batch_id)
    assert (record.status, record.canceled, record.started_at) == (BatchStatus.CANCELED, 3, None)
    assert sent_after(bus, batch_id) == [("orders", "Undo", {"month": 3})]


def test_two_settlements_that_commit_at_once_end_the_batch_by_a_look_afterwards(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    batch_id = bus.create_batch("payments", [DEBIT] * 2, on_complete=CLOSE)
    one, two = claimer.claim(2)
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        claimer.statements.settle(first, [ended(one)])
        claimer.statements.settle(second, [ended(two)])
        for session in (first, second):
            claimer.statements.value(session, "end_batches", batch_ids=ids([batch_id]))
    assert not batch_of(bus, batch_id).status.terminal
    for _ in range(2):
        end(claimer, batch_id)
    assert batch_of(bus, batch_id).status is BatchStatus.COMPLETED
    assert len(sent_after(bus, batch_id)) == 1


def test_an_operator_who_looks_with_an_old_snapshot_ends_nothing(
    dsn: str, bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    batch_id = bus.create_batch("payments", [DEBIT] * 2)
    claim = claimer.claim_one()
    with psycopg.connect(dsn) as mine:
        mine.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        mine.execute("SELECT 1")
        claimer.settle(ended(claim))
        for command in bus.batch_commands(batch_id, "PENDING"):
            bus.cancel("payments", command.command_id, connection=mine)
    assert not batch_of(bus, batch_id).status.terminal
    BatchRound(claimer.statements).run(connection)
    assert check_counters(connection, batch_id) == "COMPLETED_WITH_FAILURES"


def test_the_tally_of_a_large_batch_is_added_to_its_counters(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """While settlements go on: none waits."""
    batch_id = bus.create_batch("payments", [DEBIT] * (MAX_LINES + 20))
    for claim in claimer.claim(MAX_LINES + 10):
        claimer.settle(ended(claim))
    rest = claimer.claim(10)
    with connect(connection.info.dsn) as other, other.transaction():
        claimer.statements.settle(other, [ended(rest[0])])
        BatchRound(claimer.statements).run(connection)
        assert count(connection, "cmdbus.tally") == 0
        assert check_counters(connection, batch_id) == "IN_PROGRESS"
    assert check_counters(connection, batch_id) == "IN_PROGRESS"
    assert batch_of(bus, batch_id).completed == MAX_LINES + 11


def test_a_batch_is_started_and_its_tally_folded_while_handlers_add_to_it(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """Of many that add, there may always be one that has not committed."""
    batch_id = bus.create_batch("payments", [DEBIT] * (MAX_LINES + 2))
    with psycopg.connect(connection.info.dsn) as adding:
        adding.execute("SELECT cmdbus.add_to_batch(%s, 1, true)", (batch_id,))
        start = "start_batches"
        assert claimer.statements.value(connection, start, batch_ids=ids([batch_id])) == []
        assert batch_of(bus, batch_id).status is BatchStatus.IN_PROGRESS
        for claim in claimer.claim(MAX_LINES + 1):
            claimer.settle(ended(claim))
        BatchRound(claimer.statements).run(connection)
        assert count(connection, "cmdbus.tally") == 0
    record = batch_of(bus, batch_id)
    assert (record.total, record.remaining) == (MAX_LINES + 3, 2)


def test_an_operator_decides_although_a_batch_cannot_end(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """Here a constraint of an application refuses what it sends."""
    connection.execute("ALTER TABLE cmdbus.ready ADD CONSTRAINT no_undo CHECK (type <> 'Undo')")
    one, two = (bus.create_batch("payments", [DEBIT], on_complete=UNDO) for _ in range(2))
    troubled, running = claimer.claim(2)
    claimer.settle(ended(troubled, TROUBLE))
    bus.troubleshooting.complete("payments", troubled.command_id, operator="ann")
    bus.cancel("payments", running.command_id, running=True)
    for batch_id in (one, two):
        assert check_counters(connection, batch_id) == "PENDING"
        assert batch_of(bus, batch_id).remaining == 0
    connection.execute("ALTER TABLE cmdbus.ready DROP CONSTRAINT no_undo")
    BatchRound(claimer.statements).run(connection)
    for batch_id in (one, two):
        assert check_counters(connection, batch_id).startswith("COMPLETED")
        assert len(sent_after(bus, batch_id)) == 1


def test_a_steward_does_what_dead_processes_have_left(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """One that died before it looked, and one that died while it canceled."""
    over = bus.create_batch("payments", [DEBIT] * 2, on_complete=CLOSE)
    claimer.settle_as_batch(*map(ended, claimer.claim(2)))
    canceled = bus.create_batch("payments", [DEBIT] * 450)
    values = {"batch_id": canceled, "operator": "ann", "reason": "why"}
    assert claimer.statements.value(connection, "cancel_batch", **values) == "PENDING"
    BatchRound(claimer.statements).run(connection)
    assert batch_of(bus, over).status is BatchStatus.COMPLETED
    assert len(sent_after(bus, over)) == 1
    assert check_counters(connection, canceled) == "CANCELED"
    assert BatchRound(claimer.statements).run(connection) >= 1


def test_batches_are_removed_when_their_domain_keeps_them_no_longer(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    bus.configure("orders", keep=timedelta(days=30))
    kept, gone, unfinished = (
        bus.create_batch(domain, [DEBIT]) for domain in ("orders", "payments", "payments")
    )
    claimer.settle_as_batch(*map(ended, claimer.claim(2)))
    for batch_id in (kept, gone):
        end(claimer, batch_id)
    connection.execute("UPDATE cmdbus.batch_state SET created_at = created_at - interval '8 days'")
    connection.execute(
        "UPDATE cmdbus.batch_state SET completed_at = completed_at - interval '8 days'"
    )
    assert claimer.statements.value(connection, "retain_batches", size=10) == 1
    assert {record.batch_id for record in bus.list_batches()} == {kept, unfinished}


def test_a_purge_takes_its_commands_out_of_their_batches(
    dsn: str, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """One that has none left is over, and keeps the steward from nothing."""
    with CommandBus(dsn, purge_allowed=True) as bus:
        batch_id = bus.create_batch("payments", [DEBIT] * 3 + [SendRequest("orders", "Ship")])
        assert bus.purge("payments") == 3
        assert check_counters(connection, batch_id) == "PENDING"
        assert batch_of(bus, batch_id).total == 1
        assert bus.purge("orders") == 1
        BatchRound(claimer.statements).run(connection)
        assert check_counters(connection, batch_id) == "COMPLETED"
        assert batch_of(bus, batch_id).total == 0
