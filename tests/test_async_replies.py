"""Replies that tasks read with AsyncCommandBus."""

import asyncio
import time
from typing import Any
from uuid import UUID

import psycopg
import pytest
from async_buses import Make, makes
from claiming import Claimer
from eventually import eventually
from handlers import connect
from queries import scalar
from reading import SESSIONS, answer, states

from cmdbus import AsyncCommandBus, CommandBus, InvalidOperationError

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)


@makes
def test_replies_are_read_and_acknowledged_in_a_loop(
    make: Make, dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    async def main() -> list[UUID]:
        async with make(dsn) as async_bus:
            return [reply.command_id async for reply in async_bus.replies("orders", timeout=0.1)]

    sent = answer(bus, claimer, 3)
    assert asyncio.run(main()) == sent
    assert states(bus) == ["COMPLETED"] * 3


def test_a_task_waits_for_a_reply_and_others_run_meanwhile(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as async_bus, async_bus.replies("orders") as replies:
            waiting = asyncio.create_task(anext(replies))
            for _ in range(8):  # More than it has connections.
                await async_bus.snapshot("orders")
            [sent] = await asyncio.to_thread(answer, bus, claimer)
            assert (await waiting).command_id == sent

    asyncio.run(main())
    assert states(bus) == ["PENDING"]


def test_a_loop_that_is_left_releases_its_reply(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as async_bus:
            async for _ in async_bus.replies("orders"):
                break
            await until(lambda: states(bus) == ["PENDING", "PENDING"])
            replies = async_bus.replies("orders", timeout=0.1)
            async for _ in replies:
                break
            again = [reply.command_id async for reply in replies]
            assert again == sent

    sent = answer(bus, claimer, 2)
    asyncio.run(main())
    assert states(bus) == ["COMPLETED", "COMPLETED"]


def test_a_canceled_task_loses_no_reply(dsn: str, bus: CommandBus, claimer: Claimer) -> None:
    """One that it claims in that moment comes to the next reader, without waiting for a lease."""

    async def main() -> None:
        async with AsyncCommandBus(dsn) as async_bus:
            replies = async_bus.replies("orders", lease=60)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(replies)
            with pytest.raises(StopAsyncIteration):
                await anext(replies)
            [sent] = await asyncio.to_thread(answer, bus, claimer)
            for number in range(10):
                reading = asyncio.create_task(anext(async_bus.replies("orders", lease=60)))
                await asyncio.sleep(0.005 * number)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                del reading
            async for reply in async_bus.replies("orders", timeout=5):
                assert reply.command_id == sent
                break

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 30
    assert states(bus) == ["PENDING"]


def test_a_canceled_task_does_not_wait_for_a_statement_that_is_blocked(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    async def main() -> None:
        with psycopg.connect(dsn) as other, connect(dsn) as watcher:
            async with AsyncCommandBus(dsn) as async_bus:
                other.execute("LOCK TABLE cmdbus.ready")
                reading = asyncio.create_task(anext(async_bus.replies("orders")))
                await until(lambda: scalar(watcher, BLOCKED))
                reading.cancel()
                await asyncio.wait([reading], timeout=10)
                assert reading.cancelled() and not scalar(watcher, BLOCKED)
                other.rollback()

    answer(bus, claimer)
    asyncio.run(main())
    assert states(bus) == ["PENDING"]


@makes
def test_closing_the_bus_or_the_replies_ends_the_iteration(make: Make, dsn: str) -> None:
    async def main() -> None:
        async with make(dsn) as bus:
            first, second = bus.replies("orders"), bus.replies("orders")
            tasks = [asyncio.create_task(anext(each, None)) for each in (first, second)]
            with connect(dsn) as watcher:
                await until(lambda: scalar(watcher, SESSIONS) >= 2)
            await first.close()
            assert await tasks[0] is None
            await bus.close()
            assert await tasks[1] is None
            with pytest.raises(psycopg.OperationalError, match="closed"):
                bus.replies("orders")

    asyncio.run(main())
    with connect(dsn) as watcher:
        eventually(lambda: scalar(watcher, SESSIONS) == 0)


def test_two_tasks_do_not_share_replies(dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus, bus.replies("orders") as replies:
            waiting = asyncio.create_task(anext(replies, None))
            await asyncio.sleep(0)
            with pytest.raises(InvalidOperationError, match="give each task its own"):
                await anext(replies)
            await replies.close()
            assert await waiting is None

    asyncio.run(main())
