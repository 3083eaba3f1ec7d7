"""Sending: what is accepted is there, once; what is refused has left nothing."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from typing import Any, ClassVar
from uuid import uuid4

import psycopg
import pytest
from handlers import found, kinds
from psycopg_pool import AsyncConnectionPool
from queries import NOWHERE, rows
from senders import counts, race

from cmdbus import (
    CommandBus,
    DuplicateCommandError,
    QueueFullError,
    SendRequest,
    ShutdownError,
    Status,
)


def test_a_command_is_there_with_all_that_was_given(bus: CommandBus) -> None:
    """No worker runs."""
    own, correlation = uuid4(), uuid4()
    assert own == bus.send(
        "payments",
        "Debit",
        {"amount": 5},
        command_id=own,
        priority="high",
        correlation_id=correlation,
        reply_to="orders",
        max_attempts=5,
    )
    record = found(bus, own)
    assert (record.data, record.priority, record.status) == ({"amount": 5}, 0, Status.PENDING)
    assert (record.correlation_id, record.reply_to) == (correlation, "orders")
    assert (record.attempts, record.max_attempts, record.result) == (0, 5, None)
    assert record.created_at.tzinfo is UTC
    assert kinds(bus, own) == ["SENT"]
    assert str(correlation) in str(bus.audit("payments", own)[0])


def test_what_was_sent_comes_back_to_the_last_bit(bus: CommandBus) -> None:
    data = {"f": [1e23, 0.1, 5e-324], "i": 10**4000, "t": "ä€𝄞\\\t\n\"'\\N\\.\u2028", "n": None}
    one = bus.send("payments", "Debit", data)
    [many] = bus.send_many([SendRequest("payments", "Debit", data)])
    for id_ in (one, many):
        record = found(bus, id_)
        assert record.data == data and type(record.data["f"][0]) is float


def test_a_callers_transaction_takes_the_command_with_it(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as connection:
        bus.send_many([SendRequest("payments", "Debit")], connection=connection)
        lost = bus.send("payments", "Debit", connection=connection)
        assert bus.get("payments", lost) is None
        assert bus.get("payments", lost, connection=connection) is not None
        connection.rollback()
        assert bus.snapshot("payments")["depth"] == 0
        kept = bus.send("payments", "Debit", connection=connection)
        connection.commit()
        assert bus.get("payments", lost) is None
        assert bus.get("payments", kept) is not None


def test_a_refusal_leaves_the_callers_transaction_usable(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as connection:
        taken = bus.send("payments", "Debit", command_id=uuid4())
        with pytest.raises(DuplicateCommandError):
            bus.send("payments", "Debit", command_id=taken, connection=connection)
        fresh = uuid4()
        with pytest.raises(DuplicateCommandError) as refused:
            requests = [SendRequest("payments", "Debit", command_id=id_) for id_ in (fresh, taken)]
            bus.send_many(requests, connection=connection)
        assert refused.value.command_ids == (taken,)
        assert bus.send("payments", "Debit", command_id=fresh, connection=connection) == fresh
        connection.commit()
        assert bus.snapshot("payments")["depth"] == 2


def test_many_are_sent_in_order_with_all_that_was_given(bus: CommandBus) -> None:
    own = uuid4()
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    requests = [
        SendRequest("payments", "Debit", {"n": 0}),
        SendRequest("orders", "Ship", {"n": 1}, own, "low", None, tomorrow, own, "replies", 9),
        SendRequest("payments", "Debit", {"n": 2}, delay=60),
        SendRequest("payments", "Debit", {"n": 3}, delay=0),
    ]
    ids = bus.send_many(requests)
    records = [found(bus, id_, r.domain) for r, id_ in zip(requests, ids, strict=True)]
    assert [record.data["n"] for record in records] == [0, 1, 2, 3]
    second = records[1]
    assert second.command_id == own
    assert (second.priority, second.due_at, second.correlation_id) == (10, tomorrow, own)
    assert (second.reply_to, second.max_attempts) == ("replies", 9)
    payments = bus.snapshot("payments")
    assert (payments["ready"], payments["scheduled"], payments["depth"]) == (2, 1, 3)
    assert bus.send_many([]) == []


def test_delays_are_counted_from_the_servers_clock(bus: CommandBus) -> None:
    one = bus.send("payments", "Debit", delay=3600)
    [many] = bus.send_many([SendRequest("payments", "Debit", delay=timedelta(hours=1))])
    for id_ in (one, many):
        record = found(bus, id_)
        waits = record.due_at - record.created_at
        assert timedelta(minutes=59, seconds=55) < waits <= timedelta(hours=1)
    past = bus.send("payments", "Debit", run_at=datetime(1999, 1, 1, tzinfo=UTC))
    assert found(bus, past).due_at == found(bus, past).created_at
    assert bus.snapshot("payments")["ready"] == 1


def test_commands_of_one_priority_keep_their_order(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        sent = [bus.send("payments", "Debit") for _ in range(5)]
        sent += bus.send_many([SendRequest("payments", "Debit") for _ in range(1500)])
        assert rows(dsn, "SELECT command_id FROM cmdbus.ready ORDER BY id") == [
            (id_,) for id_ in sent
        ]


def bad_requests() -> list[dict[str, Any]]:
    return [
        {"domain": "no spaces"},
        {"type": "x'; DROP TABLE cmdbus.ready; --"},
        {"data": {"a": float("nan")}},
        {"data": "x\0"},
        {"data": {1: 2}},
        {"data": "\ud800"},
        {"data": "x" * 1_048_577},
        {"priority": 11},
        {"delay": -1},
        {"run_at": datetime(2026, 1, 1)},
        {"delay": 1, "run_at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"command_id": "no id"},
        {"correlation_id": 7},
        {"reply_to": "no spaces"},
        {"max_attempts": 0},
    ]


@pytest.mark.parametrize("bad", bad_requests(), ids=lambda bad: "-".join(bad))
def test_bad_input_is_refused_and_leaves_nothing(dsn: str, bad: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"domain": "payments", "type": "Debit", "command_id": uuid4()} | bad
    before = counts(dsn)
    with CommandBus(dsn) as bus:
        with pytest.raises(ValueError):
            bus.send(**arguments)
        good = [SendRequest("payments", "Debit") for _ in range(2000)]
        with pytest.raises(ValueError):
            bus.send_many([*good, SendRequest(**arguments)])
        with psycopg.connect(dsn) as connection:
            with pytest.raises(ValueError):
                bus.send_many([*good, SendRequest(**arguments)], connection=connection)
            bus.send("payments", "Debit", connection=connection)
            connection.rollback()
    assert counts(dsn) == before


def test_a_hook_may_change_what_is_sent(dsn: str) -> None:
    def hurry(request: SendRequest) -> SendRequest:
        if request.data["risk"] > 0.5:
            request.priority = "high"
        return request

    with CommandBus(dsn, on_send=hurry) as bus:
        ids = [bus.send("payments", "Check", {"risk": 0.9})]
        ids += bus.send_many([SendRequest("payments", "Check", {"risk": r}) for r in (0.1, 0.8)])
        assert [found(bus, id_).priority for id_ in ids] == [0, 5, 0]
        assert "priority: 0" in str(bus.audit("payments", ids[0])[0])


class Name(str, Enum):  # noqa: UP042  # StrEnum prints as its value
    """Prints as something else than it is."""

    PAYMENTS = "payments"


class Urgency(IntEnum):
    MOST = 1


def test_a_name_is_what_it_is_and_not_what_it_prints_as(dsn: str) -> None:
    with CommandBus(dsn, priorities={"urgent": Urgency.MOST}) as bus:
        request = SendRequest(Name.PAYMENTS, "Debit", priority="urgent", reply_to=Name.PAYMENTS)
        for id_ in (bus.send(Name.PAYMENTS, "Debit"), *bus.send_many([request])):
            assert found(bus, id_).reply_to in (None, "payments")


def test_connections_that_return_bytes_are_refused(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn, client_encoding="sql_ascii") as connection:
        for call in (
            lambda: bus.send("payments", "Debit", connection=connection),
            lambda: bus.get("payments", uuid4(), connection=connection),
        ):
            with pytest.raises(ValueError, match="client_encoding=UTF8"):
                call()
    assert counts(dsn)["ready"] == 0


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([{"domain": "payments"}], "must be SendRequests, not dict"),
        ([None], "must be SendRequests, not NoneType"),
        ("payments", "must be SendRequests, not str"),
        (None, "must be an iterable of SendRequests, not NoneType"),
        (SendRequest("payments", "Debit"), "must be an iterable of SendRequests, not SendRequest"),
    ],
)
def test_only_requests_can_be_sent_in_bulk(requests: Any, message: str) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(ValueError, match=f"requests {message}"):
        bus.send_many(requests)


# What a domain allows.


def test_a_full_domain_refuses_with_the_time_of_the_next_try(bus: CommandBus) -> None:
    bus.configure("payments", max_depth=3)
    bus.send("payments", "Debit")
    bus.send("payments", "Debit", delay=60)
    with pytest.raises(QueueFullError, match="its depth is 2, its max_depth 3") as refused:
        bus.send_many([SendRequest("payments", "Debit")] * 2)
    assert (refused.value.depth, refused.value.max_depth) == (2, 3)
    with pytest.raises(QueueFullError, match="its max_depth is 3; send fewer at once"):
        bus.send_many([SendRequest("payments", "Debit")] * 4)
    bus.send("payments", "Debit")
    with pytest.raises(QueueFullError) as refused:
        bus.send("payments", "Debit")
    assert 1 <= refused.value.retry_after <= 60
    bus.send("orders", "Ship")
    bus.configure("payments", max_depth=None)
    bus.send("payments", "Debit")
    assert bus.snapshot("payments")["depth"] == 4


def test_the_highest_limit_is_one(bus: CommandBus) -> None:
    bus.configure("payments", max_depth=2**31 - 2, warn_depth=2**31 - 2)
    bus.send("payments", "Debit")
    with pytest.raises(ValueError, match="max_depth"):
        bus.configure("payments", max_depth=2**31 - 1)


def test_concurrent_senders_pass_the_limit_by_no_more_than_they_have_in_flight(
    bus: CommandBus,
) -> None:
    bus.configure("payments", max_depth=50)

    def send() -> int:
        accepted = 0
        for _ in range(40):
            try:
                bus.send("payments", "Debit")
                accepted += 1
            except QueueFullError:
                pass
        return accepted

    accepted = [int(str(result)) for result in race([send] * 4)]
    depth = bus.snapshot("payments")["depth"]
    assert sum(accepted) == depth
    assert 50 <= depth < 54


def test_a_domain_that_was_shut_refuses_until_it_is_opened(bus: CommandBus) -> None:
    bus.configure("payments", accepting=False)
    assert bus.snapshot("payments")["shutdown"] is True
    for send in (
        lambda: bus.send("payments", "Debit"),
        lambda: bus.send_many([SendRequest("orders", "Ship"), SendRequest("payments", "Debit")]),
    ):
        with pytest.raises(ShutdownError, match="domain 'payments' does not accept"):
            send()
    assert bus.snapshot("orders")["depth"] == 0
    bus.configure("payments", accepting=True)
    bus.send("payments", "Debit")


def test_a_long_queue_is_warned_of_once(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with CommandBus(dsn) as bus, caplog.at_level(logging.WARNING, "cmdbus"):
        bus.configure("payments", warn_depth=3)
        for _ in range(6):
            bus.send("payments", "Debit")
        assert [record.getMessage() for record in caplog.records] == [
            "the depth of domain payments is 3, its warn_depth 3: look whether its workers keep up"
        ]


def test_an_id_that_is_in_a_call_twice_was_not_sent_before(bus: CommandBus) -> None:
    twice = SendRequest("payments", "Debit", command_id=uuid4())
    with pytest.raises(DuplicateCommandError, match="is in this call twice"):
        bus.send_many([twice, SendRequest("payments", "Debit"), twice])
    assert bus.query() == []
    bus.send_many([twice])
    with pytest.raises(DuplicateCommandError, match="was sent to domain 'payments' before"):
        bus.send_many([twice])


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_dsn_is_refused(empty: str) -> None:
    with pytest.raises(ValueError, match="the DSN is empty"):
        CommandBus(empty)


class SessionOfAnOrm:
    """What it holds is no psycopg connection, but it has the attributes of one."""

    info: ClassVar[dict[str, object]] = {}
    closed = False


def test_what_is_no_connection_or_pool_is_refused_in_a_sentence(dsn: str) -> None:
    sentence = r"connection must be a psycopg\.Connection \(psycopg 3\), .*, not "
    wrong: Any
    with CommandBus(dsn) as bus:
        for wrong in (psycopg.AsyncConnection.connect, "dbname=shop"):
            with pytest.raises(ValueError, match=sentence):
                bus.send("payments", "Debit", connection=wrong)
        wrong = SessionOfAnOrm()
        id_ = uuid4()
        calls: list[Callable[[], object]] = [
            lambda: bus.send("payments", "Debit", connection=wrong),
            lambda: bus.send_many([SendRequest("payments", "Debit")], connection=wrong),
            lambda: bus.get("payments", id_, connection=wrong),
            lambda: bus.query(connection=wrong),
            lambda: bus.snapshot("payments", connection=wrong),
            lambda: bus.domains(connection=wrong),
            lambda: bus.cancel("payments", id_, connection=wrong),
            lambda: bus.cancel_all("payments", connection=wrong),
            lambda: bus.reschedule("payments", id_, delay=1, connection=wrong),
            lambda: bus.configure("payments", accepting=True, connection=wrong),
            lambda: bus.pause("payments", connection=wrong),
            lambda: bus.troubleshooting.list(connection=wrong),
            lambda: bus.troubleshooting.retry_all("payments", operator="a", connection=wrong),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=rf"{sentence}\w*\.SessionOfAnOrm$"):
                call()
    with pytest.raises(ValueError, match="not an asynchronous one"):
        CommandBus(pool=AsyncConnectionPool(dsn, open=False))  # type: ignore[arg-type]
