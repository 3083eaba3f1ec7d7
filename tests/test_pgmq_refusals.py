"""What a database refuses a client of PGMQ, in a sentence; and connections that die."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from proxy import Proxy
from psycopg import sql
from psycopg_pool import ConnectionPool
from queries import NOWHERE, rows, scalar
from transactions import of_driver

from cmdbus import DatabaseUnavailableError, SchemaError
from cmdbus.errors import MissingRightError
from cmdbus.pgmq import OutcomeUnknownError, PgmqClient, QueueNotFoundError

#: PGMQ as it was before 1.5, without headers and without times: of its functions those that differ.
OLD = """
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.q_orders (
    msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, read_ct int NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL, message jsonb);
CREATE TYPE pgmq.message_record AS
    (msg_id bigint, read_ct int, enqueued_at timestamptz, vt timestamptz, message jsonb);
CREATE FUNCTION pgmq.send(queue_name text, msg jsonb, delay int DEFAULT 0) RETURNS SETOF bigint
    LANGUAGE sql AS $$
    INSERT INTO pgmq.q_orders (vt, message)
    VALUES (clock_timestamp() + make_interval(secs => delay), msg) RETURNING msg_id $$;
CREATE FUNCTION pgmq.send_batch(queue_name text, msgs jsonb[], delay int DEFAULT 0)
    RETURNS SETOF bigint LANGUAGE sql AS $$
    INSERT INTO pgmq.q_orders (vt, message)
    SELECT clock_timestamp() + make_interval(secs => delay), unnest(msgs) RETURNING msg_id $$;
CREATE FUNCTION pgmq.read(queue_name text, vt int, qty int, conditions jsonb)
    RETURNS SETOF pgmq.message_record LANGUAGE sql AS $$
    UPDATE pgmq.q_orders q
    SET vt = clock_timestamp() + make_interval(secs => $2), read_ct = read_ct + 1
    WHERE q.vt <= clock_timestamp() AND (conditions IS NULL OR message @> conditions)
    RETURNING msg_id, read_ct, enqueued_at, q.vt, message $$;
CREATE FUNCTION pgmq.pop(queue_name text) RETURNS SETOF pgmq.message_record LANGUAGE sql AS $$
    DELETE FROM pgmq.q_orders WHERE msg_id = (SELECT min(msg_id) FROM pgmq.q_orders)
    RETURNING msg_id, read_ct, enqueued_at, vt, message $$;
CREATE FUNCTION pgmq.set_vt(queue_name text, msg_id bigint, vt int)
    RETURNS SETOF pgmq.message_record LANGUAGE sql AS $$
    UPDATE pgmq.q_orders q SET vt = now() + make_interval(secs => $3) WHERE q.msg_id = $2
    RETURNING q.msg_id, read_ct, enqueued_at, q.vt, message $$;
CREATE TYPE pgmq.metrics_result AS (
    queue_name text, queue_length bigint, newest_msg_age_sec int, oldest_msg_age_sec int,
    total_messages bigint, scrape_time timestamptz);
CREATE FUNCTION pgmq.metrics(queue_name text) RETURNS pgmq.metrics_result LANGUAGE sql AS $$
    SELECT 'orders', count(*), 0, 0, 5::bigint, now() FROM pgmq.q_orders $$;
