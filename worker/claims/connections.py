"""The worker's database sessions: one a thread, kept, and some headroom."""

import threading
from collections.abc import Callable
from typing import Protocol

import psycopg
from psycopg_pool import PoolTimeout

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.database import dsn as dsns
from cmdbus.database.pool import SessionPool
from cmdbus.errors import DatabaseUnavailableError, InvalidOperationError
from cmdbus.worker.claims.claim import Connection, Session
from cmdbus.worker.claims.pools import Pool
from cmdbus.worker.claims.sessions import abort_io, close_unused, session_of

#: Seconds between two attempts while the database is away.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 1.0
_EXHAUSTED_TRIES = 3
#: A pool whose connections break is emptied no more often than this.
_DRAINED_AGAIN = 1.0
#: Seconds by which a pool of the caller's may notice a recovered database late: its attempts
#: to reconnect back off.
_RECOVERS_SECONDS = 15.0

_IDLE = psycopg.pq.TransactionStatus.IDLE


class ConnectionSource(Protocol):
    """Where a thread gets its connection, and leaves it."""

    def get(self) -> Connection: ...
    def put(self, connection: Connection, /) -> None: ...


class Unpooled:
    """Opened for each caller, and closed when it returns them."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self.get = connect

    def put(self, connection: Connection) -> None:
        connection.close()


class PoolExhausted(PoolTimeout):
    """The pool has no connection to give, although the database answers."""


class PooledConnections:
    """A pool that may be used up, or cut off."""

    def __init__(
        self,
        pool: Pool | SessionPool,
        parts: dsns.Parts,
        exhausted: Callable[[], None] | None = None,
        timeout: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._parts = parts
        #: Seconds to wait for a connection; None is the pool's own timeout.
        self._timeout = timeout
        #: Told when the pool has none to give, although the database answers.
        self._exhausted = exhausted
        self._drained_at = 0.0
        #: When something was last seen of a database that is away.
        self._away_at = float("-inf")

    def within(self, timeout: Callable[[], float]) -> "PooledConnections":
        """The same, with another timeout, and exhausted in silence."""
        return PooledConnections(self._pool, self._parts, timeout=timeout)

    def get(self) -> Connection:
        try:
            connection: Connection = self._pool.getconn(self._timeout())
            return connection
        except PoolTimeout as error:
            # A pool of the worker's own says why it could open none.
            away = error.__cause__ is not None or self._exhausted is None
            if not away and self._answers() and not self._recovers():
                assert self._exhausted is not None
                self._exhausted()
                raise PoolExhausted(str(error)) from error
            raise

    def put(self, connection: Connection) -> None:
        broken = connection.closed
        self._pool.putconn(connection)
        now = time.monotonic()
        if broken:
            self._away_at = now
        if broken and now - self._drained_at > _DRAINED_AGAIN:
            # What lies in the pool was cut off with it: without this, each is found out in turn.
            self._drained_at = now
            self._pool.drain()

    def _answers(self) -> bool:
        try:
            dsns.connect(self._parts).close()
        except DatabaseUnavailableError:
            self._away_at = time.monotonic()
            return False
        return True

    def _recovers(self) -> bool:
        """What the pool has not, it may still be waiting for."""
        return time.monotonic() < self._away_at + _RECOVERS_SECONDS


class ThreadConnection:
    """A thread's connection, kept from one command to the next."""

    def __init__(
        self, source: ConnectionSource, show: Callable[[int, int], None] = lambda pid, start: None
    ) -> None:
        self._source = source
        #: Told each new session's pid and start, and zeros before it is sought.
        self._show = show
        self._connection: Connection | None = None
        #: The latest session, which may have died; until it is looked for there is none.
        self.session: Session | None = None
        #: The session in which the latest statement has failed.
        self._failed: Session | None = None
        self._taken_away = False

    def connection(self, give_up: threading.Event | None = None) -> Connection:
        if self._taken_away:
            raise InvalidOperationError("this execution was given up: its time was over")
        if self._connection is not None and not _at_rest(self._connection):
            # Another thread uses it wrongly: its transaction is not this one's to end.
            self.drop()
        if self._connection is None or self._connection.closed:
            self.reconnect(give_up)
        assert self._connection is not None
        return self._connection

    def lost(self) -> bool:
        return self._connection is None or self._connection.closed

    def reconnect(self, give_up: threading.Event | None = None) -> None:
        """Until it works; an error only once `give_up` is set, or at the first try without, or
        when the pool had none to give three times, or none that works for as long as it waits."""
        pauses, exhausted = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS), 0
        while True:
            self.close()
            self._show(0, 0)
            try:
                self._connection = connection = self._source.get()
                try:
                    self.session = session_of(connection)
                except BaseException:
                    self.drop()
                    raise
                self._show(*self.session)
                return
            except psycopg.OperationalError as error:
                exhausted += isinstance(error, PoolExhausted)
                away = isinstance(error, PoolTimeout) and not exhausted
                if give_up is None or away or exhausted == _EXHAUSTED_TRIES:
                    raise
                if give_up.wait(pauses.pause()):
                    raise

    def discard_if_read_only(self, error: BaseException) -> None:
        """A session whose server lets nobody write any more is left: the next one is sought
        until there is one that may."""
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            self.drop()

    def failed(self) -> None:
        """A statement of a living session has failed: drops the session at the second in a row,
        as a handler may have spoilt it."""
        again = self.session is not None and self.session == self._failed
        self._failed = self.session
        if again:
            self.drop()

    def worked(self) -> None:
        self._failed = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._source.put(connection)

    def drop(self) -> None:
        """Not to be used again by anybody."""
        if self._connection is not None:
            self._connection.close()
        self.close()

    # From another thread, when this one does not come back.

    def abort_io(self) -> None:
        """Frees it from whatever it waits for, even from a server that has gone silent."""
        abort_io(self._connection)

    def take_away(self) -> None:
        """Its connection in the pool is free for another thread; after `abort_io`."""
        self._taken_away = True
        if self._connection is not None and close_unused(self._connection):
            self.close()


def _at_rest(connection: Connection) -> bool:
    return connection.closed or connection.info.transaction_status is _IDLE
