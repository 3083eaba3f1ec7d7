"""AsyncCommandBus in a caller's transaction: all or nothing, together, for every library."""

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from async_transactions import ASYNC_KINDS, AsyncTransaction, Begin, of_psycopg
from handlers import connect
from sqlalchemy.orm import Session

from cmdbus import AsyncCommandBus, CommandBus, DuplicateCommandError, SendRequest

LONG = {"AsyncSession of psycopg", "AsyncConnection of psycopg"}
kinds = pytest.mark.parametrize(
    "begin",
    [
        pytest.param(begin, id=name, marks=pytest.mark.long if name in LONG else ())
        for name, begin in ASYNC_KINDS.items()
    ],
)


async def send_all(bus: AsyncCommandBus, own: AsyncTransaction) -> int:
    """In each way that sends; the number of commands."""
    await bus.send("payments", "Debit", {"a": 1.10}, connection=own.connection)
    two = [SendRequest("payments", "Debit", delay=delay) for delay in (0, 60)]
    await bus.send_many(two, connection=own.connection)
    requests = [SendRequest("payments", "Debit")] * 2
    await bus.create_batch("payments", requests, connection=own.connection)
    return 5


@kinds
def test_commands_share_the_fate_of_the_callers_transaction(begin: Begin, dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus, begin(dsn) as own:
            await send_all(bus, own)
            await own.rollback()
            sent = await send_all(bus, own)
            inside = await bus.snapshot("payments", connection=own.connection)
            assert ((await bus.snapshot("payments"))["depth"], inside["depth"]) == (0, sent)
            await own.commit()
            assert (await bus.snapshot("payments"))["depth"] == sent
            [first] = await bus.query("payments", limit=1, offset=sent - 1)
            assert first.data == {"a": 1.10}
            found = await bus.get("payments", first.command_id, connection=own.connection)
            assert found == first

    asyncio.run(main())


@kinds
def test_what_is_sent_in_a_savepoint_ends_with_that(begin: Begin, dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus, begin(dsn) as own:
            await own.execute("SELECT 1")
            async with own.savepoint():
                kept = await bus.send("payments", "Debit", connection=own.connection)
            with pytest.raises(ZeroDivisionError):
                async with own.savepoint():
                    await send_all(bus, own)
                    raise ZeroDivisionError
            await own.commit()
            assert [each.command_id for each in await bus.query("payments")] == [kept]

    asyncio.run(main())


@kinds
def test_in_autocommit_mode_each_call_is_a_transaction(begin: Begin, dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus, begin(dsn, autocommit=True) as own:
            sent = await send_all(bus, own)
            assert (await bus.snapshot("payments"))["depth"] == sent

    asyncio.run(main())


@kinds
def test_a_refused_or_failed_send_leaves_the_transaction_as_it_was(
    begin: Begin, dsn: str, bus: CommandBus
) -> None:
    taken = bus.send("payments", "Debit")

    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus, begin(dsn) as own:
            own_connection: Any = {"connection": own.connection}
            requests = [SendRequest("payments", "Debit", None, id_) for id_ in (uuid4(), taken)]
            with pytest.raises(DuplicateCommandError):
                await bus.send_many(requests, **own_connection)
            await bus.send("payments", "Debit", **own_connection)
            await own.commit()
            with pytest.raises(Exception, match="does_not_exist"):
                await own.execute("SELECT does_not_exist")
            for _ in range(2):
                with pytest.raises(Exception, match="current transaction is aborted"):
                    await bus.send("payments", "Debit", **own_connection)
            await own.rollback()
            assert (await bus.snapshot("payments", **own_connection))["depth"] == 2

    asyncio.run(main())


@kinds
def test_a_canceled_send_leaves_nothing_in_use_and_nothing_half_written(
    begin: Begin, dsn: str, bus: CommandBus
) -> None:
    taken = uuid4()

    async def main() -> None:
        with psycopg.connect(dsn) as other:
            bus.send("payments", "Debit", command_id=taken, connection=other)
            async with AsyncCommandBus(dsn) as async_bus, begin(dsn) as own:
                first = [
                    SendRequest("payments", "Debit"),
                    SendRequest("payments", "Debit", None, taken),
                ]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await async_bus.send_many(first, connection=own.connection)
                await own.rollback()
                sent = await async_bus.send("payments", "Debit", connection=own.connection)
                await own.commit()
                assert [each.command_id for each in await async_bus.query()] == [sent]

    asyncio.run(main())


def test_a_connection_in_a_pipeline_is_refused(dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus, of_psycopg(dsn) as own, own.connection.pipeline():
            with pytest.raises(ValueError, match="pipeline mode"):
                await bus.send("payments", "Debit", connection=own.connection)

    asyncio.run(main())


def test_notifications_of_the_callers_reach_the_caller(dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus, of_psycopg(dsn, autocommit=True) as own:
            await own.execute("LISTEN here")
            with connect(dsn) as other:
                other.execute("NOTIFY here, 'now'")
            await bus.send("payments", "Debit", connection=own.connection)
            notifies = own.connection.notifies(timeout=0.01)
            assert [each.payload async for each in notifies] == ["now"]

    asyncio.run(main())


def test_what_is_not_asynchronous_is_refused(dsn: str, bus: CommandBus) -> None:
    async def main() -> None:
        wrong: Any
        async with AsyncCommandBus(dsn) as async_bus:
            with psycopg.connect(dsn) as connection:
                for wrong in (connection, Session(), {}):
                    with pytest.raises(ValueError, match=r"^connection must be a psycopg\.Async"):
                        await async_bus.send("payments", "Debit", connection=wrong)
        async with await psycopg.AsyncConnection.connect(dsn) as own:
            with pytest.raises(ValueError, match=r"AsyncCommandBus takes it$"):
                bus.send("payments", "Debit", connection=own)

    asyncio.run(main())
