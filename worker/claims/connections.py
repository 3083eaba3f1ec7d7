"""The worker's database sessions: one a thread, kept, and some headroom."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from cmdbus.clock import time
from cmdbus.database import dsn as dsns
from cmdbus.database.adapters import own_cursor
from cmdbus.database.pool import SessionPool
from cmdbus.database.statements import statement
from cmdbus.errors import DatabaseUnavailableError, InvalidOperationError
from cmdbus.timeouts import Timeouts

#: Of the caller's.
Pool = ConnectionPool[Any]

#: Beside the threads': for relief, and for renewing leases.
HEADROOM = 2
#: A step that waits for a row so long is given up, and its outcomes settled one by one.
_LOCK_TIMEOUT = 1.0
_NOT_LIBPQ = ("autocommit", "row_factory", "cursor_factory", "prepare_threshold", "context")
#: While the database is away: seconds until the next try, doubling.
_RETRY_FIRST, _RETRY_LONGEST = 0.1, 1.0
_EXHAUSTED_TRIES = 3

#: After its deadline, a hand is cut off so often.
_CUT_AGAIN = 0.2
#: A pool whose connections break is emptied no more often than this.
_DRAINED_AGAIN = 1.0
#: Seconds by which a pool of the caller's may notice a recovered database late: its attempts
#: to reconnect back off.
_RECOVERS_SECONDS = 15.0
#: A thread whose socket was shut down is out of the driver within this time.
_LEAVES_DRIVER_SECONDS = 1.0

#: What lets a role see and end the sessions of another one, which logs in and changes to it.
ROLE_FIX = "ALTER ROLE ... RESET role, or grant pg_read_all_stats and pg_signal_backend to it"

#: A session of the headroom is closed when nobody has used it for so long.
_IDLE_SECONDS = 60.0
#: Seconds for opening the threads' sessions before they begin; the others open their own.
_FILLS_SECONDS = 5.0

_IDLE = psycopg.pq.TransactionStatus.IDLE

Connection = psycopg.Connection[Any]


class ConnectionSource(Protocol):
    """Where a hand gets its connections, and leaves them."""

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
    """Where hands get their connections: a pool that may be used up, or cut off."""

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
        self.session: tuple[int, int] | None = None
        #: The session in which the latest statement has failed.
        self._failed: tuple[int, int] | None = None
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
        pause, exhausted = _RETRY_FIRST, 0
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
                if give_up.wait(pause):
                    raise
                pause = min(pause * 2, _RETRY_LONGEST)

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
        """The connection's place in the pool is free for another; after `cut`."""
        self._taken_away = True
        if self._connection is not None and _close_unused(self._connection):
            self.close()


@contextmanager
def abort_io_at(deadline: float, abort: Callable[[], None]) -> Iterator[None]:
    """Calls `abort` from the monotonic time on, again and again until the block has ended: it
    frees the block from whatever it waits for in the database."""
    over = threading.Event()

    def watch() -> None:
        pause = max(0.0, deadline - time.monotonic())
        while not over.wait(pause):
            abort()
            pause = _CUT_AGAIN

    watcher = threading.Thread(target=watch, name="cmdbus-deadline", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def session_of(connection: Connection) -> tuple[int, int]:
    """The pid and the start of the server's process, as the server knows them."""
    cursor = own_cursor(connection)
    row = cursor.execute(statement("read_backend", "cmdbus")).fetchone()
    assert row is not None, "each session sees its pid"
    pid, start, user, role = row
    if start is None:
        # Counts as a database that is away: new sessions are opened until one is all right.
        raise psycopg.OperationalError(
            f"a session of {user!r} runs as role {role!r}, which may not see it: {ROLE_FIX}"
        )
    return int(pid), int(start)


def abort_io(connection: Connection | None) -> None:
    """Frees a thread from whatever it waits for there."""
    if connection is not None and not connection.closed:
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(connection.fileno())) as ours,
        ):
            ours.shutdown(socket.SHUT_RDWR)


