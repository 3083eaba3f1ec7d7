"""The worker's database sessions: one a thread, kept, and some headroom."""

import threading
from collections.abc import Callable

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
#: Seconds between two drains of a pool whose connections break.
_DRAIN_AGAIN_SECONDS = 1.0
#: Seconds by which a pool of the caller's may notice a recovered database late, as its attempts
#: to reconnect back off.
_RECOVERS_SECONDS = 15.0

_IDLE = psycopg.pq.TransactionStatus.IDLE


class PoolExhausted(PoolTimeout):
    """The pool has no connection to give, although the database answers."""


class PooledConnections:
    """A pool that may be used up, or cut off."""

    def __init__(
        self, pool: Pool | SessionPool, parts: dsns.Parts, exhausted: Callable[[], None]
    ) -> None:
        """`exhausted` is called when the pool has no connection to give, although the database
        answers."""
        self._pool = pool
        self._parts = parts
        self._exhausted = exhausted
        self._drained_at = 0.0
        #: The latest time at which the database was seen to be away.
        self._away_at = float("-inf")

    def get(self, timeout: float | None = None) -> Connection:
        """With a timeout, an exhausted pool is not reported as such."""
        try:
            connection: Connection = self._pool.getconn(timeout)
            return connection
        except PoolTimeout as error:
            # A pool of the worker's own says why it could open none.
            if timeout is None and error.__cause__ is None and self._is_used_up():
                self._exhausted()
                raise PoolExhausted(str(error)) from error
            raise

    def put(self, connection: Connection) -> None:
        broken = connection.closed
        self._pool.putconn(connection)
        if broken:
            self._away_at = now = time.monotonic()
            if now - self._drained_at > _DRAIN_AGAIN_SECONDS:
                # The others in the pool have probably broken with it.
                self._drained_at = now
                self._pool.drain()

    def _is_used_up(self) -> bool:
        """Whether the database answers, and the pool has had the time to notice that."""
        try:
            dsns.connect(self._parts).close()
        except DatabaseUnavailableError:
            self._away_at = time.monotonic()
        return time.monotonic() >= self._away_at + _RECOVERS_SECONDS


class ThreadConnection:
    """A thread's connection, kept from one command to the next."""

    def __init__(
        self,
        get: Callable[[], Connection],
        put: Callable[[Connection], None] = psycopg.Connection.close,
        show: Callable[[int, int], None] = lambda pid, start: None,
    ) -> None:
        """`show` is called with each new session's pid and start, and with zeros before it is
        opened."""
        self._get, self._put = get, put
        self._show = show
        self._connection: Connection | None = None
        #: The latest session, which may have died.
        self.session: Session | None = None
        self._taken_away = False

    def connection(self, give_up: threading.Event | None = None) -> Connection:
        self._check_taken_away()
        if self._connection is not None and not _at_rest(self._connection):
            # Another thread uses it wrongly, in a transaction of its own.
            self.drop()
        if self._connection is None or self._connection.closed:
            self.reconnect(give_up)
            self._check_taken_away()
        assert self._connection is not None
        return self._connection

    def _check_taken_away(self) -> None:
        if self._taken_away:
            self.drop()
            raise InvalidOperationError("this execution was given up: its time was over")

    def lost(self) -> bool:
        """Also called by other threads."""
        connection = self._connection
        return connection is None or connection.closed

    def reconnect(self, give_up: threading.Event | None = None) -> None:
        """Tries until it works, or `give_up` is set; without `give_up` only once. Also raises once
        the pool was exhausted three times, or had no working connection within its timeout."""
        backoff, exhausted = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS), 0
        while True:
            self.close()
            self._show(0, 0)
            try:
                self._connection = connection = self._get()
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
                if give_up.wait(backoff.pause()):
                    raise

    def discard_if_read_only(self, error: BaseException) -> None:
        """After a failover the next session may lead to a server that can be written to."""
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            self.drop()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._put(connection)

    def drop(self) -> None:
        """Closes the session, also if it came from a pool."""
        if (connection := self._connection) is not None:  # Another thread may take it away.
            connection.close()
        self.close()

    # Called by another thread, once this one is overdue.

    def abort_io(self) -> None:
        """Frees it from whatever it waits for, even from a server that has gone silent."""
        abort_io(self._connection)

    def take_away(self) -> None:
        """Returns its place in the pool; after `abort_io`."""
        self._taken_away = True
        if self._connection is not None and close_unused(self._connection):
            self.close()


def _at_rest(connection: Connection) -> bool:
    return connection.closed or connection.info.transaction_status is _IDLE
