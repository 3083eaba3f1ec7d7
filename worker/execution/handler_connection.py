"""The connection object that one execution of a handler works with.

It shares the session, the prepared statements and nothing else with the connection that its
thread keeps: what a handler sets on it ends with it. After the execution, and in a forked
process, it refuses every use; so do the cursors, copies, pipelines and transaction blocks that
were made from it, because all of them reach the session through it.
"""

import os
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, NoReturn, TypeVar
from weakref import ref

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.errors import Diagnostic

from cmdbus.errors import InvalidOperationError
from cmdbus.worker.claims.claim import Connection

T = TypeVar("T")

_ACTIVE = psycopg.pq.TransactionStatus.ACTIVE
_IDLE = psycopg.pq.TransactionStatus.IDLE
_INTRANS = psycopg.pq.TransactionStatus.INTRANS
#: Seconds to wait at the end of a handler for another thread that is sending new limits.
_LIMITS_SENT_WITHIN = 1.0

USED_AFTER_RETURN = (
    "context.connection was used after the handler returned: finish all database work before "
    "you return"
)
USED_AFTER_FORK = (
    "context.connection was used in a forked process: the session belongs to the worker; open "
    "a connection of the process's own there"
)


class HandlerConnection(psycopg.Connection[Any]):
    """Refuses to separate the handler's effects from its command's completion."""

    has_default_adapters = False
    _session_lock: Lock
    _pid: int
    _before: tuple[Any, ...]
    #: The command that sets the transaction's new limits, and how deep in savepoints it was sent.
    _limits: bytes | None
    _limits_depth: int | None
    _limits_lock: Lock
    #: Another object for the same transaction: see `second_connection`.
    _second: "HandlerConnection | None" = None
    #: The library that uses a second one has given up what it wrote.
    rolled_back = False
    #: The execution ends: that library sends nothing more.
    is_over = False

    def __del__(self, _: Any = None) -> None:
        """No leak: the session is the thread's."""

    def commit(self) -> None:
        self._refuse("commit")

    def rollback(self) -> None:
        self._refuse("rollback")

    def close(self) -> None:
        self._refuse("close")

    def set_autocommit(self, value: bool) -> None:
        self._refuse("set_autocommit")

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None
    ) -> T:
        """Every exchange with the server passes here. Holds the session's own lock, which shows
        other threads that the session is in use."""
        with self._session_lock:
            self._check_process()
            result = super().wait(gen, interval, timeout)
        if self._limits is not None:
            self._send_limits(self._limits)
        return result

    def limit(self, command: bytes) -> None:
        """Gives the transaction new limits: immediately if the session is free, else after the
        current statement, pipeline or failed part. Called by any thread."""
        self._limits, self._limits_depth = command, None
        self._send_limits(command)
        if self._second is not None:
            self._second.limit(command)

    def enter_savepoint(self) -> None:
        """One that the driver has not made itself."""
        self._num_transactions += 1

    def leave_savepoint(self) -> None:
        self._num_transactions -= 1

    def _send_limits(self, command: bytes) -> None:
        with self._limits_lock:
            if not self._session_lock.acquire(blocking=False):
                return  # The thread inside sends them when it leaves.
            try:
                if self._needs_limits():
                    with suppress(psycopg.Error):
                        super().wait(self._exec_command(command))
                        self._limits_depth = self._num_transactions
            finally:
                self._session_lock.release()

    def _needs_limits(self) -> bool:
        """Also after a savepoint that was open when they were sent: its rollback undoes them."""
        if self.pgconn.transaction_status != _INTRANS or self._pipeline is not None:
            return False
        return self._limits_depth is None or self._num_transactions < self._limits_depth

    def retire(self) -> bool:
        """Ends every further use; False if another thread or an unfinished copy, stream or
        pipeline still uses the session: then it must be dropped."""
        second_at_rest = self._second is None or self._second.retire()
        lock, limits_lock = self._session_lock, self._limits_lock
        limits_sent = limits_lock.acquire(timeout=_LIMITS_SENT_WITHIN)
        free = lock.acquire(blocking=False)
        try:
            at_rest = self.pgconn.transaction_status != _ACTIVE and self._pipeline is None
            self._restore_session()
            object.__setattr__(self, "__class__", EndedConnection)
        finally:
            if free:
                lock.release()
            if limits_sent:
                limits_lock.release()
        return free and at_rest and second_at_rest

    def _restore_session(self) -> None:
        pgconn, prepared = self.pgconn, self._prepared
        (
            pgconn.notice_handler,
            pgconn.notify_handler,
            prepared.prepare_threshold,
            prepared.prepared_max,
        ) = self._before

    def _check_connection_ok(self) -> None:
        self._check_process()
        super()._check_connection_ok()

    def _should_cancel(self) -> bool:
        self._check_process()
        return super()._should_cancel()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise InvalidOperationError(USED_AFTER_FORK)

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidOperationError(
            f"context.connection.{what}() would end the command's transaction: it commits "
            f"when the handler returns and rolls back when it raises; for a part that may "
            f"fail use a savepoint (with context.connection.transaction())"
        )