def end_session(connection: Connection) -> None:
    """Of a connection that another thread may be using. Canceled first: a server notices the
    end of a session only after its statement, whose locks would block the command's retry."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=_LEAVES_DRIVER_SECONDS)
    abort_io(connection)
    _close_unused(connection)


def _close_unused(connection: Connection) -> bool:
    """A thread inside the driver holds the lock, and releases it once the session is cut; to
    close the connection before would free memory that the thread still reads."""
    if not connection.lock.acquire(timeout=_LEAVES_DRIVER_SECONDS):
        return False
    try:
        connection.close()
    finally:
        connection.lock.release()
    return True


def _at_rest(connection: Connection) -> bool:
    return connection.closed or connection.info.transaction_status is _IDLE


def session_settings(timeouts: Timeouts) -> dict[str, str]:
    """What the server enforces for every session of a worker."""
    return {
        "statement_timeout": f"{timeouts.statement:g}s",
        "idle_in_transaction_session_timeout": f"{timeouts.thread:g}s",
        # Renewal waits behind such a step, too: with a third of a lease it comes in time.
        "lock_timeout": f"{min(_LOCK_TIMEOUT, timeouts.lease / 3):g}s",
        "default_transaction_isolation": "read committed",
    }


def complete(parts: dsns.Parts, application_name: str, timeouts: Timeouts) -> dsns.Parts:
    return dsns.complete(
        parts, application_name=application_name, settings=session_settings(timeouts)
    )


def parts_of(pool: Pool) -> dsns.Parts:
    """Where a pool of the caller's connects to."""
    if callable(pool.conninfo) or callable(pool.kwargs):
        raise ValueError("the worker needs a pool with a fixed conninfo and kwargs, or a DSN")
    named = {k: str(v) for k, v in (pool.kwargs or {}).items() if k not in _NOT_LIBPQ}
    return {**dsns.parse(pool.conninfo), **named}


def check_pool(pool: Pool, threads: int, timeouts: Timeouts) -> None:
    """A pool of the caller's is taken as it is, or refused: never changed silently."""
    if pool.max_size < threads + HEADROOM:
        raise ValueError(
            f"the pool has at most {pool.max_size} connections, and {threads} threads need "
            f"{threads + HEADROOM}: make it with max_size={threads + HEADROOM}"
        )
    with pool.connection() as connection:
        if not connection.autocommit:
            raise ValueError(
                "the pool's connections must be in autocommit mode: make it with "
                "kwargs={'autocommit': True}"
            )
        style = connection.info.parameter_status("DateStyle") or ""
        if not style.startswith("ISO"):
            raise ValueError(
                f"the pool's connections have DateStyle = {style}, in which timestamps cannot be "
                f"read: put the style ISO into the DSN (options='-c DateStyle=ISO')"
            )
        for name, wanted in session_settings(timeouts).items():
            row = (
                own_cursor(connection)
                .execute(statement("read_setting", "cmdbus"), {"name": name, "wanted": wanted})
                .fetchone()
            )
            if row is None or not row[0]:
                raise ValueError(
                    f"the pool's connections have {name} = {row and row[1]}, and the worker "
                    f"needs {wanted}: put it into the DSN (options='-c {name}={wanted}')"
                )


def open_pool(parts: dsns.Parts, threads: int, timeouts: Timeouts) -> SessionPool:
    """Sized to the threads; never checks a connection when it is checked out: with eight
    connections and a restart of the server that costs 31 s."""
    dsns.connect(parts).close()  # An outage at the start has its own error.
    pool = SessionPool(
        partial(dsns.open_session, parts),
        min_size=threads,
        max_size=threads + HEADROOM,
        max_idle=_IDLE_SECONDS,
        timeout=timeouts.pool,
        passes=lambda error: isinstance(error, psycopg.OperationalError),
    )
    pool.fill(_FILLS_SECONDS)
    return pool
