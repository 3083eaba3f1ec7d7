"""Commands that wait for a person: found, retried, canceled, completed, one and many."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import beside, connect, found, kinds, running
from proxy import Proxy
from queries import await_lock_waits, move_to_troubleshooting

from cmdbus import (
    Command,
    CommandBus,
    CommandNotFoundError,
    Context,
    HandlerRegistry,
    InvalidOperationError,
    RetryPolicy,
    SendRequest,
    Status,
)


def troubled(bus: CommandBus, dsn: str, data: Any = None, **options: Any) -> UUID:
    id_ = bus.send("payments", "Debit", data, **options)
    assert move_to_troubleshooting(dsn) == 1
    return id_


def test_the_queue_is_listed_newest_first_page_by_page_with_the_data(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        requests = [SendRequest("payments", "Debit", {"n": n}) for n in range(150)]
        ids = bus.send_many(requests)
        move_to_troubleshooting(dsn)
        connection.execute(
            "UPDATE cmdbus.troubleshooting"
            " SET failed_at = failed_at + (data ->> 'n')::integer * interval '1 second'"
        )
        queue = bus.troubleshooting
        pages = [queue.list(limit=60, offset=offset) for offset in (0, 60, 120, 180)]
        assert [len(page) for page in pages] == [60, 60, 30, 0]
        records = [record for page in pages for record in page]
        assert [record.command_id for record in records] == ids[::-1]
        assert [record.data["n"] for record in records] == list(range(150))[::-1]
        assert (queue.count(), len(queue.list())) == (150, 100)
        first = records[0]
        assert (first.status, first.attempts) == (Status.IN_TROUBLESHOOTING_QUEUE, 3)
        assert (first.error_code, first.error_message) == ("GONE", "it is gone")
        assert (first.reason, first.failed_at > first.created_at) == ("PERMANENT", True)


def test_the_queue_is_listed_by_every_condition(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        debit = troubled(bus, dsn)
        boundary = datetime.now(UTC)
        ship = bus.send("orders", "Ship")
        move_to_troubleshooting(dsn, code="BUSY")

        def both(**conditions: Any) -> list[UUID]:
            records = bus.troubleshooting.list(**conditions)
            assert bus.troubleshooting.count(**conditions) == len(records)
            return [record.command_id for record in records]

        assert both() == [ship, debit]
        assert both(domain="payments") == [debit]
        assert both(type="Ship") == [ship]
        assert both(error_code="GONE") == [debit]
        assert both(since=boundary) == [ship]
        assert both(until=boundary) == [debit]
        assert both(domain="payments", error_code="BUSY") == []
        troubled(bus, dsn)
        counts = bus.troubleshooting.summary()
        assert [(each.type, each.error_code, each.count) for each in counts] == [
            ("Debit", "GONE", 2),
            ("Ship", "BUSY", 1),
        ]
        assert counts[0].first_failed_at < boundary < counts[0].last_failed_at
        assert bus.troubleshooting.summary(type="Ship", until=boundary) == []


def test_a_retried_command_runs_under_its_senders_limit_or_todays_policy(dsn: str) -> None:
    """Not under the policy that applied when it failed."""

    def fail(command: Command, context: Context) -> None:
        raise RuntimeError("again")

    with CommandBus(dsn) as bus:
        ids = [bus.send("payments", "Debit", max_attempts=limit) for limit in (None, 2)]
        for policy in (1, 3):
            registry = HandlerRegistry()
            retry = RetryPolicy(max_attempts=policy, backoff=(0.001,))
            registry.register("payments", "Debit", fail, retry=retry)
            with running(dsn, registry):
                eventually(lambda: bus.troubleshooting.count() == 2, 20)
            limits = [(found(bus, id_).attempts, found(bus, id_).max_attempts) for id_ in ids]
            assert limits == [(policy, policy), (2, 2)]
            bus.troubleshooting.retry_all("payments", operator="ann")
        assert [found(bus, id_).max_attempts for id_ in ids] == [None, 2]


def test_a_retried_command_starts_again_with_no_attempts(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        id_ = troubled(bus, dsn, {"amount": 5}, priority="high", reply_to="orders")
        before = found(bus, id_)
        bus.troubleshooting.retry("payments", id_, operator="ann", reason="fixed")
        after = found(bus, id_)
        assert (after.status, after.attempts, after.max_attempts) == (Status.PENDING, 0, None)
        for name in ("data", "priority", "correlation_id", "reply_to", "created_at"):
            assert getattr(after, name) == getattr(before, name)
        assert after.due_at > before.due_at
        row = connection.execute("SELECT losses, token, claimer, id > 1 FROM cmdbus.ready")
        assert row.fetchone() == (0, 7, None, True)
        *_, event = bus.audit("payments", id_)
        assert (event.kind, event.operator, event.message) == ("OPERATOR_RETRY", "ann", "fixed")
        assert bus.troubleshooting.list() == []


def test_a_canceled_command_answers_with_the_reason(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        id_ = troubled(bus, dsn, reply_to="orders")
        assert bus.query("orders") == []
        bus.troubleshooting.cancel("payments", id_, operator="ann", reason="no such account")
        record = found(bus, id_)
        assert (record.status, record.error_code) == (Status.CANCELED, "CANCELED")
        assert record.error_message == "no such account"
        assert record.finished_at is not None
        *_, event = bus.audit("payments", id_)
        assert (event.kind, event.operator) == ("OPERATOR_CANCEL", "ann")
        assert event.message == "no such account"
        [reply] = bus.query("orders")
        assert (reply.type, reply.correlation_id) == ("Reply", record.correlation_id)
        assert reply.data == {
            "command_id": str(id_),
            "type": "Debit",
            "outcome": "CANCELED",
            "result": {"code": "CANCELED", "message": "no such account", "details": None},
        }


def test_a_command_completed_by_hand_answers_with_the_result(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        for result in ({"by": "hand"}, None):
            id_ = troubled(bus, dsn, reply_to="orders")
            bus.troubleshooting.complete("payments", id_, operator="ann", result=result)
            record = found(bus, id_)
            assert (record.status, record.result) == (Status.COMPLETED, result)
            assert (record.error_code, record.error_message) == (None, None)
            assert kinds(bus, id_)[-1] == "OPERATOR_COMPLETE"
            assert "COMPLETED" not in kinds(bus, id_)
            reply = bus.query("orders", limit=1)[0]
            assert (reply.data["outcome"], reply.data["result"]) == ("SUCCESS", result)


Call = Callable[[CommandBus, UUID], None]
CALLS: dict[str, Call] = {
    "retried": lambda bus, id_: bus.troubleshooting.retry("payments", id_, operator="ann"),
    "canceled": lambda bus, id_: bus.troubleshooting.cancel("payments", id_, operator="ann"),
    "completed": lambda bus, id_: bus.troubleshooting.complete("payments", id_, operator="ann"),
}


@pytest.mark.parametrize("done", CALLS)
def test_only_what_is_in_the_queue_can_be_resolved(dsn: str, done: str) -> None:
    call = CALLS[done]
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        id_ = bus.send("payments", "Debit")
        with pytest.raises(InvalidOperationError, match=f"cannot be {done}: it is PENDING"):
            call(bus, id_)
        connection.execute("UPDATE cmdbus.ready SET lease_until = now() + interval '1 minute'")
        with pytest.raises(InvalidOperationError, match="it is IN_PROGRESS"):
            call(bus, id_)
        bus.cancel("payments", id_, running=True)
        with pytest.raises(InvalidOperationError, match="it is CANCELED"):
            call(bus, id_)
        later = bus.send("payments", "Debit", delay=60)
        with pytest.raises(InvalidOperationError, match="it is PENDING"):
            call(bus, later)
        with pytest.raises(CommandNotFoundError, match="domain 'payments' has no command"):
            call(bus, uuid4())
        assert not {kind for kind in kinds(bus, id_) if kind.startswith("OPERATOR")}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"operator": ""}, "operator must be 1 to 200 characters"),
        ({"operator": " "}, "operator must be 1 to 200 characters"),
        ({"operator": None}, "operator must be 1 to 200 characters"),
        ({"operator": "x" * 201}, "operator must be 1 to 200 characters"),
        ({"operator": "a\0b"}, "operator must be text"),
        ({"reason": "x" * 2001}, "reason must be text of at most 2000"),
        ({"result": float("nan")}, "result"),
        ({"result": "x" * 2_000_000}, "result has 2000002 bytes"),
        ({"command_id": "seven"}, "command_id must be a UUID"),
    ],
)
def test_an_operators_arguments_are_checked_before_anything_is_written(
    dsn: str, arguments: dict[str, Any], sentence: str
) -> None:
    with CommandBus(dsn) as bus:
        id_ = troubled(bus, dsn)
        resolution = {"command_id": id_, "operator": "ann", **arguments}
        with pytest.raises(ValueError, match=sentence):
            bus.troubleshooting.complete("payments", **resolution)
        if "command_id" not in arguments:
            del resolution["command_id"]
            with pytest.raises(ValueError, match=sentence):
                bus.troubleshooting.complete_all("payments", **resolution)
        assert bus.troubleshooting.count() == 1


def test_a_reply_that_cannot_be_written_undoes_everything(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        id_ = troubled(bus, dsn, reply_to="orders")
        connection.execute(
            "ALTER TABLE cmdbus.ready ADD CONSTRAINT no_replies CHECK (type <> 'Reply')"
        )
        for call in (CALLS["canceled"], CALLS["completed"]):
            with pytest.raises(psycopg.errors.CheckViolation):
                call(bus, id_)
        assert found(bus, id_).status is Status.IN_TROUBLESHOOTING_QUEUE
        assert kinds(bus, id_) == ["SENT", "MOVED_TO_TROUBLESHOOTING_QUEUE"]


def test_every_call_can_be_part_of_the_callers_transaction(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as connection:
        ids = [troubled(bus, dsn, reply_to="orders") for _ in range(6)]
        resolution: dict[str, Any] = {"operator": "ann", "connection": connection}
        queue = bus.troubleshooting
        queue.retry("payments", ids[0], **resolution)
        queue.cancel("payments", ids[1], **resolution)
        queue.complete("payments", ids[2], **resolution)
        assert queue.count(connection=connection) == len(queue.list(connection=connection)) == 3
        assert queue.retry_all(limit=1, **resolution) == 1
        assert queue.cancel_all(limit=1, **resolution) == 1
        assert queue.complete_all(**resolution) == 1
        assert queue.count(connection=connection) == 0
        connection.rollback()
        assert queue.count() == 6
        assert bus.query("orders") == []
        assert {kind for id_ in ids for kind in kinds(bus, id_)} == {
            "SENT",
            "MOVED_TO_TROUBLESHOOTING_QUEUE",
        }


def test_two_operators_resolve_nothing_twice(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as ann:
        first, second = troubled(bus, dsn), troubled(bus, dsn)
        bus.troubleshooting.retry("payments", first, operator="ann", connection=ann)
        # Many pass by what ann has in hand; one waits for her.
        assert bus.troubleshooting.cancel_all(operator="bob") == 1
        assert found(bus, second).status is Status.CANCELED
        errors: list[Exception] = []

        def cancel() -> None:
            try:
                bus.troubleshooting.cancel("payments", first, operator="bob")
            except InvalidOperationError as error:
                errors.append(error)

        with beside(cancel):
            await_lock_waits(dsn)
            ann.commit()
        assert "it is PENDING" in str(errors[0])
        assert kinds(bus, first)[-1] == "OPERATOR_RETRY"


LOST: dict[str, tuple[Call, str, str]] = {
    "retry": (CALLS["retried"], "troubleshooting", "OPERATOR_RETRY"),
    "cancel": (lambda bus, id_: bus.cancel("payments", id_, reason="x"), "ready", "CANCELED"),
}


@pytest.mark.parametrize(("call", "table", "kind"), LOST.values(), ids=LOST)
def test_a_call_whose_answer_is_lost_is_not_refused_when_it_is_repeated(
    dsn: str, call: Call, table: str, kind: str
) -> None:
    """The first try is carried out; the second one finds that it was done already."""
    with (
        Proxy(dsn) as proxy,
        CommandBus(proxy.dsn) as bus,
        CommandBus(dsn) as direct,
        psycopg.connect(dsn) as holder,
    ):
        id_ = direct.send("payments", "Debit")
        if table == "troubleshooting":
            move_to_troubleshooting(dsn)
        bus.get("payments", id_)
        holder.execute(f"SELECT FROM cmdbus.{table} FOR UPDATE")
        with beside(call, bus, id_):
            await_lock_waits(dsn)
            proxy.cut()
            await_lock_waits(dsn, 2)
            holder.rollback()
        assert kinds(direct, id_).count(kind) == 1
        with pytest.raises(InvalidOperationError):
            call(direct, id_)
