"""A small pool of database connections, without threads of its own.

The thread that needs a connection opens it, one at a time, and no lock is held meanwhile:
threads that wait for it share the outcome. So the pool works in a signal handler's process, in
an atexit function and on a server that answers again after hours, and has nothing to end.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, RLock, get_ident
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from cmdbus.backoff import Backoff
from cmdbus.clock import time

Connection = psycopg.Connection[Any]

#: Seconds after which a connection is replaced: by then the DSN may lead to another server.
_MAX_LIFETIME = 3600.0
#: Seconds between two attempts to connect, doubling, while a failure is waited out.
_MIN_RETRY, _MAX_RETRY = 0.1, 0.5
#: Seconds after which a waiting thread checks whether the one before it still waits.
_CHECK_SECONDS = 1.0
#: Seconds beyond its deadline after which a waiting thread counts as gone. An attempt to connect
#: may take that much longer than it was allowed.
_GRACE_SECONDS = 10.0

_IDLE = psycopg.pq.TransactionStatus.IDLE


class _Waiter:
    """A thread that waits for a connection, or for its turn to open one."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.thread = get_ident()
        #: The failure of the attempt to connect that it waited for.
        self.error: Exception | None = None
        self._called = Lock()
        self._called.acquire()

    def call(self) -> None:
        with suppress(RuntimeError):  # it has been called already
            self._called.release()

    def wait(self, seconds: float) -> None:
        """Until it is called, or was called since its last wait."""
        self._called.acquire(timeout=max(seconds, 0.0))

    def is_abandoned(self, now: float) -> bool:
        """Whether an interrupt has ended its wait outside any `finally`: then its thread has
        returned as another waiter, or its deadline is over."""
        return self.thread == get_ident() or now > self.deadline + _GRACE_SECONDS


