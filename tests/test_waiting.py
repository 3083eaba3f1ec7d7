"""Commands that wait: rescheduled, and canceled in number."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import beside, connect, found, handling, kinds, running
from queries import (
    CLAIM,
    NOWHERE,
    await_lock_waits,
    claim_by_hand,
    count,
    scalar,
    slow_down_inserts,
)

from cmdbus import (
    Command,
    CommandBus,
    CommandNotFoundError,
    Context,
    InvalidOperationError,
    SendRequest,
    Status,
    TransientCommandError,
)
from cmdbus.database.executor import Executor
from cmdbus.producer.steering import CHUNK, CHUNK_BYTES


@pytest.mark.parametrize("delay", [None, 3600])
def test_a_command_that_waits_gets_another_time_and_priority(
    bus: CommandBus, delay: float | None
) -> None:
    options: dict[str, Any] = {"reply_to": "orders", "max_attempts": 7}
    id_ = bus.send("payments", "Debit", {"n": 1}, delay=delay, **options)
    before = found(bus, id_)
    later = datetime.now(UTC) + timedelta(days=2)
    bus.reschedule(
        "payments", id_, run_at=later, priority="high", operator="ann", reason="not today"
    )
    after = found(bus, id_)
    assert (after.due_at, after.priority) == (later, 0)
    for name in ("data", "correlation_id", "reply_to", "created_at", "max_attempts"):
        assert getattr(after, name) == getattr(before, name)
    *_, event = bus.audit("payments", id_)
    assert (event.kind, event.operator, event.message) == ("RESCHEDULED", "ann", "not today")
    assert (event.details["priority_before"], event.details["priority"]) == (5, 0)
    bus.reschedule("payments", id_, delay=0)
    now = found(bus, id_)
    assert timedelta(0) <= datetime.now(UTC) - now.due_at < timedelta(seconds=20)
    assert bus.snapshot("payments")["ready"] == 1
    bus.reschedule("payments", id_, priority="low")
    assert (found(bus, id_).due_at, found(bus, id_).priority) == (now.due_at, 10)
    bus.reschedule("payments", id_, delay=timedelta(hours=1))
    assert bus.snapshot("payments")["scheduled"] == 1


def test_a_retry_in_its_backoff_runs_now_and_its_attempts_stay(dsn: str) -> None:
    attempts = []

    def debit(command: Command, context: Context) -> None:
        attempts.append(context.attempt)
        if context.attempt == 1:
            raise TransientCommandError("BUSY", "later", retry_after=3600)

    with CommandBus(dsn) as bus, running(dsn, handling(debit)):
        id_ = bus.send("payments", "Debit")
        eventually(lambda: bus.snapshot("payments")["scheduled"] == 1, 20)
        # The worker rests: only a notification wakes it in time.
        bus.reschedule("payments", id_, delay=0)
        assert bus.wait("payments", id_).status is Status.COMPLETED
    assert attempts == [1, 2]


def test_a_command_whose_time_comes_while_it_is_rescheduled_is_there_once(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        id_ = bus.send("payments", "Debit", delay=60)
        for table in ("ready", "scheduled"):
            slow_down_inserts(connection, 0.4, table)
        bus.reschedule("payments", id_, delay=0.2)
        assert count(connection, "cmdbus.ready") + count(connection, "cmdbus.scheduled") == 1


def test_what_runs_and_what_has_ended_is_not_rescheduled(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        running, ended, unknown = bus.send("payments", "D"), bus.send("payments", "D"), uuid4()
        claim_by_hand(dsn, running)
        bus.cancel("payments", ended)
        with pytest.raises(InvalidOperationError, match="cannot be rescheduled: it is in progress"):
            bus.reschedule("payments", running, delay=0)
        with pytest.raises(InvalidOperationError, match="rescheduled: it has finished"):
            bus.reschedule("payments", ended, delay=0)
        with pytest.raises(CommandNotFoundError, match=str(unknown)):
            bus.reschedule("payments", unknown, delay=0)
        assert kinds(bus, running) == ["SENT", "RECEIVED"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "reschedule needs a time"),
        ({"delay": -1}, "delay must be from 0 seconds"),
        ({"delay": 10**5000}, "delay must be from 0 seconds"),
        ({"delay": float("nan")}, "delay must be from 0 seconds"),
        ({"delay": 1, "run_at": datetime.now(UTC)}, "say the same thing"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at must be an aware datetime"),
        ({"priority": "urgent"}, "priority must be"),
        ({"delay": 1, "operator": " "}, "operator must be 1 to 200"),
    ],
)
def test_bad_arguments_of_reschedule_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(ValueError, match=sentence):
        bus.reschedule("payments", uuid4(), **arguments)


def test_a_lost_claim_that_is_rescheduled_can_no_longer_settle(dsn: str) -> None:
    """The token never goes back, the id is new, and the loss is counted."""
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        id_ = bus.send("payments", "Debit")
        claim_by_hand(dsn, id_, "-1 second")
        query = "SELECT id, token, losses, claimer FROM cmdbus.ready"
        before = connection.execute(query).fetchone()
        bus.reschedule("payments", id_, priority="high")
        after = connection.execute(query).fetchone()
        assert before is not None and after is not None
        assert after[0] > before[0] and after[1] > before[1]
        assert after[2:] == (1, None)


@pytest.mark.parametrize("act", ["cancel", "reschedule"])
def test_what_is_claimed_meanwhile_stays(dsn: str, act: str) -> None:
    """The lease is tested by the statement that acts, on the row as the claim left it."""
    with CommandBus(dsn) as bus:
        id_ = bus.send("payments", "Debit", delay=0)
        errors: list[Exception] = []

        def attempt() -> None:
            try:
                if act == "cancel":
                    bus.cancel("payments", id_)
                else:
                    bus.reschedule("payments", id_, delay=60)
            except InvalidOperationError as error:
                errors.append(error)

        with psycopg.connect(dsn) as claimer:
            claimer.execute(CLAIM, ("1 minute", id_))
            with beside(attempt):
                await_lock_waits(dsn)
                claimer.commit()
        assert "it is in progress" in str(errors[0])
        assert found(bus, id_).status is Status.IN_PROGRESS


def test_all_that_waits_is_canceled_with_events_and_replies(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        ids = bus.send_many([SendRequest("payments", "Debit", n) for n in range(CHUNK + 50)])
        ids += bus.send_many([SendRequest("payments", "Debit", delay=9e6)] * (CHUNK + 1))
        asked = bus.send("payments", "Debit", reply_to="replies")
        running, other = bus.send("payments", "Debit"), bus.send("payments", "Other")
        elsewhere = bus.send("orders", "Debit")
        claim_by_hand(dsn, running)
        boundary = datetime.now(UTC)
        bus.send("payments", "Debit")
        conditions: dict[str, Any] = {"type": "Debit", "until": boundary}
        assert bus.count_waiting("payments", **conditions) == len(ids) + 1
        remark: dict[str, Any] = {"operator": "ann", "reason": "wrong price"}
        assert bus.cancel_all("payments", **conditions, **remark) == len(ids) + 1
        assert found(bus, running).status is Status.IN_PROGRESS
        assert found(bus, other).status is Status.PENDING
        assert bus.snapshot("payments")["depth"] == 2
        assert bus.snapshot("orders")["depth"] == 1 and bus.get("orders", elsewhere)
        for id_ in (ids[0], ids[-1], asked):
            record, event = found(bus, id_), bus.audit("payments", id_)[-1]
            assert (record.status, record.error_message) == (Status.CANCELED, "wrong price")
            assert (event.kind, event.operator, event.message) == (
                "CANCELED",
                "ann",
                "wrong price",
            )
        [reply] = bus.query("replies")
        assert (reply.type, reply.data["command_id"]) == ("Reply", str(asked))
        assert reply.data["outcome"] == "CANCELED"
        assert bus.cancel_all("payments", since=boundary) == 1
        assert bus.cancel_all("payments") == 1 and bus.cancel_all("payments") == 0


def test_a_batch_is_bounded_in_bytes_and_leaves_locked_rows(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        # Random, so that its stored form is as long.
        data = "".join(uuid4().hex for _ in range(20_000))
        for delay in (None, 60):
            ids = bus.send_many([SendRequest("payments", "Debit", data, delay=delay)] * 4)
        values: dict[str, object] = dict.fromkeys(("type", "since", "operator", "reason"))
        values |= {"domain": "payments", "count": CHUNK, "until": datetime.now(UTC)}
        first: dict[str, dict[str, object]] = {
            "cancel_scheduled": {"command_id": None},
            "cancel_ready": {"priority": -1, "id": 0},
        }
        size = scalar(connection, "SELECT min(pg_column_size(data)) FROM cmdbus.ready")
        assert CHUNK * size > CHUNK_BYTES
        for name, key in first.items():
            for allowed, expected in ((1, 1), (size + 1, 2)):
                values |= {"bytes": allowed}
                row = Executor("cmdbus").row(connection, name, **values, **key)
                assert row is not None and row[0] == expected
        with connect(dsn) as other, other.transaction():
            lock = "SELECT FROM cmdbus.scheduled WHERE command_id = %s FOR UPDATE"
            left = bus.query("payments", "PENDING")[0].command_id
            other.execute(lock, [left])
            assert left in ids and bus.cancel_all("payments") == 1
        assert found(bus, left).status is Status.PENDING


def test_what_is_promoted_meanwhile_is_canceled_too(dsn: str) -> None:
    """In a transaction of the caller's, all or nothing."""
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        bus.send("payments", "Debit", delay=60)
        with connection.transaction(force_rollback=True):
            assert bus.cancel_all("payments", connection=connection) == 1
        assert bus.snapshot("payments")["depth"] == 1