class AutocommitConnection(HandlerConnection):
    """Outside of the command's transaction: what it commits stays, whatever becomes of the
    command."""

    commit = psycopg.Connection.commit
    rollback = psycopg.Connection.rollback
    set_autocommit = psycopg.Connection.set_autocommit

    def close(self) -> None:
        raise InvalidOperationError("the session is the worker's: leave it open")

    def _needs_limits(self) -> bool:
        """They are the session's, not a transaction's."""
        status = self.pgconn.transaction_status
        free = status in (_IDLE, _INTRANS) and self._pipeline is None
        return free and self._limits_depth is None


class EndedConnection(psycopg.Connection[Any]):
    """A HandlerConnection after its execution: it refuses every use."""

    def __getattribute__(self, name: str) -> Any:
        if name == "closed":
            return True
        raise InvalidOperationError(USED_AFTER_RETURN)

    def __setattr__(self, name: str, value: object) -> None:
        raise InvalidOperationError(USED_AFTER_RETURN)

    def __del__(self, _: Any = None) -> None:
        pass

    def __repr__(self) -> str:
        return "<context.connection of a handler that has returned>"


#: By the class of the session's own connection, which may be one of the application's pool.
_classes: dict[tuple[type[HandlerConnection], type[Connection]], type[HandlerConnection]] = {
    (HandlerConnection, psycopg.Connection): HandlerConnection
}


def handler_connection(
    connection: Connection, noticed: Callable[[Diagnostic], None]
) -> HandlerConnection:
    """Makes an object for the session of `connection`, which nothing else uses until `retire`.
    `noticed` is called with each notice of the server. A tracing library may have wrapped
    `connection`: its `__class__`, unlike its type, is that of the wrapped one."""
    made = _made(connection)
    made._notice_handlers.append(noticed)
    return _heard(made)


def autocommit_connection(connection: Connection) -> HandlerConnection:
    """Makes one for a handler that has no transaction, or is over."""
    return _heard(_made(connection, AutocommitConnection))


def _heard(made: HandlerConnection) -> HandlerConnection:
    """It gets what the server reports."""
    made.pgconn.notice_handler = partial(made._notice_handler, ref(made))
    made.pgconn.notify_handler = partial(made._notify_handler, ref(made))
    return made


def second_connection(connection: Connection, first: HandlerConnection) -> HandlerConnection:
    """One more object for the session of `connection`, for a library that the handler's settings of
    `first` would confuse. It ends with `first`; there may be any number of them."""
    made = _made(connection)
    made.row_factory, made._before = psycopg.rows.tuple_row, first._before
    made.cursor_factory = psycopg.Cursor
    made.server_cursor_factory = psycopg.ServerCursor
    made._limits = first._limits
    made._second, first._second = first._second, made
    return made


def _made(
    connection: Connection, base: type[HandlerConnection] = HandlerConnection
) -> HandlerConnection:
    pgconn, prepared = connection.pgconn, connection._prepared
    made = base.__new__(_class_for(base, connection.__class__))
    vars(made).update(
        vars(connection),
        lock=Lock(),
        _session_lock=connection.lock,
        _pid=os.getpid(),
        _limits=None,
        _limits_depth=None,
        _limits_lock=Lock(),
        # The application's own, as on any connection that it makes.
        _adapters=AdaptersMap(
            psycopg.adapters
            if getattr(connection, "has_default_adapters", False)
            else connection.adapters
        ),
        _notice_handlers=[],
        _notify_handlers=[],
        _notifies_backlog=deque(),
        _before=(
            pgconn.notice_handler,
            pgconn.notify_handler,
            prepared.prepare_threshold,
            prepared.prepared_max,
        ),
    )
    return made


def _class_for(base: type[HandlerConnection], kind: type[Connection]) -> type[HandlerConnection]:
    found = _classes.get((base, kind))
    if found is None:
        bases = (base,) if issubclass(base, kind) else (base, kind)
        found = _classes[base, kind] = type(base.__name__, bases, {})
    return found
