"""Calls of AsyncCommandBus, whose tasks wait for the outcome, and its typed senders."""

import asyncio
import inspect
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest
from async_buses import Make, makes
from calling import LISTENING, answer, is_heard
from eventually import eventually
from forks import result_of_child
from handlers import connect, handling, running
from psycopg_pool import AsyncConnectionPool
from queries import scalar

from cmdbus import (
    AsyncCommandBus,
    CallTimeoutError,
    CommandBus,
    CommandFailedError,
    SendRequest,
)


@dataclass
class Debit:
    account_id: int
    amount: int = 0


def threads_of_buses() -> int:
    return sum(each.name.startswith("cmdbus-async") for each in threading.enumerate())


@makes
def test_a_call_returns_the_result_or_raises_the_failure(make: Make, dsn: str) -> None:
    async def main() -> None:
        async with make(dsn) as bus:
            assert await bus.call("payments", "Debit", {"a": [1]}, timeout=20) == {"a": [1]}
            assert await bus.call("payments", "Debit", None, key="t1", priority="high") is None
            with pytest.raises(CommandFailedError) as failed:
                await bus.call("payments", "Debit", {"fail": "rule"})
            assert (failed.value.code, failed.value.details) == ("NO_FUNDS", {"lacks": 5})
            with pytest.raises(CallTimeoutError, match="PENDING"):
                await bus.call("payments", "NotHandled", timeout=0.05)
            assert [each.type for each in await bus.query(status="PENDING")] == ["NotHandled"]
            with pytest.raises(ValueError, match="max_attempts"):
                await bus.call("payments", "Debit", max_attempts=0)
            with pytest.raises(TypeError, match="delay"):
                await bus.call("payments", "Debit", delay=5)  # type: ignore[call-arg]

    with running(dsn, handling(answer)):
        asyncio.run(main())
    assert inspect.signature(AsyncCommandBus.call) == inspect.signature(CommandBus.call)


@makes
def test_many_calls_wait_at_once_with_one_thread_and_one_session(make: Make, dsn: str) -> None:
    async def main() -> None:
        async with make(dsn) as bus:
            calls = [asyncio.create_task(bus.call("payments", "Debit", n)) for n in range(60)]
            with connect(dsn) as watcher:
                while (await bus.snapshot("payments"))["depth"] < len(calls):
                    await asyncio.sleep(0.01)
                while not is_heard(bus._bus):
                    await asyncio.sleep(0.01)
                assert scalar(watcher, LISTENING) == 1
            assert threads_of_buses() < 20
            with running(dsn, handling(answer)):
                assert await asyncio.gather(*calls) == list(range(60))

    asyncio.run(main())


def test_a_task_is_notified_of_the_end_of_its_command(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmdbus.producer.calls._CHECK_SECONDS", 600.0)

    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus:
            while not is_heard(bus._bus):
                await bus.call("payments", "Debit")
            for number in range(5):
                assert await bus.call("payments", "Debit", number) == number

    with running(dsn, handling(answer)):
        asyncio.run(main())


def test_a_canceled_wait_leaves_the_command_and_nothing_that_listens(dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus:
            call = asyncio.create_task(bus.call("payments", "Debit"))
            while not is_heard(bus._bus):
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert [each.status for each in await bus.query("payments")] == ["PENDING"]
            with connect(dsn) as watcher:
                eventually(lambda: scalar(watcher, LISTENING) == 0)
            with running(dsn, handling(answer)):
                assert await bus.call("payments", "Debit", 5) == 5

    asyncio.run(main())


def test_a_call_that_is_canceled_while_it_sends_sends_nothing(dsn: str) -> None:
    async def main() -> None:
        with psycopg.connect(dsn) as other, connect(dsn) as watcher:
            other.execute("LOCK TABLE cmdbus.ready IN SHARE MODE")
            async with AsyncCommandBus(dsn) as bus:
                call = asyncio.create_task(bus.call("payments", "Debit"))
                blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                while not scalar(watcher, blocked):
                    await asyncio.sleep(0.01)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                other.rollback()
                assert await bus.query("payments") == []

    asyncio.run(main())


@makes
def test_closing_the_bus_ends_its_calls(make: Make, dsn: str) -> None:
    async def main() -> None:
        async with make(dsn) as bus:
            call = asyncio.create_task(bus.call("payments", "Debit", timeout=60))
            while not (await bus.snapshot("payments"))["depth"]:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            await bus.close()
            with pytest.raises(psycopg.OperationalError, match="closed"):
                await call
            assert time.monotonic() - began < 10

    asyncio.run(main())


def test_the_calls_of_a_loop_that_is_closed_do_not_disturb_those_of_the_next(dsn: str) -> None:
    bus, loop = AsyncCommandBus(dsn), asyncio.new_event_loop()
    left = bus.call("payments", "Debit", 1)
    with CommandBus(dsn) as watching, suppress(RuntimeError):
        task = loop.create_task(left)
        while not watching.query("payments"):
            loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    async def main() -> None:
        with running(dsn, handling(answer)):
            assert await bus.call("payments", "Debit", 2) == 2
        await bus.close()

    asyncio.run(main())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    left.close()


def test_a_hook_may_change_a_call_but_not_its_id(dsn: str) -> None:
    def hook(request: SendRequest) -> SendRequest:
        request.key = "t1"
        request.command_id = uuid4() if request.type == "Own" else None
        return request

    async def main() -> None:
        async with AsyncCommandBus(dsn, on_send=hook) as bus:
            await bus.call("payments", "Debit")
            assert [each.key for each in await bus.query("payments")] == ["t1"]
            with pytest.raises(ValueError, match="on_send gave a called command an id"):
                await bus.call("payments", "Own")

    with running(dsn, handling(answer)):
        asyncio.run(main())


def test_a_pool_whose_functions_are_asynchronous_is_opened_beside(dsn: str) -> None:
    async def conninfo() -> str:
        await asyncio.sleep(0)
        return dsn

    async def main() -> None:
        pool = AsyncConnectionPool(conninfo, min_size=1, max_size=2, open=False)
        async with pool, AsyncCommandBus(pool=pool) as bus:
            assert await bus.call("payments", "Debit", 7) == 7

    with running(dsn, handling(answer)):
        asyncio.run(main())


def test_a_typed_sender_is_awaited(dsn: str) -> None:
    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus:
            debit = bus.sender("payments", "Debit", Debit)
            sent = await debit.options(key="t1").send(1, amount=5)
            record = await bus.get("payments", sent)
            assert record is not None
            assert (record.data, record.key) == ({"account_id": 1, "amount": 5}, "t1")
            assert len(await bus.send_many([debit.request(2)])) == 1
            with pytest.raises(ValueError, match="needs a dataclass"):
                bus.sender("payments", "Debit", 5)  # type: ignore[call-overload]

    asyncio.run(main())


@pytest.mark.process
def test_a_forked_child_calls_on_threads_and_a_session_of_its_own(dsn: str) -> None:
    bus = AsyncCommandBus(dsn)
    with running(dsn, handling(answer)):
        assert asyncio.run(bus.call("payments", "Debit", 1)) == 1
        assert result_of_child(lambda: str(asyncio.run(bus.call("payments", "Debit", 2)))) == "2"
        assert asyncio.run(bus.call("payments", "Debit", 3)) == 3
    asyncio.run(bus.close())
