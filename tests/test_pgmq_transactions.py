"""The client of PGMQ in a caller's transaction, whatever library that is of, and beside the client
of the package `pgmq`."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from async_transactions import of_session
from handlers import SOON, handling, running
from pgmq import PGMQueue
from pgmq_queues import create_queues
from psycopg_pool import ConnectionPool
from sqlalchemy.orm import Session
from transactions import KINDS, WAYS, Begin, Transaction, of_pooled_connection

from cmdbus import Command, CommandBus, Context
from cmdbus.pgmq import PgmqClient, QueueNotFoundError

#: Those that are tried each time: in one test, and in the others.
SHORT = {*KINDS} - {"pg8000", "Session of psycopg2", "scoped_session of pg8000"}
kinds, ways = (
    pytest.mark.parametrize(
        "kind",
        [pytest.param(name, marks=() if name in short else pytest.mark.long) for name in names],
    )
    for names, short in ((KINDS, SHORT), (WAYS, {"psycopg", "psycopg2"}))
)


@pytest.fixture
def client() -> PgmqClient:
    """Made for calls with `connection` alone."""
    return PgmqClient()


@pytest.fixture
def begin(kind: str) -> Begin:
    return KINDS[kind]


@pytest.fixture
def own(begin: Begin, queues_dsn: str) -> Iterator[Transaction]:
    with begin(queues_dsn) as transaction:
        yield transaction


@pytest.fixture
def package(queues_dsn: str) -> Iterator[PGMQueue]:
    """The client of the package."""
    with ConnectionPool(queues_dsn, min_size=1, max_size=1, open=True) as pool:
        yield PGMQueue(pool=pool, init_extension=False)


@kinds
def test_each_reads_what_the_other_client_wrote(
    own: Transaction, client: PgmqClient, package: PGMQueue
) -> None:
    data: dict[str, Any] = {"name": "Zoë", "n": [1, 2.5, None, True, {"deep": []}]}
    sent = client.send("orders", data, headers={"a": "ö"}, connection=own.connection)
    more = client.send_batch("orders", [1, "two"], connection=own.connection)
    assert package.read("orders") is None, "it is not committed"
    own.commit()
    found = package.read("orders", vt=60, qty=3)
    assert isinstance(found, list)
    assert [each.msg_id for each in found] == [sent, *more]
    assert (found[0].message, found[0].headers) == (data, {"a": "ö"})

    [theirs, _] = package.send_batch("other", [data, {}], headers=[{"x": "y"}, {}])
    mine, empty = client.read("other", qty=5, connection=own.connection)
    assert (mine.msg_id, mine.message, mine.headers) == (theirs, data, {"x": "y"})
    assert (empty.message, empty.headers, empty.read_ct) == ({}, {}, 1)
    assert mine.vt.tzinfo is UTC and mine.vt > datetime.now(UTC) + timedelta(seconds=20)
    assert client.archive("other", theirs, connection=own.connection) is True
    assert client.delete("orders", [sent, *more], connection=own.connection) == [sent, *more]
    own.commit()
    assert package.metrics("orders").queue_length == 0
    every = client.metrics(connection=own.connection)
    [mine_of_all] = [each for each in every if each.queue_name == "orders"]
    assert (len(every), mine_of_all.total_messages) == (3, 3)
    names = sorted(queue.queue_name for queue in client.queues(connection=own.connection))
    with pytest.warns(UserWarning, match="list_queues"):
        assert names == sorted(queue.queue_name for queue in package.list_queues())


@ways
def test_nothing_has_happened_when_the_callers_transaction_rolls_back(
    own: Transaction, client: PgmqClient, package: PGMQueue
) -> None:
    package.send_batch("other", [{}, {}])
    client.send("orders", 1, delay=5, connection=own.connection)
    client.read("other", connection=own.connection)
    client.pop("other", connection=own.connection)
    client.set_vt("other", [1], datetime.now(UTC), connection=own.connection)
    own.rollback()
    found = package.read("other", qty=5)
    assert isinstance(found, list) and [each.read_ct for each in found] == [1, 1]
    assert package.metrics("orders").queue_length == 0


@ways
def test_the_transaction_stays_usable_when_a_queue_does_not_exist(
    own: Transaction, client: PgmqClient, package: PGMQueue
) -> None:
    client.send("orders", 1, connection=own.connection)
    for call in (
        lambda: client.send("nope", 1, connection=own.connection),
        lambda: client.send_batch("nope", [1], delay=0.5, connection=own.connection),
        lambda: client.read("nope", connection=own.connection),
        lambda: client.pop("nope", 5, connection=own.connection),
        lambda: client.set_vt("nope", 1, 1, connection=own.connection),
        lambda: client.archive("nope", [1], connection=own.connection),
        lambda: client.delete("nope", 1, connection=own.connection),
        lambda: client.metrics("nope", connection=own.connection),
    ):
        with pytest.raises(QueueNotFoundError) as refused:
            call()
        assert refused.value.queue == "nope"
        sentence = "the queue 'nope' does not exist: SELECT pgmq.create('nope') makes it"
        assert str(refused.value) == sentence
    own.commit()
    assert package.metrics("orders").queue_length == 1


@ways
def test_in_autocommit_mode_each_call_is_a_transaction(
    begin: Begin, queues_dsn: str, client: PgmqClient, package: PGMQueue
) -> None:
    with begin(queues_dsn, autocommit=True) as own:
        client.send("orders", {}, connection=own.connection)
        assert package.metrics("orders").queue_length == 1


def test_a_connection_of_sqlalchemys_pool_is_taken(
    queues_dsn: str, client: PgmqClient, connection: psycopg.Connection
) -> None:
    with of_pooled_connection("psycopg2", queues_dsn) as own:
        client.send("orders", 1, connection=own.connection)
        own.commit()
    assert len(client.read("orders", connection=connection)) == 1


def test_a_handler_reads_and_sends_in_the_transaction_of_its_command(
    queues_dsn: str, client: PgmqClient, connection: psycopg.Connection, bus: CommandBus
) -> None:
    """An attempt that fails has neither taken nor sent a message."""
    client.send("orders", {"id": 7}, connection=connection)

    def forward(command: Command, context: Context) -> int:
        [message] = client.pop("orders", connection=context.connection)
        client.send("other", message.message, connection=context.session)
        if context.attempt == 1:
            raise OSError
        return message.msg_id

    with running(queues_dsn, handling(forward, retry=SOON)):
        record = bus.wait("payments", bus.send("payments", "Debit"), timeout=20)
    assert record.result == 1
    [message] = client.read("other", qty=5, connection=connection)
    assert (message.message, message.msg_id) == ({"id": 7}, 2)


def test_a_session_in_any_setting_is_read_alike(
    queues_dsn: str, client: PgmqClient, connection: psycopg.Connection
) -> None:
    """Also where an application has its own loaders."""
    create_queues(connection, "orders")  # PGMQ's functions could not be compiled in these settings.
    connection.execute("SET datestyle = 'German'; SET timezone = 'Asia/Kathmandu'")
    connection.execute("SET search_path = ''; SET standard_conforming_strings = off")
    connection.row_factory = psycopg.rows.dict_row  # type: ignore[assignment]
    psycopg.types.json.set_json_loads(lambda text: "broken", connection)
    sent = client.send_batch("orders", [r"a\b'c", {"{x}": '"'}], connection=connection)
    found = client.read("orders", qty=5, connection=connection)
    assert [(each.msg_id, each.message) for each in found] == [
        *zip(sent, [r"a\b'c", {"{x}": '"'}], strict=True)
    ]
    assert found[0].vt.utcoffset() == timedelta(0)


def test_the_packages_client_may_be_given_the_same_transaction(
    queues_dsn: str, client: PgmqClient, package: PGMQueue, connection: psycopg.Connection
) -> None:
    with psycopg.connect(queues_dsn) as own:
        package.send("orders", {"n": 1}, conn=own)
        assert client.read("orders", connection=own)[0].message == {"n": 1}
        own.rollback()
    assert client.metrics("orders", connection=connection).queue_length == 0


def test_what_is_no_connection_is_refused(queues_dsn: str, client: PgmqClient) -> None:
    with pytest.raises(ValueError, match=r"pgmq\.send needs connection=, as this PgmqClient was"):
        client.send("orders", 1)
    with pytest.raises(ValueError, match=r"connection must be a psycopg\.Connection"):
        client.send("orders", 1, connection=Session)  # type: ignore[arg-type]


async def send_on_asyncio(client: PgmqClient, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        client.send("orders", 1, connection=connection)


def test_a_connection_of_asyncio_is_refused(dsn: str, client: PgmqClient) -> None:
    with pytest.raises(ValueError, match="is one of asyncio, and a PgmqClient is synchronous"):
        asyncio.run(send_on_asyncio(client, dsn))


async def send_in_run_sync(client: PgmqClient, dsn: str) -> None:
    async with of_session("asyncpg", dsn) as own:
        send = "orders", {"name": "Zoë"}
        await own.connection.run_sync(lambda session: client.send(*send, connection=session))
        await own.commit()


def test_sqlalchemys_sessions_of_asyncio_send_inside_run_sync(
    queues_dsn: str, client: PgmqClient, connection: psycopg.Connection
) -> None:
    asyncio.run(send_in_run_sync(client, queues_dsn))
    assert client.read("orders", connection=connection)[0].message == {"name": "Zoë"}
