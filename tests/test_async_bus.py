"""AsyncCommandBus on connections of its own, and on those of a pool for asyncio."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from async_buses import Make, makes
from async_transactions import of_psycopg
from handlers import connect, handling, running
from own_servers import own_server
from psycopg_pool import AsyncConnectionPool
from queries import scalar

from cmdbus import (
    AsyncCommandBus,
    CommandBus,
    CommandNotFoundError,
    DatabaseUnavailableError,
    DuplicateCommandError,
    SendRequest,
)
from cmdbus.asynchronous.threads import CancelableCall, using
from cmdbus.database.schema import install
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.producer.connections import MAX_CONNECTIONS

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@makes
def test_many_tasks_send_at_once(make: Make, dsn: str) -> None:
    async def main() -> None:
        async with make(dsn) as bus:
            sent = await asyncio.gather(*(bus.send("payments", "Debit", n) for n in range(50)))
            found = await bus.query("payments", limit=100)
            page = await bus.search("payments", limit=1000)
            assert {each.command_id for each in page.commands} == {*sent}
            assert {each.command_id: each.data for each in found} == {
                id_: number for number, id_ in enumerate(sent)
            }

    asyncio.run(main())


@makes
def test_a_task_waits_for_the_end_of_a_command_and_others_run_meanwhile(
    make: Make, dsn: str
) -> None:
    async def main() -> None:
        async with make(dsn) as bus:
            ids = await bus.send_many([SendRequest("payments", "Debit")] * 20)
            waits = asyncio.gather(*(bus.wait("payments", id_) for id_ in ids))
            await bus.snapshot("payments")
            batch_id = await bus.create_batch("payments", [SendRequest("payments", "Debit")])
            with running(dsn, handling()):
                assert {record.status for record in await waits} == {"COMPLETED"}
                assert (await bus.wait_batch(batch_id)).status == "COMPLETED"
            assert [event.kind for event in await bus.audit("payments", ids[0])][-1] == "COMPLETED"

    asyncio.run(main())


@makes
def test_errors_are_those_of_the_bus(make: Make, dsn: str) -> None:
    async def main() -> None:
        async with make(dsn) as bus:
            sent = await bus.send("payments", "Debit")
            with pytest.raises(DuplicateCommandError):
                await bus.send("payments", "Debit", command_id=sent)
            with pytest.raises(TimeoutError, match=r"is PENDING after 0\.05 s"):
                await bus.wait("payments", sent, timeout=0.05)
            with pytest.raises(CommandNotFoundError):
                await bus.wait("payments", uuid4())
            with pytest.raises(ValueError, match="delay must be"):
                await bus.send("payments", "Debit", delay=-1)

    asyncio.run(main())


@makes
def test_a_canceled_call_ends_its_statement_and_sends_nothing(make: Make, dsn: str) -> None:
    taken = uuid4()

    async def main() -> None:
        with psycopg.connect(dsn) as other, CommandBus(dsn) as bus:
            bus.send("payments", "Debit", command_id=taken, connection=other)
            async with make(dsn) as async_bus:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await async_bus.send("payments", "Debit", command_id=taken)
                with connect(dsn) as watcher:
                    assert scalar(watcher, BLOCKED) == 0
                other.rollback()
                assert await async_bus.query("payments") == []

    asyncio.run(main())


def test_calls_on_all_connections_can_be_canceled_also_while_the_bus_closes(dsn: str) -> None:
    taken = uuid4()

    async def main(closes: bool) -> None:
        async_bus = AsyncCommandBus(dsn)
        with psycopg.connect(dsn) as other, CommandBus(dsn) as bus, connect(dsn) as watcher:
            bus.send("payments", "Debit", command_id=taken, connection=other)
            sends = [
                asyncio.ensure_future(async_bus.send("payments", "Debit", command_id=taken))
                for _ in range(MAX_CONNECTIONS)
            ]
            while scalar(watcher, BLOCKED) < MAX_CONNECTIONS:
                await asyncio.sleep(0.01)
            closing = asyncio.ensure_future(async_bus.close() if closes else asyncio.sleep(0))
            await asyncio.wait([closing], timeout=0.1)
            for send in sends:
                send.cancel()
            ended, _ = await asyncio.wait(sends, timeout=10)
            other.rollback()
        assert [send.cancelled() for send in ended] == [True] * MAX_CONNECTIONS
        await closing
        await async_bus.close()

    for closes in (False, True):
        asyncio.run(main(closes))


def test_a_canceled_call_without_a_connection_does_not_wait_for_one(dsn: str) -> None:
    """It sends nothing when there is one."""
    taken = uuid4()

    async def main() -> None:
        with psycopg.connect(dsn) as other, CommandBus(dsn) as bus, connect(dsn) as watcher:
            bus.send("payments", "Debit", command_id=taken, connection=other)
            async with AsyncCommandBus(dsn) as async_bus:
                sends = [async_bus.send("payments", "Debit", command_id=taken) for _ in range(4)]
                blocked = asyncio.gather(*sends, return_exceptions=True)
                while scalar(watcher, BLOCKED) < 4:
                    await asyncio.sleep(0.01)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await async_bus.send("payments", "Debit")
                other.commit()
                assert {type(error) for error in await blocked} == {DuplicateCommandError}
                assert len(await async_bus.query("payments")) == 1

    asyncio.run(main())


def test_a_cancelation_between_two_statements_ends_the_next_one(dsn: str) -> None:
    used, asked = threading.Event(), threading.Event()

    class Asked(psycopg.Connection[Any]):
        def cancel_safe(self, *, timeout: float = 30.0) -> None:
            super().cancel_safe(timeout=timeout)
            asked.set()

    with Asked.connect(dsn) as session:

        def work() -> None:
            with using(session):
                used.set()
                assert asked.wait(10)
                session.execute("SELECT pg_sleep(30)")

        call = CancelableCall(work)
        with ThreadPoolExecutor() as threads:
            running = threads.submit(call.run)
            assert used.wait(10)
            assert call.cancel()
            with pytest.raises(psycopg.errors.QueryCanceled):
                running.result(10)


def test_a_canceled_call_that_still_connects_uses_no_session(dsn: str) -> None:
    call = CancelableCall(lambda: None)
    assert not call.cancel()
    with connect(dsn) as session, pytest.raises(psycopg.errors.QueryCanceled), call.using(session):
        pass


def test_a_transaction_that_others_wait_for_can_send_however_many_they_are(dsn: str) -> None:
    """Their threads are not those that it needs."""
    taken = uuid4()

    async def send(bus: AsyncCommandBus) -> UUID:
        async with of_psycopg(dsn) as own:
            return await bus.send("payments", "Debit", command_id=taken, connection=own.connection)

    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus, of_psycopg(dsn) as own:
            await bus.send("payments", "Debit", command_id=taken, connection=own.connection)
            others = [asyncio.create_task(send(bus)) for _ in range(10)]
            with connect(dsn) as watcher:
                while scalar(watcher, BLOCKED) < len(others):
                    await asyncio.sleep(0.01)
            await bus.send("payments", "Debit", connection=own.connection)
            await own.commit()
            results = await asyncio.gather(*others, return_exceptions=True)
            assert {type(result) for result in results} == {DuplicateCommandError}

    asyncio.run(main())


def test_a_call_survives_the_death_of_its_connection(dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus:
            for _ in range(3):
                await bus.send("payments", "Debit")
                with connect(dsn) as admin:
                    admin.execute(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name = 'cmdbus:bus'"
                    )
            assert (await bus.snapshot("payments"))["depth"] == 3

    asyncio.run(main())


@pytest.mark.long
def test_a_bus_goes_on_after_a_restart_of_the_server(memory: Path | None) -> None:
    async def main(server: EmbeddedPostgres) -> None:
        async with AsyncCommandBus(server.dsn) as bus:
            await asyncio.gather(*(bus.send("payments", "Debit") for _ in range(8)))
            server.stop("immediate")
            with pytest.raises(DatabaseUnavailableError):
                await bus.send("payments", "Debit")
            server.start()
            await asyncio.gather(*(bus.send("payments", "Debit") for _ in range(8)))
            assert (await bus.snapshot("payments"))["depth"] == 16

    with own_server(memory, durable=True) as server:
        install(server.dsn)
        asyncio.run(main(server))


def test_an_exhausted_pool_is_named(dsn: str) -> None:
    async def main() -> None:
        pool = AsyncConnectionPool(dsn, min_size=1, max_size=1, timeout=0.05, open=False)
        async with pool, AsyncCommandBus(pool=pool) as bus, pool.connection():
            with pytest.raises(DatabaseUnavailableError, match=r"to give for 0\.05 s"):
                await bus.send("payments", "Debit")

    asyncio.run(main())


def test_a_bus_is_used_by_one_loop_after_another_and_by_none_when_it_is_closed(dsn: str) -> None:
    bus = AsyncCommandBus(dsn)
    for number in range(2):
        asyncio.run(bus.send("payments", "Debit", number))
    asyncio.run(bus.close())
    with pytest.raises(psycopg.OperationalError, match="this AsyncCommandBus is closed"):
        asyncio.run(bus.send("payments", "Debit"))


def test_close_waits_for_the_calls_that_run(dsn: str) -> None:
    async def main() -> None:
        bus = AsyncCommandBus(dsn)
        tasks = [asyncio.create_task(bus.send("payments", "Debit")) for _ in range(20)]
        await asyncio.sleep(0)
        await bus.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} <= {UUID, psycopg.OperationalError}

    asyncio.run(main())
    assert not [each for each in threading.enumerate() if "cmdbus" in each.name]


def test_a_hook_runs_in_the_context_of_its_task(dsn: str) -> None:
    user: ContextVar[str] = ContextVar("user")

    def hook(request: SendRequest) -> SendRequest:
        request.key = user.get()
        return request

    async def main() -> None:
        async with AsyncCommandBus(dsn, on_send=hook) as bus:
            user.set("ann")
            await bus.send("payments", "Debit")
            [found] = await bus.query("payments")
            assert found.key == "ann"

    asyncio.run(main())


def test_only_a_pool_for_asyncio_is_taken() -> None:
    wrong: Any = {}
    with pytest.raises(ValueError, match=r"psycopg_pool\.AsyncConnectionPool, not builtins\.dict"):
        AsyncCommandBus(pool=wrong)
    with pytest.raises(ValueError, match="a DSN or a pool"):
        AsyncCommandBus()


def test_neither_workers_nor_the_supervisor_load_asyncio() -> None:
    code = """
import sys
import cmdbus.worker.boot.worker_entry, cmdbus.worker.boot.steward_entry
import cmdbus.supervisor.cli.supervise
cmdbus.CommandBus
print([name for name in sys.modules if name.startswith("cmdbus.asynchronous")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.strip() == "[]"
