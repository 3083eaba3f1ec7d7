"""The threads in which an event loop's calls run, and the end of those that are canceled."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

import psycopg

from cmdbus.database.pool import Connection

T = TypeVar("T")

#: Seconds within which the server has to take the request to cancel a statement.
_CANCEL_SECONDS = 5.0
#: Seconds until it is asked again: a request that comes between two statements ends neither.
_AGAIN_SECONDS = 0.2
#: The CancelableCall of each thread.
_current = threading.local()


class CancelableCall:
    """One call in a thread, and the session that it uses, so that its statement can be canceled
    and no other one is."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        #: Notified when the session is released.
        self._lock = threading.Condition()
        self._session: Connection | None = None
        self._canceled = False

    def run(self) -> Any:
        _current.call = self
        try:
            return self._work()
        finally:
            _current.call = None

    @contextmanager
    def using(self, session: Connection) -> Iterator[None]:
        with self._lock:
            if self._canceled:
                raise psycopg.errors.QueryCanceled("canceled before it had a connection")
            self._session = session
        try:
            yield
        finally:
            with self._lock:
                self._session = None
                self._lock.notify_all()

    def cancel(self) -> bool:
        """Whether it used a session, which it has released then. From now on it takes none."""
        with self._lock:
            self._canceled = True
            used = self._session is not None
            while self._session is not None:
                with suppress(psycopg.Error):
                    self._session.cancel_safe(timeout=_CANCEL_SECONDS)
                self._lock.wait(_AGAIN_SECONDS)
            return used


@contextmanager
def using(session: Connection) -> Iterator[None]:
    """For each session that a bus uses; in the event loop's thread there is no call."""
    call: CancelableCall | None = getattr(_current, "call", None)
    if call is None:
        yield
        return
    with call.using(session):
        yield


class Threads:
    """In each process again: a fork has none of its parent's threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._executors: dict[int, ThreadPoolExecutor] = {}

    async def run(
        self, work: Callable[[], T], *, waits: bool, interrupt: Callable[[], object] | None = None
    ) -> T:
        """`work` in a thread. Canceled, it calls `interrupt`, waits for the end of a statement that
        it cancels, and with `waits` in any case for the end of `work`."""
        call = CancelableCall(work)
        running = self.submit(copy_context().run, call.run)
        ended = asyncio.wrap_future(running)
        try:
            result: T = await asyncio.shield(ended)
        except asyncio.CancelledError:
            # A call that has not begun is not begun.
            if not running.cancel():
                if interrupt is not None:
                    interrupt()
                used = asyncio.wrap_future(_in_thread_of_its_own(call.cancel))
                await _end_of(used)
                if waits or used.result():
                    await _end_of(ended)
            ended.cancel()
            raise
        return result

    def close(self) -> None:
        """Waits for the calls that run."""
        executor = self._executors.get(os.getpid())
        if executor is not None:
            executor.shutdown()

    async def finish(self, work: Callable[[], object]) -> None:
        """`work` in a thread, until its end even if its task is canceled, without its error."""
        await _end_of(asyncio.wrap_future(self.submit(work)))

    def submit(self, *call: Any) -> "Future[Any]":
        pid = os.getpid()
        # Threads that come together agree on one: setdefault is atomic.
        executor = self._executors.get(pid) or self._executors.setdefault(
            pid, ThreadPoolExecutor(self._count, thread_name_prefix="cmdbus-async")
        )
        return executor.submit(*call)


def _in_thread_of_its_own(work: Callable[[], T]) -> "Future[T]":
    """Those of the executor may all wait for what this ends, or be the last ones before it closes.
    `work` raises nothing."""
    ended: Future[T] = Future()
    threading.Thread(target=lambda: ended.set_result(work()), name="cmdbus-cancel").start()
    return ended


async def _end_of(future: "asyncio.Future[Any]") -> None:
    """However often this task is canceled meanwhile; without the future's error."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()
