"""Replies that a program on asyncio reads."""

import asyncio
from contextlib import suppress
from typing import Self

from cmdbus.asynchronous.threads import Threads
from cmdbus.errors import InvalidOperationError
from cmdbus.producer.records import ReceivedReply
from cmdbus.producer.replies import Replies


class AsyncReplies:
    """Iterates over replies as `Replies` does, in a thread while a task asks for the next one.

    A task that is canceled meanwhile closes it: nothing is held that no task has seen.
    """

    def __init__(self, replies: Replies, threads: Threads) -> None:
        self._replies, self._threads = replies, threads
        self._begins = self._is_asked = False

    def __aiter__(self) -> Self:
        self._begins = True
        return self

    async def __anext__(self) -> ReceivedReply:
        if self._is_asked:
            raise InvalidOperationError(
                "another task waits for the next of these replies: give each task its own"
            )
        self._is_asked = True
        try:
            interrupt = self._replies.interrupt
            reply = await self._threads.run(self._next, waits=True, interrupt=interrupt)
        except asyncio.CancelledError:
            await self._threads.finish(self._replies.close)
            raise
        finally:
            self._is_asked = False
        if reply is None:
            raise StopAsyncIteration
        return reply

    def _next(self) -> ReceivedReply | None:
        if self._begins:
            self._begins = False
            iter(self._replies)
        return next(self._replies, None)

    async def close(self) -> None:
        """Releases what was not acknowledged; the iteration ends. Safe to repeat."""
        self._replies.interrupt()
        await self._threads.finish(self._replies.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        # In a thread: the event loop must not wait for the database. After the end of the threads
        # they are closed already, or close themselves.
        with suppress(RuntimeError):
            self._threads.submit(self._replies.close)
