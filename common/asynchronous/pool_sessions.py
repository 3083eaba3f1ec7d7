"""Sessions beside those of a pool for asyncio, opened as it opens its own."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from cmdbus.database.pool import Connection
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.producer.connections import opened_as_by


class PoolSessions:
    """The pool of a bus that gets a connection of the real one for each call: it only listens, and
    reads replies, on others. Used by threads."""

    connection_class = psycopg.Connection

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool
        self.timeout = pool.timeout
        #: In which the pool's own functions run.
        self.loop: asyncio.AbstractEventLoop | None = None

    def conninfo(self) -> str:
        given = self._pool.conninfo
        return self._done(given()) if callable(given) else given

    def kwargs(self) -> dict[str, Any]:
        given = self._pool.kwargs
        keywords = self._done(given()) if callable(given) else given
        # A class for asyncio, if there is one.
        return {name: each for name, each in (keywords or {}).items() if name != "cursor_factory"}

    @contextmanager
    def connection(self, _: float | None = None) -> Iterator[Connection]:
        opened: Connection = opened_as_by(self, {})
        with opened:
            yield opened

    def _done(self, result: Any) -> Any:
        if not asyncio.iscoroutine(result):
            return result
        return self._awaited(result)

    def _awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self.loop is None or self.loop.is_closed():
            coroutine.close()
            raise DatabaseUnavailableError("cannot connect as the pool does: its loop is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(self.timeout)
        except TimeoutError:
            future.cancel()
            raise DatabaseUnavailableError(
                f"the pool did not say where to connect for {self.timeout:.3g} s"
            ) from None
