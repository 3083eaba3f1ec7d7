"""The client of PGMQ: what its calls do and return, and what they refuse."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import psycopg
import pytest
from eventually import eventually
from pgmq_queues import create_queues
from psycopg_pool import ConnectionPool
from queries import NOWHERE, rows, scalar

from cmdbus import Undecodable
from cmdbus.pgmq import Message, PgmqClient, Queue, arguments

HOUR = timedelta(hours=1)


@pytest.fixture
def client(queues_dsn: str) -> Iterator[PgmqClient]:
    with PgmqClient(queues_dsn) as client:
        yield client


def ids(messages: list[Message]) -> list[int]:
    return [message.msg_id for message in messages]


def test_a_message_that_is_sent_is_read_and_deleted(client: PgmqClient) -> None:
    before = datetime.now(UTC)
    sent = client.send("orders", {"id": 7, "name": "Zoë"}, headers={"tenant": "a", "n": [1]})
    [message] = client.read("orders", vt=30)
    assert (message.msg_id, message.read_ct) == (sent, 1)
    assert message.message == {"id": 7, "name": "Zoë"}
    assert message.headers == {"tenant": "a", "n": [1]}
    assert message.last_read_at is not None and message.last_read_at.tzinfo is UTC
    assert before - HOUR < message.enqueued_at <= message.last_read_at
    assert timedelta(seconds=29) < message.vt - message.last_read_at < timedelta(seconds=31)
    assert client.read("orders") == []
    assert client.delete("orders", sent) is True
    assert client.delete("orders", sent) is False


def test_a_batch_is_sent_in_order_with_headers_of_its_own(client: PgmqClient) -> None:
    sent = client.send_batch("orders", [1, "two", None], headers=[{"a": 1}, None, {}])
    assert sent == sorted(sent)
    found = client.read("orders", qty=10)
    assert [(each.message, each.headers) for each in found] == [
        *[(1, {"a": 1}), ("two", None), (None, {})]
    ]
    assert client.send_batch("orders", []) == []
    assert len(client.send_batch("orders", (n for n in range(2_000)))) == 2_000
    assert ids(found) == sent == [each.msg_id for each in client.set_vt("orders", sent, 0)]


def test_a_message_is_not_visible_before_its_delay_is_over(
    client: PgmqClient, queues_dsn: str
) -> None:
    delays = 3600, 3600.5, HOUR, 3_000_000_000, datetime.now(UTC) + HOUR
    for delay in delays:
        for headers in (None, {"a": "b"}):
            client.send("orders", 1, delay=delay, headers=headers)
            client.send_batch("orders", [2], delay=delay, headers=[headers])
    assert client.read("orders", qty=99) == []
    [(least,)] = rows(queues_dsn, "SELECT min(vt) - now() FROM pgmq.q_orders")
    assert least > timedelta(minutes=59)
    metrics = client.metrics("orders")
    assert (metrics.queue_length, metrics.queue_visible_length) == (4 * len(delays), 0)


def test_a_time_that_is_over_delays_nothing(client: PgmqClient) -> None:
    client.send("orders", 1, delay=datetime.now(UTC) - HOUR)
    assert len(client.pop("orders")) == 1


def test_a_condition_chooses_messages(client: PgmqClient) -> None:
    client.send_batch("orders", [{"kind": "a", "n": 1}, {"kind": "b"}, [1, 2]])
    assert [each.message for each in client.read("orders", qty=9, conditional={"kind": "b"})] == [
        {"kind": "b"}
    ]
    assert len(client.read("orders", qty=9)) == 2


def test_pop_deletes_what_it_returns(client: PgmqClient) -> None:
    sent = client.send_batch("orders", range(5))
    assert ids(client.pop("orders")) == sent[:1]
    assert ids(client.pop("orders", qty=9)) == sent[1:]
    assert (client.pop("orders"), client.metrics("orders").queue_length) == ([], 0)


def test_visibility_is_set_for_one_message_and_for_several(client: PgmqClient) -> None:
    sent = client.send_batch("orders", range(3))
    message = client.set_vt("orders", sent[0], HOUR)
    assert message is not None and message.vt > datetime.now(UTC) + HOUR / 2
    assert ids(client.set_vt("orders", [sent[1], sent[1], 99], 1800.5)) == [sent[1]]
    assert ids(client.read("orders", qty=9)) == sent[2:]
    assert ids(client.set_vt("orders", set(sent), datetime.now(UTC))) == sent
    assert (client.set_vt("orders", 99, 1), client.set_vt("orders", [], 1)) == (None, [])
    assert [each.read_ct for each in client.read("orders", qty=9)] == [1, 1, 2]


def test_archived_messages_are_in_the_archive(client: PgmqClient, queues_dsn: str) -> None:
    sent = client.send_batch("orders", range(4))
    assert client.archive("orders", sent[0]) is True
    assert client.archive("orders", [*sent[:2], 99]) == [sent[1]]
    assert client.archive("orders", sent[0]) is False
    assert client.delete("orders", iter(sent)) == sent[2:]
    assert (client.archive("orders", []), client.delete("orders", ())) == ([], [])
    assert rows(queues_dsn, "SELECT msg_id FROM pgmq.a_orders ORDER BY 1") == [(1,), (2,)]


def test_queues_and_their_metrics(client: PgmqClient, connection: psycopg.Connection) -> None:
    connection.execute("SELECT pgmq.create_unlogged('Audit')")
    client.send("orders", 1)
    _, audit, orders, _ = sorted(client.queues(), key=lambda queue: queue.queue_name.lower())
    assert isinstance(audit, Queue) and (audit.queue_name, audit.is_unlogged) == ("Audit", True)
    assert (orders.queue_name, orders.is_partitioned) == ("orders", False)
    assert orders.created_at.tzinfo is UTC
    metrics = client.metrics("orders")
    assert (metrics.queue_length, metrics.total_messages) == (1, 1)
    assert metrics.oldest_msg_age_sec == metrics.newest_msg_age_sec
    assert metrics.newest_msg_age_sec is not None and metrics.newest_msg_age_sec < 60
    every = {each.queue_name: each for each in client.metrics()}
    assert every["orders"].queue_visible_length == 1
    assert every["Audit"].oldest_msg_age_sec is None


def test_a_poll_reads_what_is_sent_meanwhile_and_uses_no_connection_until_then(
    queues_dsn: str,
) -> None:
    found: list[Message] = []
    with (
        ConnectionPool(queues_dsn, min_size=1, max_size=1, open=True) as pool,
        PgmqClient(pool=pool) as client,
    ):
        polls = [
            threading.Thread(
                target=lambda: found.extend(
                    client.read_with_poll("orders", max_poll_seconds=20, poll_interval_ms=5)
                )
            )
            for _ in range(4)
        ]
        for poll in polls:
            poll.start()
        eventually(lambda: pool.get_stats()["requests_num"] > 8)
        sent = client.send_batch("orders", range(4))
        for poll in polls:
            poll.join(20)
    assert sorted(ids(found)) == sent


def test_a_poll_that_finds_nothing_ends_in_time(client: PgmqClient) -> None:
    assert client.read_with_poll("orders", max_poll_seconds=0.02, poll_interval_ms=500) == []
    client.send("orders", 1)
    assert len(client.read_with_poll("orders", max_poll_seconds=0)) == 1


def test_names_in_any_case_and_with_any_sign_name_the_queue(
    client: PgmqClient, connection: psycopg.Connection
) -> None:
    strange = 'Übung "a"."b" \\ %s {0}\n?'
    create_queues(connection, strange)
    assert client.send("OrDeRs", 1) == client.read("orders")[0].msg_id
    assert client.read(strange, qty=2) == []
    sent = client.send(strange, 1)
    assert client.archive(strange, sent) is True
    assert client.metrics(strange).total_messages == 1


def test_messages_that_python_cannot_read_are_handed_over_as_they_are(
    client: PgmqClient, connection: psycopg.Connection
) -> None:
    deep = "[" * 5000 + "]" * 5000
    connection.execute(
        "SELECT pgmq.send('orders', m::jsonb, h::jsonb)"
        " FROM unnest(%s::text[], %s::text[]) AS given (m, h)",
        ([deep, None, "1e5000", "9" * 5000], [None, "[1]", None, '"text"']),
    )
    first, second, third, fourth = client.read("orders", qty=9)
    assert isinstance(first.message, Undecodable)
    assert (second.message, second.headers) == (None, [1])
    assert isinstance(third.message, Undecodable)
    assert isinstance(fourth.message, Undecodable) and fourth.headers == "text"


def test_times_that_python_cannot_hold_are_bounded(
    client: PgmqClient, connection: psycopg.Connection
) -> None:
    """One such message must not keep a reader from all others."""
    write = "INSERT INTO pgmq.q_orders (enqueued_at, last_read_at, vt, message) VALUES "
    connection.execute(write + "(%(t)s, %(t)s, '-infinity', '1')", {"t": "-infinity"})
    connection.execute(write + "(%(t)s, NULL, '-infinity', '2')", {"t": "9999-12-31 23:59:59 UTC"})
    connection.commit()
    first, second = client.read("orders", qty=10)
    assert (first.message, second.message) == (1, 2)
    assert (first.enqueued_at.year, second.enqueued_at.year) == (2, 9998)
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    with connection.transaction():
        latest = datetime.max.replace(tzinfo=UTC)
        made = client.set_vt("orders", first.msg_id, latest, connection=connection)
        assert made is not None and made.vt.year == 9998


def test_an_encoder_gives_the_forms_of_other_values(queues_dsn: str, client: PgmqClient) -> None:
    def encode(value: object) -> object:
        if isinstance(value, complex):
            return [value.real, value.imag]
        raise TypeError

    with PgmqClient(queues_dsn, encoder=encode) as other:
        other.send("orders", {"at": datetime(2030, 1, 1, tzinfo=UTC), "z": 1j})
    [message] = client.pop("orders")
    assert message.message["z"] == [0, 1] and message.message["at"].startswith("2030-01-01T")


REFUSED: list[tuple[Callable[[PgmqClient], object], str]] = [
    (lambda c: c.send("", 1), "queue must be text of 1 to 47 characters without"),
    (lambda c: c.send("x" * 48, 1), "queue must be text of 1 to 47"),
    (lambda c: c.send("a;b", 1), "queue must be text"),
    (lambda c: c.read("a--b"), "queue must be text"),
    (lambda c: c.pop("it's"), "queue must be text"),
    (lambda c: c.delete("a$b", []), "queue must be text"),
    (lambda c: c.archive("a\0", 1), "queue must be text"),
    (lambda c: c.metrics("\ud800"), "queue must be text"),
    (lambda c: c.send_batch(b"orders", []), "queue must be text"),  # type: ignore[arg-type]
    (lambda c: c.send("q", float("nan")), "message is nan: JSON has no such number"),
    (lambda c: c.send("q", {"a": ["x\0"]}), r"message.a\[0\] contains a NUL character"),
    (lambda c: c.send("q", object()), "message is not JSON|message is of type object"),
    (lambda c: c.send("q", "x" * 1024**2), "message has 1048578 bytes as JSON: at most 1048576"),
    (lambda c: c.send("q", 1, headers=["a"]), "headers must be a dict, not"),  # type: ignore[arg-type]
    (lambda c: c.send("q", 1, headers={1: 2}), "headers has the key 1"),  # type: ignore[dict-item]
    (lambda c: c.send("q", 1, delay=-1), "delay must be 0 to 3153600000 seconds, a timedelta"),
    (lambda c: c.send("q", 1, delay=datetime(2030, 1, 1)), "delay must be an aware datetime"),
    (lambda c: c.send("q", 1, delay="1"), "delay must be 0 to"),  # type: ignore[arg-type]
    (lambda c: c.send_batch("q", {"a": 1}), "messages must be an iterable with one for each"),
    (lambda c: c.send_batch("q", 5), "messages must be an iterable of messages"),  # type: ignore[arg-type]
    (lambda c: c.send_batch("q", [1, {2}]), r"messages\[1\]"),
    (lambda c: c.send_batch("q", [1, 2], headers=[{}]), "one for each of the 2 messages"),
    (lambda c: c.send_batch("q", [1], headers={"a": 1}), "headers must be an iterable with one"),  # type: ignore[dict-item]
    (lambda c: c.send_batch("q", [1], headers=[3]), r"headers\[0\] must be a dict"),  # type: ignore[list-item]
    (lambda c: c.read("q", vt=0.5), "vt must be a whole number of seconds from 0"),
    (lambda c: c.read("q", vt=-1), "vt must be a whole number"),
    (lambda c: c.read("q", vt=datetime.now(UTC)), "vt must be a whole"),  # type: ignore[arg-type]
    (lambda c: c.read("q", qty=0), "qty must be a whole number from 1 to 2147483647, not 0"),
    (lambda c: c.pop("q", qty=True), "qty must be a whole number"),
    (lambda c: c.read("q", conditional={1}), "conditional"),
    (lambda c: c.read_with_poll("q", max_poll_seconds=-1), "max_poll_seconds must be 0 to"),
    (lambda c: c.read_with_poll("q", poll_interval_ms=0), "poll_interval_ms must be 1 to"),
    (lambda c: c.set_vt("q", 0, 1), "msg_id must be a whole number from 1 to 9223372036854775807"),
    (lambda c: c.set_vt("q", 1, -5), "vt must be 0 to"),
    (lambda c: c.delete("q", [1, "2"]), r"msg_id\[1\] must be a whole number"),  # type: ignore[list-item]
    (lambda c: c.delete("q", "12"), "msg_id must be a number or an iterable of numbers"),  # type: ignore[arg-type]
    (lambda c: c.archive("q", None), "msg_id must be an iterable of numbers"),  # type: ignore[call-overload]
    (lambda c: c.archive("q", Decimal(1)), "msg_id must be an iterable"),  # type: ignore[call-overload]
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_wrong_arguments_are_refused_before_a_connection_is_made(
    call: Callable[[PgmqClient], object], sentence: str
) -> None:
    with PgmqClient(NOWHERE) as client, pytest.raises(ValueError, match=sentence):
        call(client)


def test_a_bulk_that_the_server_could_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments.MAX_BATCH_BYTES == 256 * 1024**2
    monkeypatch.setattr(arguments, "MAX_BATCH_BYTES", 1_000)
    with PgmqClient(NOWHERE) as client:
        for messages in (count(), ["ö" * 300] * 2, ["x"] * 20):
            with pytest.raises(ValueError, match="have more than 1000 bytes as JSON: send them in"):
                client.send_batch("q", messages, headers=[{"a": "y" * 50}] * 20)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dsn": "nowhere", "pool": object()}, "PgmqClient needs a DSN or a pool"),
        ({"dsn": "http://x"}, "the DSN begins with another scheme"),
        ({"dsn": NOWHERE, "max_bytes": 0}, "max_bytes must be a whole number from 1"),
        ({"dsn": NOWHERE, "encoder": 1}, "encoder must be callable"),
        ({"dsn": NOWHERE, "timeout": 0}, "timeout must be more than 0"),
    ],
)
def test_a_client_that_could_not_work_is_not_made(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PgmqClient(**options)


def test_a_closed_client_says_so(client: PgmqClient, connection: psycopg.Connection) -> None:
    client.close()
    with pytest.raises(psycopg.OperationalError, match="this PgmqClient is closed"):
        client.send("orders", 1)
    assert client.send("orders", 1, connection=connection) == 1
    assert scalar(connection, "SELECT count(*) FROM pgmq.q_orders") == 1