"""

Call = Callable[[PgmqClient, Any], object]
#: Each call, on a connection or without one.
CALLS: dict[str, Call] = {
    "send": lambda c, own: c.send("orders", {}, headers={}, connection=own),
    "send_batch": lambda c, own: c.send_batch("orders", [1], connection=own),
    "read": lambda c, own: c.read("orders", connection=own),
    "pop": lambda c, own: c.pop("orders", connection=own),
    "set_vt": lambda c, own: c.set_vt("orders", 1, 0, connection=own),
    "archive": lambda c, own: c.archive("orders", 1, connection=own),
    "delete": lambda c, own: c.delete("orders", [1], connection=own),
    "metrics": lambda c, own: c.metrics("orders", connection=own),
    "metrics_all": lambda c, own: c.metrics(connection=own),
    "queues": lambda c, own: c.queues(connection=own),
}


@pytest.fixture
def orders(queues_dsn: str) -> str:
    """The DSN of a database with a queue of that name."""
    return queues_dsn


def test_a_database_without_pgmq_is_named(dsn: str) -> None:
    with PgmqClient(dsn) as client, of_driver("psycopg2", dsn, True) as own:
        for call in CALLS.values():
            for connection in (None, own.connection):
                with pytest.raises(
                    SchemaError, match=r"^PGMQ is not installed in database .*\bCRE"
                ):
                    call(client, connection)


def test_a_queue_that_is_dropped_meanwhile_is_named(orders: str) -> None:
    with PgmqClient(orders) as client:
        client.send("Orders", 1)
        rows(orders, "SELECT pgmq.drop_queue('orders')")
        with pytest.raises(QueueNotFoundError, match=r"the queue 'Orders' does not exist: SELECT"):
            client.read("Orders")


def test_the_sentence_about_a_queue_that_is_missing_makes_it(pgmq_dsn: str) -> None:
    with PgmqClient(pgmq_dsn) as client:
        for name in ("orders", 'Größe "2" \\ of %s'):
            with pytest.raises(QueueNotFoundError) as refused:
                client.send(name, 1)
            [query] = re.findall(r"SELECT .*\)", str(refused.value))
            rows(pgmq_dsn, query)
            assert client.send(name, 1) == 1


def test_a_queue_without_its_archive_says_how_to_make_that(orders: str) -> None:
    with psycopg.connect(orders, autocommit=True) as admin:
        admin.execute("DROP TABLE pgmq.a_orders")
        with PgmqClient(orders) as client:
            sent = client.send("orders", 1)
            with pytest.raises(QueueNotFoundError, match="the queue 'orders' has no archive: SEL"):
                client.archive("orders", sent)
            admin.execute("SELECT pgmq.create('orders')")
            assert client.archive("orders", sent) is True


def test_an_older_pgmq_works_or_says_what_it_lacks(
    dsn: str, connection: psycopg.Connection
) -> None:
    connection.execute(OLD)
    with PgmqClient(dsn) as client:
        assert client.send("orders", {"n": 1}) == 1
        assert client.send_batch("orders", [2, 3], delay=3600, headers=[None, None]) == [2, 3]
        [message] = client.read("orders", qty=5, conditional={"n": 1})
        assert (message.message, message.headers, message.last_read_at) == ({"n": 1}, None, None)
        assert client.set_vt("orders", 1, 0) is not None
        assert len(client.read("orders")) == 1
        assert client.metrics("orders").queue_visible_length is None
        assert client.pop("orders")[0].read_ct == 2
        for lacking in (
            lambda: client.send("orders", 1, headers={"a": 1}),
            lambda: client.send("orders", 1, delay=0.5),
            lambda: client.pop("orders", qty=2),
            lambda: client.set_vt("orders", [1, 2], 1),
        ):
            with pytest.raises(SchemaError) as refused:
                lacking()
            assert re.match(r"function pgmq\.\w+\(text, .*\) does not exist: ", str(refused.value))
            assert str(refused.value).endswith("for this call: ALTER EXTENSION pgmq UPDATE")


@contextmanager
def unprivileged(dsn: str) -> Iterator[psycopg.Connection]:
    name = sql.Identifier(f'cmdbus test "{uuid4().hex[:8]}"')
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(name))
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(sql.SQL("SET ROLE {}").format(name))
                yield connection
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(name))


def test_the_sentence_about_a_missing_right_grants_what_the_call_needs(
    orders: str, connection: psycopg.Connection
) -> None:
    client = PgmqClient()
    for name, call in CALLS.items():
        with unprivileged(orders) as own:
            with pytest.raises(MissingRightError) as refused:
                call(client, own)
            sentence = str(refused.value)
            assert f"(permission denied for schema pgmq) that pgmq.{name} needs: " in sentence
            connection.execute(sentence.partition(" needs: ")[2].encode())
            call(client, own)


def test_the_sentence_about_a_right_to_notify_grants_it(
    orders: str, connection: psycopg.Connection
) -> None:
    connection.execute("SELECT pgmq.enable_notify_insert('orders')")
    with unprivileged(orders) as own:
        for right in ("schema pgmq", "table notify_insert_throttle"):
            with pytest.raises(
                MissingRightError, match=f"permission denied for {right}"
            ) as refused:
                PgmqClient().send("orders", 1, connection=own)
            connection.execute(str(refused.value).partition(" needs: ")[2].encode())
        assert PgmqClient().send("orders", 1, connection=own) > 0


def test_a_dead_server_is_named_without_the_password() -> None:
    with (
        PgmqClient(f"{NOWHERE} password=s3cr3t", timeout=2) as client,
        pytest.raises(DatabaseUnavailableError, match=r"nowhere\.invalid") as refused,
    ):
        client.send("orders", 1)
    assert "s3cr3t" not in str(refused.value)


def test_sessions_that_the_server_has_ended_are_replaced_before_a_call(orders: str) -> None:
    end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    end += " WHERE application_name = 'cmdbus:pgmq' AND datname = current_database()"
    with PgmqClient(orders) as client:
        client.send("orders", 0)
        for name in ("send", "pop", "queues"):
            assert rows(orders, end) == [(True,)], name
            CALLS[name](client, None)
        assert client.metrics("orders").total_messages == 2


def lost_answer(client: PgmqClient, proxy: Proxy, dsn: str, call: Call) -> BaseException | None:
    """What the call raises if the server carries it out and its answer does not arrive; once for
    each proxy, which keeps the session on the server."""
    client.queues()
    proxy.mute()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(client, None)
        except BaseException as error:
            raised.append(error)

    done = (
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'cmdbus:pgmq'"
        " AND state = 'idle' AND query LIKE '%%to_regclass%%'"
    )
    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: rows(dsn, done) == [(True,)])
    proxy.cut()
    thread.join(20)
    return raised[0] if raised else None


@pytest.mark.parametrize("name", ["send", "read", "pop", "archive"])
def test_a_call_whose_answer_is_lost_is_not_repeated(orders: str, name: str) -> None:
    with Proxy(orders) as proxy, PgmqClient(proxy.dsn) as client:
        for number in range(3):
            client.send("orders", number)
        error = lost_answer(client, proxy, orders, CALLS[name])
        assert isinstance(error, OutcomeUnknownError)
        assert str(error).startswith(f"pgmq.{name} on the queue 'orders' may have been carried")
        left = rows(orders, "SELECT count(*), sum(read_ct) FROM pgmq.q_orders")
        assert left == [{"send": (4, 0), "read": (3, 1), "pop": (2, 0), "archive": (2, 0)}[name]]
        assert client.metrics("orders").queue_length == left[0][0]


def test_a_commit_whose_answer_is_lost_is_not_repeated(orders: str) -> None:
    """In a pool whose sessions are not in autocommit mode."""

    def cut_at_commit(request: bytes) -> bytes:
        if b"COMMIT" in request:
            proxy.cut()
        return request

    with (
        Proxy(orders, cut_at_commit) as proxy,
        ConnectionPool(proxy.dsn, min_size=1, max_size=1, open=True) as pool,
        PgmqClient(pool=pool) as client,
    ):
        with pytest.raises(OutcomeUnknownError):
            client.send("orders", 1)
        eventually(lambda: rows(orders, "SELECT count(*) FROM pgmq.q_orders") == [(1,)])


def test_what_cannot_go_wrong_twice_is_repeated(orders: str) -> None:
    with Proxy(orders) as proxy, PgmqClient(proxy.dsn) as client:
        client.send("orders", 1)
        assert lost_answer(client, proxy, orders, CALLS["set_vt"]) is None


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_pool_of_the_callers_is_used_and_its_transactions_are_committed(
    orders: str, connection: psycopg.Connection, autocommit: bool
) -> None:
    keywords = {"autocommit": autocommit}
    with ConnectionPool(orders, min_size=1, max_size=1, kwargs=keywords, open=True) as pool:
        with PgmqClient(pool=pool, prepare=False) as client:
            client.send("orders", 1)
            assert scalar(connection, "SELECT count(*) FROM pgmq.q_orders") == 1
            with pytest.raises(QueueNotFoundError):
                client.read("nope")
            assert len(client.pop("orders")) == 1
        with pool.connection() as own:
            assert scalar(own, "SELECT count(*) FROM pgmq.q_orders") == 0