class SessionPool:
    """Lends up to `max_size` connections, first come, first served. Has the methods of
    psycopg_pool.ConnectionPool that its users call. It belongs to the process that made it."""

    def __init__(
        self,
        connect: Callable[[float], Connection],
        *,
        max_size: int,
        timeout: float,
        max_idle: float,
        min_size: int = 1,
        passes: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        """`connect` gets the seconds that are left. A failure that `passes` by itself is waited
        out, for `timeout` seconds in all; others are raised. Beyond `min_size`, a connection that
        was idle for `max_idle` seconds is closed when the pool is used."""
        self.min_size, self.max_size = min_size, max_size
        self.timeout, self.max_idle, self.max_lifetime = timeout, max_idle, _MAX_LIFETIME
        self._connect = connect
        self._passes = passes
        # Reentrant: a signal handler may close the pool that its own thread is about to use.
        self._lock = RLock()
        self._kept = _Kept()
        self._waiters: deque[_Waiter] = deque()
        #: The thread that connects next.
        self._connector: _Waiter | None = None
        self._closed = False
        #: The failure of the latest attempt to connect; the next one is not before this time.
        self._failure: Exception | None = None
        self._retry_at, self._backoff = 0.0, Backoff(_MIN_RETRY, _MAX_RETRY)
        self._drained_at = float("-inf")
        # Else the interpreter would warn at its end of connections that were not closed.
        weakref.finalize(self, _abandon, os.getpid(), self._kept)

    def fill(self, timeout: float) -> None:
        """Opens `min_size` connections; fewer, if it takes longer."""
        deadline, opened = time.monotonic() + timeout, []
        try:
            with suppress(PoolTimeout):
                for _ in range(self.min_size):
                    opened.append(self.getconn(deadline - time.monotonic()))
        finally:
            for connection in opened:
                self.putconn(connection)

    def getconn(self, timeout: float | None = None) -> Connection:
        """PoolTimeout if none was free in time; its cause is why none could be opened."""
        with self._lock:
            if self._kept.idle and not self._waiters and not self._closed:
                return self._kept.idle.pop()[1]
        waiter = _Waiter(time.monotonic() + (self.timeout if timeout is None else timeout))
        try:
            while True:
                connection = self._wait(waiter) or self._open(waiter)
                if connection is not None:
                    return connection
        finally:
            with self._lock:
                self._leave(waiter)

    def putconn(self, connection: Connection) -> None:
        now = time.monotonic()
        usable = not connection.closed and connection.info.transaction_status is _IDLE
        with self._lock:
            opened_at = self._kept.opened[connection]
            usable = usable and self._drained_at < opened_at and now < opened_at + self.max_lifetime
            if usable and not self._closed:
                self._kept.idle.append((now, connection))
                unwanted = self._kept.unused(now - self.max_idle, self.min_size)
            else:
                del self._kept.opened[connection]
                unwanted = [connection]
            self._call_first()
        _close(unwanted)

    @contextmanager
    def connection(self, timeout: float | None = None) -> Iterator[Connection]:
        connection = self.getconn(timeout)
        try:
            yield connection
        finally:
            self.putconn(connection)

    def resize(self, min_size: int, max_size: int) -> None:
        """From now on; surplus connections are closed once they have been idle long enough."""
        with self._lock:
            self.min_size, self.max_size = min_size, max_size
            self._call_first()

    def drain(self) -> None:
        """Closes idle connections, and lent ones as soon as they are returned."""
        with self._lock:
            self._drained_at = time.monotonic()
            unwanted = self._kept.take_idle()
            self._call_first()
        _close(unwanted)

    def close(self) -> None:
        """Waiting threads get PoolClosed; lent connections are closed when they are returned."""
        with self._lock:
            self._closed = True
            unwanted = self._kept.take_idle()
            for waiter in self._waiters:
                waiter.call()
        _close(unwanted)

    def _wait(self, waiter: _Waiter) -> Connection | None:
        """An idle connection; or None, and it is this thread's turn to open one."""
        while True:
            now = time.monotonic()
            with self._lock:
                if self._closed:
                    raise PoolClosed("the pool is closed")
                if waiter.error is not None:
                    raise _copy(waiter.error) from waiter.error
                self._join(waiter, now)
                if self._waiters[0] is waiter:
                    if self._kept.idle:
                        return self._kept.idle.pop()[1]
                    if self._may_open(now):
                        self._connector = waiter
                        self._waiters.popleft()
                        # The next one may take a connection that is returned meanwhile.
                        self._call_first()
                        return None
                if now >= waiter.deadline:
                    raise PoolTimeout("no connection was free in time") from self._failure
                wake_at = min(waiter.deadline, now + _CHECK_SECONDS)
                if self._retry_at > now:
                    wake_at = min(wake_at, self._retry_at)
            waiter.wait(wake_at - now)

    def _join(self, waiter: _Waiter, now: float) -> None:
        """Lines it up, and removes abandoned ones; also one whose thread runs a signal handler: it
        joins again when the handler has ended."""
        if self._connector is not None and self._connector.is_abandoned(now):
            self._connector = None
        for other in [w for w in self._waiters if w is not waiter and w.is_abandoned(now)]:
            self._waiters.remove(other)
        if waiter not in self._waiters:
            self._waiters.append(waiter)

    def _may_open(self, now: float) -> bool:
        is_full = len(self._kept.opened) >= self.max_size
        return self._connector is None and not is_full and now >= self._retry_at

    def _open(self, waiter: _Waiter) -> Connection | None:
        """None if that failed and the failure is waited out."""
        try:
            connection = self._connect(max(waiter.deadline - time.monotonic(), 0.0))
        except BaseException as error:
            with self._lock:
                self._ends_connecting(waiter)
                if not isinstance(error, Exception) or self._is_final(error):
                    self._call_first()
                    raise
                self._waiters.appendleft(waiter)
            return None
        with self._lock:
            self._ends_connecting(waiter)
            self._failure, self._retry_at = None, 0.0
            self._backoff.reset()
            if not self._closed:
                self._kept.opened[connection] = time.monotonic()
                return connection
        connection.close()
        raise PoolClosed("the pool is closed")

    def _is_final(self, error: Exception) -> bool:
        """Whether the waiting threads get it, too: not if it passes, or connections are lent."""
        self._failure = error
        if self._kept.opened or self._passes(error):
            self._retry_at = time.monotonic() + self._backoff.pause()
            return False
        for waiter in self._waiters:
            waiter.error = error
            waiter.call()
        return True

    def _leave(self, waiter: _Waiter) -> None:
        """Wherever an interrupt has hit its thread."""
        self._ends_connecting(waiter)
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self._call_first()

    def _ends_connecting(self, waiter: _Waiter) -> None:
        if self._connector is waiter:
            self._connector = None

    def _call_first(self) -> None:
        if self._waiters:
            self._waiters[0].call()


class _Kept:
    """The connections of a pool, under its lock."""

    def __init__(self) -> None:
        #: Opening times, of idle and lent ones. A connection that an interrupt kept from being
        #: returned counts until its last reference is gone, which closes it.
        self.opened: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        #: Times of the last use; the latest used one last.
        self.idle: list[tuple[float, Connection]] = []

    def unused(self, since: float, least: int) -> list[Connection]:
        """Takes out those that were not used since then, as long as `least` are left."""
        unwanted = []
        while len(self.opened) > least and self.idle and self.idle[0][0] <= since:
            connection = self.idle.pop(0)[1]
            del self.opened[connection]
            unwanted.append(connection)
        return unwanted

    def take_idle(self) -> list[Connection]:
        taken = [connection for _, connection in self.idle]
        self.idle.clear()
        for connection in taken:
            del self.opened[connection]
        return taken


def _copy(error: Exception) -> Exception:
    """For another thread, which adds its own traceback. Without the constructor, which may take
    other arguments; with all attributes, among them those that `diag` reads."""
    kind = type(error)
    copied = kind.__new__(kind, *error.args)
    copied.__dict__.update(error.__dict__)
    return copied


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        with suppress(psycopg.Error):
            connection.close()


def _abandon(pid: int, kept: _Kept) -> None:
    """In a forked child the sessions are the parent's."""
    if os.getpid() == pid:
        _close(kept.take_idle())
