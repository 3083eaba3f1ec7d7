"""CommandBus for programs on asyncio: each of its calls runs the same method of a CommandBus."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from cmdbus.asynchronous.call_reader import CallReader
from cmdbus.asynchronous.pool_sessions import PoolSessions
from cmdbus.asynchronous.replies import AsyncReplies
from cmdbus.asynchronous.senders import AsyncSenders
from cmdbus.asynchronous.threads import Threads, using
from cmdbus.data import MAX_BYTES
from cmdbus.database.shared_session import shared_session
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.integrations.callers_connection import run_sync_of
from cmdbus.payloads.forms import Encoder
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.call_listener import CallListener
from cmdbus.producer.calls import Call
from cmdbus.producer.connections import MAX_CONNECTIONS, Pool
from cmdbus.producer.records import BatchRecord, CommandRecord
from cmdbus.producer.send_hook import Hook
from cmdbus.producer.waits import BatchWait, CommandWait, Wait

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", CommandRecord, BatchRecord)
_Method = Callable[Concatenate["AsyncCommandBus", P], Coroutine[Any, Any, T]]

#: Connections of callers' that are in use at the same time, at most. Each call on one has a thread,
#: because it may wait for another transaction whose next call would wait for the thread.
_MAX_CALLERS = 10_000
ACCEPTED = (
    "connection must be a psycopg.AsyncConnection (psycopg 3), or an AsyncSession, "
    "async_scoped_session or AsyncConnection of SQLAlchemy"
)
_OF_DJANGO = ", which belongs to a thread: use a CommandBus in sync_to_async"


def _like(
    method: Callable[Concatenate[CommandBus, P], T],
) -> "Callable[[Callable[..., Any]], _Method[P, T]]":
    """The arguments of a method, its result once it is awaited, and its text."""
    return lambda function: cast("_Method[P, T]", update_wrapper(function, method))


def _awaited(method: Callable[Concatenate[CommandBus, P], T]) -> "_Method[P, T]":
    function: Callable[..., T] = method

    @_like(method)
    async def call(self: "AsyncCommandBus", /, *args: Any, **keywords: Any) -> T:
        def work(bus: CommandBus, **own: object) -> T:
            return function(bus, *args, **{**keywords, **own})

        return await self._run(work, keywords.pop("connection", None))

    return call


class AsyncCommandBus(AsyncSenders):
    """Sends commands and shows what becomes of them, as CommandBus does: see there for each method.

    With a DSN it keeps 1 to 4 connections of its own, which threads use, and repeats a call whose
    connection dies. With `pool`, a psycopg_pool.AsyncConnectionPool that the caller opens and
    closes, or with `connection`, one of psycopg.AsyncConnection, SQLAlchemy's AsyncConnection and
    AsyncSession, nothing is repeated.

    Canceled, a call cancels its statement and waits for the end of that. In a transaction of the
    caller's it has then sent everything or nothing, or the transaction has failed. `on_send` is an
    ordinary function. It runs in a thread, and in the event loop with a connection of SQLAlchemy's.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: AsyncConnectionPool[Any] | None = None,
        schema: str = "cmdbus",
        priorities: Mapping[str, int] | None = None,
        max_bytes: int = MAX_BYTES,
        encoder: Encoder | None = None,
        on_send: Hook | None = None,
        prepare: bool = True,
    ) -> None:
        """Opens nothing yet. See CommandBus for `schema`, `priorities`, `max_bytes`, `encoder`,
        `on_send` and `prepare`."""
        if pool is not None and not isinstance(pool, AsyncConnectionPool):
            kind = type(pool)
            raise ValueError(
                f"pool must be a psycopg_pool.AsyncConnectionPool, not {kind.__module__}."
                f"{kind.__qualname__}"
            )
        self._pool = pool
        self._sessions = None if pool is None else PoolSessions(pool)
        self._bus = CommandBus(
            dsn,
            pool=cast("Pool | None", self._sessions),
            schema=schema,
            priorities=priorities,
            max_bytes=max_bytes,
            encoder=encoder,
            on_send=on_send,
            prepare=prepare,
        )
        self._own = Threads(MAX_CONNECTIONS)
        self._callers = Threads(_MAX_CALLERS)
        self._bus._connections.using = using
        self._bus._calls.complete = lambda call: call
        #: By listener, of which each process has one.
        self._readers: dict[CallListener, CallReader] = {}
        self._closed = False

    send = _awaited(CommandBus.send)
    send_many = _awaited(CommandBus.send_many)
    create_batch = _awaited(CommandBus.create_batch)
    start_process = _awaited(CommandBus.start_process)
    signal_process = _awaited(CommandBus.signal_process)
    cancel = _awaited(CommandBus.cancel)
    get = _awaited(CommandBus.get)
    query = _awaited(CommandBus.query)
    search = _awaited(CommandBus.search)
    find = _awaited(CommandBus.find)
    known_types = _awaited(CommandBus.known_types)
    audit = _awaited(CommandBus.audit)
    explain = _awaited(CommandBus.explain)
    snapshot = _awaited(CommandBus.snapshot)
    domains = _awaited(CommandBus.domains)
    history = _awaited(CommandBus.history)
    get_batch = _awaited(CommandBus.get_batch)
    list_batches = _awaited(CommandBus.list_batches)
    page_batches = _awaited(CommandBus.page_batches)
    batch_follow_ups = _awaited(CommandBus.batch_follow_ups)
    batch_commands = _awaited(CommandBus.batch_commands)
    batch_audit = _awaited(CommandBus.batch_audit)
    get_process = _awaited(CommandBus.get_process)
    query_processes = _awaited(CommandBus.query_processes)
    page_processes = _awaited(CommandBus.page_processes)
    process_steps = _awaited(CommandBus.process_steps)
    process_audit = _awaited(CommandBus.process_audit)
    fleet = _awaited(CommandBus.fleet)
    fleet_counters = _awaited(CommandBus.fleet_counters)
    stacks = _awaited(CommandBus.stacks)

    async def wait(
        self, domain: str, command_id: UUID | str, timeout: float = 30.0
    ) -> CommandRecord:
        """See CommandBus.wait."""
        return await self._waited(CommandWait(domain, command_id, timeout))

    async def wait_batch(self, batch_id: UUID | str, timeout: float = 30.0) -> BatchRecord:
        """See CommandBus.wait_batch."""
        return await self._waited(BatchWait(batch_id, timeout))

    @_like(CommandBus.call)
    async def call(self, *args: Any, **keywords: Any) -> Any:
        self._check_open()
        begin = partial(CommandBus.call, self._bus, *args, **keywords)
        call: Call = await self._own.run(begin, waits=False)
        self._check_open()
        with call.observed(), self._reader(call.listener).expecting(call) as news:
            await self._run(lambda _, **own: call.send(**own), None)
            while not call.has_ended:
                await news.wait(call.pause())
                with call.reading():
                    await self._run(lambda _, **own: call.read(**own), None)
            return call.result()

    def replies(
        self,
        domain: str,
        timeout: float | None = None,
        *,
        lease: float = 30.0,
        shared: bool = False,
    ) -> AsyncReplies:
        """See CommandBus.replies; for `async for`."""
        self._check_open()
        replies = self._bus.replies(domain, timeout, lease=lease, shared=shared)
        return AsyncReplies(replies, self._callers)

    async def close(self) -> None:
        """Waits for its calls that run, and closes its connections, but not a pool of the
        caller's; calls fail from now on."""
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._bus.close()
        self._own.close()
        self._callers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, work: Callable[..., T], connection: object) -> T:
        """`work` takes a CommandBus and, as a keyword, a connection."""
        self._check_open()
        if connection is not None:
            return await self._run_on(connection, work)
        if self._pool is None:
            return await self._own.run(partial(work, self._bus), waits=False)
        try:
            async with self._pool.connection() as pooled:
                return await self._run_on(pooled, work)
        except PoolTimeout:
            raise DatabaseUnavailableError(
                f"the pool had no connection to give for {self._pool.timeout:.3g} s"
            ) from None

    async def _run_on(self, connection: object, work: Callable[..., T]) -> T:
        if isinstance(connection, psycopg.AsyncConnection):
            async with connection.lock:
                with shared_session(connection) as session:
                    call = partial(work, self._bus, connection=session)
                    return await self._callers.run(call, waits=True)
        run_sync = run_sync_of(connection)
        if run_sync is None:
            kind = type(connection)
            hint = _OF_DJANGO if kind.__module__.startswith("django.") else ""
            raise ValueError(f"{ACCEPTED}, not {kind.__module__}.{kind.__qualname__}{hint}")
        result: T = await run_sync(lambda own: work(self._bus, connection=own))
        return result

    def _check_open(self) -> None:
        """Before each use of a thread, in the event loop."""
        if self._closed:
            raise psycopg.OperationalError("this AsyncCommandBus is closed")
        if self._sessions is not None:
            with suppress(RuntimeError):  # `replies` may be called outside of a loop.
                self._sessions.loop = asyncio.get_running_loop()

    def _reader(self, listener: CallListener) -> CallReader:
        reader = CallReader(listener, self._callers.submit)
        return self._readers.setdefault(listener, reader)

    async def _waited(self, wait: Wait[R]) -> R:
        with wait.observed():
            while True:
                records = await self._run(partial(CommandBus._poll, wait=wait), None)
                pause = wait.pause_after(records)
                if pause is None:
                    return records[0]
                await asyncio.sleep(pause)
