"""The hook of sends: what it changed is in the audit trail, and what it refuses is not written."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from handlers import connect, found, handling, running
from queries import count
from roles import role

from cmdbus import AuditEvent, CommandBus, QueueFullError, SendRefusedError, SendRequest

DEBIT = SendRequest("payments", "Debit", {"amount": 5})


def urgent(request: SendRequest) -> SendRequest:
    return replace(request, priority="high")


def refusing(request: SendRequest) -> SendRequest:
    if request.data == "bad":
        raise SendRefusedError("NO_CREDIT", "customer 7 owes 12")
    return request


def changes(bus: CommandBus, command_id: UUID, domain: str = "payments") -> list[AuditEvent]:
    """Of the hook; they come after SENT."""
    sent, *others = bus.audit(domain, command_id)
    assert sent.kind == "SENT"
    return [event for event in others if event.kind == "CHANGED_ON_SEND"]


def test_each_kind_of_send_records_what_the_hook_has_changed(dsn: str) -> None:
    expected = {"priority": {"before": "normal", "after": "high"}}
    with CommandBus(dsn, on_send=urgent) as bus, psycopg.connect(dsn) as sender:
        sends: list[Callable[[], UUID]] = [
            lambda: bus.send("payments", "Debit"),
            lambda: bus.send("payments", "Debit", delay=60, command_id=uuid4(), expires=3600),
            lambda: bus.send("payments", "Debit", connection=sender),
            lambda: bus.send_many([DEBIT, replace(DEBIT, priority="high"), DEBIT])[2],
            lambda: bus.send_many([replace(DEBIT, delay=60)], connection=sender)[0],
            lambda: bus.batch_commands(bus.create_batch("payments", [DEBIT]))[0].command_id,
        ]
        for send in sends:
            id_ = send()
            sender.commit()
            [event] = changes(bus, id_)
            assert event.details == expected
        shown = "CHANGED_ON_SEND\n    priority:\n        before: normal\n        after: high"
        assert str(event).endswith(shown)


def test_a_called_command_and_one_after_a_batch_record_it_too(dsn: str) -> None:
    with CommandBus(dsn, on_send=urgent) as bus, running(dsn, handling()):
        bus.call("payments", "Debit")
        [called] = bus.query("payments")
        assert len(changes(bus, called.command_id)) == 1
        after = SendRequest("orders", "Sum")
        batch_id = bus.create_batch("payments", [DEBIT], on_complete=after, on_cancel=after)
        bus.wait_batch(batch_id, 10)
        [summed] = bus.query("orders")
        assert (summed.priority, len(changes(bus, summed.command_id, "orders"))) == (0, 1)


def test_a_hook_that_changes_nothing_writes_nothing(
    dsn: str, connection: psycopg.Connection
) -> None:
    def same(request: SendRequest) -> SendRequest:
        return replace(request)

    with CommandBus(dsn, on_send=same) as bus:
        bus.send("payments", "Debit", {"a": [1]}, priority=0, delay=timedelta(1), key="a")
        bus.send_many([DEBIT] * 3)
        bus.create_batch("payments", [DEBIT], on_complete=DEBIT)
    assert count(connection, "cmdbus.event") == 0


def test_all_fields_are_recorded_and_of_the_data_only_that_it_was_changed(dsn: str) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    id_, other = uuid4(), uuid4()

    def change(request: SendRequest) -> SendRequest:
        request.data["amount"] = 6
        request.domain, request.type, request.command_id = "orders", "Ship", id_
        request.priority, request.correlation_id, request.key = 3, other, "tenant-42"
        request.run_at, request.expires = at, at + timedelta(1)
        request.max_attempts, request.reply_to = 7, "replies"
        return request

    with CommandBus(dsn, on_send=change) as bus:
        assert bus.send("payments", "Debit", {"amount": 5}, key="k" * 200) == id_
        [event] = changes(bus, id_, "orders")
    assert event.details == {
        "domain": {"before": "payments", "after": "orders"},
        "type": {"before": "Debit", "after": "Ship"},
        "command_id": {"before": None, "after": str(id_)},
        "priority": {"before": "normal", "after": 3},
        "run_at": {"before": None, "after": at.isoformat()},
        "correlation_id": {"before": None, "after": str(other)},
        "reply_to": {"before": None, "after": "replies"},
        "max_attempts": {"before": None, "after": 7},
        "key": {"before": "k" * 200, "after": "tenant-42"},
        "expires": {"before": None, "after": (at + timedelta(1)).isoformat()},
        "data": "changed",
    }


def test_a_hook_makes_commands_unique(dsn: str) -> None:
    def once(request: SendRequest) -> SendRequest:
        return replace(request, unique="daily", on_conflict="existing", expires=60)

    with CommandBus(dsn, on_send=once) as bus:
        id_ = bus.send("payments", "Debit")
        assert bus.send("payments", "Debit") == id_
        [event] = changes(bus, id_)
        assert event.details == {
            "unique": {"before": None, "after": "daily"},
            "on_conflict": {"before": "reject", "after": "existing"},
            "expires": {"before": None, "after": 60},
        }
        assert bus.audit("payments", id_)[0].details["unique_key"] == "daily"


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "x" * 100_000, b"x", [1, {2}], object()])
def test_a_wrong_value_that_the_hook_has_replaced_is_recorded_as_it_can_be(
    dsn: str, value: Any
) -> None:
    def mend(request: SendRequest) -> SendRequest:
        return replace(request, data=1, key="a", delay=None)

    with CommandBus(dsn, on_send=mend) as bus:
        id_ = bus.send("payments", "Debit", value, key=value, delay=value)
        [event] = changes(bus, id_)
        assert isinstance(event.details, dict)
        assert (event.details["data"], event.details["key"]["after"]) == ("changed", "a")
        assert len(event.details["key"]["before"]) <= 120


def test_a_request_that_is_sent_again_is_as_its_sender_made_it(dsn: str) -> None:
    def hurry(request: SendRequest) -> SendRequest:
        request.priority = "high"
        request.data["lines"].append(1)
        return request

    request = SendRequest("payments", "Debit", {"lines": []})
    with CommandBus(dsn, on_send=hurry) as bus:
        ids = [*bus.send_many([request] * 2), *bus.send_many([request])]
        for id_ in ids:
            [event] = changes(bus, id_)
            assert isinstance(event.details, dict) and event.details["data"] == "changed"
            assert found(bus, id_).data == {"lines": [1]}
    assert (request.priority, request.data, request.changes) == ("normal", {"lines": []}, None)


@pytest.mark.parametrize("hook", ["x", "", 0, False])
def test_a_hook_that_cannot_be_called_is_a_mistake(hook: Any) -> None:
    with pytest.raises(ValueError, match=f"on_send must be callable, not {hook!r}"):
        CommandBus("dbname=shop", on_send=hook)


def test_a_refused_send_writes_nothing_and_names_the_command(
    dsn: str, sender: psycopg.Connection
) -> None:
    requests = [SendRequest("payments", "Debit", data) for data in (1, "bad", 2)]

    def made() -> Iterator[SendRequest]:
        for _ in range(700):
            yield from requests[::2]
        yield requests[1]

    with CommandBus(dsn, on_send=refusing) as bus:
        calls: list[tuple[str, Callable[[psycopg.Connection | None], object]]] = [
            ("", lambda c: bus.send("payments", "Debit", "bad", connection=c)),
            ("request 2 of 3: ", lambda c: bus.send_many(requests, connection=c)),
            ("request 1401 of 1401: ", lambda c: bus.send_many(made(), connection=c)),
            ("request 1401: ", lambda c: bus.create_batch("payments", made(), connection=c)),
            (
                "",
                lambda c: bus.create_batch(
                    "payments", requests[:1], on_cancel=requests[1], connection=c
                ),
            ),
            ("", lambda c: bus.call("payments", "Debit", "bad")),
        ]
        refusal = "payments/Debit is refused: NO_CREDIT: customer 7 owes 12"
        for position, call in calls:
            for connection in (None, sender):
                with pytest.raises(SendRefusedError) as refused:
                    call(connection)
                error = refused.value
                assert str(error) == f"{position}{refusal}"
                assert (error.code, error.domain, error.type) == ("NO_CREDIT", "payments", "Debit")
        bus.send("orders", "Ship", connection=sender)
        sender.commit()
        assert [record.domain for record in bus.query()] == ["orders"]


def test_a_refusal_needs_no_code(dsn: str) -> None:
    def refuse(request: SendRequest) -> SendRequest:
        raise SendRefusedError("not today")

    sentence = r"^payments/Debit is refused: not today$"
    with CommandBus(dsn, on_send=refuse) as bus, pytest.raises(SendRefusedError, match=sentence):
        bus.send("payments", "Debit")
    assert str(SendRefusedError("CODE", "why")) == "CODE: why"


def test_a_send_that_is_refused_later_records_nothing(
    dsn: str, connection: psycopg.Connection
) -> None:
    with CommandBus(dsn, on_send=urgent) as bus:
        id_ = bus.send("payments", "Debit", command_id=uuid4())
        bus.configure("payments", max_depth=1)
        for send in (lambda: bus.send("payments", "Debit"), lambda: bus.send_many([DEBIT])):
            with pytest.raises(QueueFullError):
                send()
        bus.configure("payments", max_depth=None)
        with pytest.raises(SendRefusedError):
            bus.send("payments", "Debit", command_id=id_)
        assert count(connection, "cmdbus.event") == 1


def test_a_producer_records_changes_of_what_it_sends_and_of_nothing_else(dsn: str) -> None:
    with (
        role(dsn, "producer") as producer,
        CommandBus(dsn, on_send=urgent) as bus,
        connect(dsn) as admin,
    ):
        id_ = bus.send("payments", "Debit", connection=producer)
        [many] = bus.send_many([DEBIT], connection=producer)
        assert [len(changes(bus, each)) for each in (id_, many)] == [1, 1]
        producer.execute("SELECT cmdbus.note_changes('{payments}', ARRAY[%s], '{1}')", (id_,))
        assert count(admin, "cmdbus.event") == 2
