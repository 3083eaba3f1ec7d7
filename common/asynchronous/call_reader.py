"""Calls that tasks wait for: one thread reads the listener's session for all of them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from uuid import uuid4

from cmdbus.producer.call_listener import CallListener
from cmdbus.producer.calls import Call
from cmdbus.producer.connections import MIN_CONNECT_SECONDS

#: Seconds after the last call within which the thread ends.
_LINGERING_SECONDS = 1.0


class TaskNews:
    """Wakes the task of one call, from any thread."""

    def __init__(self) -> None:
        self._loop, self._came = asyncio.get_running_loop(), asyncio.Event()

    def put(self, _: bool) -> None:
        with suppress(RuntimeError):  # The loop is closed, and its task never goes on.
            self._loop.call_soon_threadsafe(self._came.set)

    async def wait(self, seconds: float) -> None:
        """Until it is woken, and for these seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._came.wait()
        self._came.clear()


class CallReader:
    """Of one listener. Its thread lives while there are calls."""

    def __init__(self, listener: CallListener, submit: Callable[..., object]) -> None:
        self._listener, self._submit = listener, submit
        #: Protects the rest, which tasks of several loops and the thread change.
        self._lock = Lock()
        self._calls = 0
        self._reads = False

    @contextmanager
    def expecting(self, call: Call) -> Iterator[TaskNews]:
        """Begins before the command is sent, so that nothing is missed."""
        news = TaskNews()
        with self._listener.expecting(call.command_id, news), self._reading():
            yield news

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            self._calls += 1
            begins, self._reads = not self._reads, True
        try:
            if begins:
                self._submit(self._read)
            yield
        finally:
            with self._lock:
                self._calls -= 1

    def _read(self) -> None:
        nothing = uuid4()  # The listener's waits are for a command.
        try:
            with self._listener.expecting(nothing) as news:
                while self._goes_on():
                    self._listener.wait(nothing, news, _LINGERING_SECONDS, MIN_CONNECT_SECONDS)
        except BaseException:
            with self._lock:
                self._reads = False
            raise

    def _goes_on(self) -> bool:
        with self._lock:
            # Those of a loop that was closed in their middle may never end.
            self._reads = self._calls > 0 and not self._listener.closed
            return self._reads
