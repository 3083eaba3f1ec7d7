"""`context.session`: an SQLAlchemy session in the handler's transaction, which it can neither
commit nor roll back. What it has not written is flushed when the handler returns.

The engine is made once in each process, at the first use. Its pool opens nothing: each connection
is that of an execution, and goes back to it as it is.
"""

import threading
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Any, NoReturn

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import NullPool

from cmdbus.errors import CmdbusError, InvalidOperationError, TransientCommandError

#: Flushes at the end: listeners may add objects each time.
_MAX_FLUSHES = 100
_USED_AFTER_RETURN = (
    "context.session was used after the handler returned: finish all database work before you "
    "return"
)


class HandlerDialect(PGDialect_psycopg):
    """The transaction is the worker's: nothing here ends it, or closes its connection."""

    supports_statement_cache = True

    def do_rollback(self, dbapi_connection: Any) -> None:
        """After an error outside a savepoint. What was written must not be committed."""
        _driver(dbapi_connection).rolled_back = True

    def do_rollback_to_savepoint(self, connection: Connection, name: str) -> None:
        """Not at the end of an execution, for a savepoint that the handler has left open."""
        if not _driver(connection.connection).is_over:
            super().do_rollback_to_savepoint(connection, name)  # type: ignore[no-untyped-call]

    def do_close(self, dbapi_connection: Any) -> None:
        pass


def _driver(connection: Any) -> Any:
    """The driver's connection; SQLAlchemy passes it in a wrapper, or itself."""
    return getattr(connection, "driver_connection", connection)


class HandlerSession(Session):
    _driver: Any

    def begin(self, nested: bool = False) -> SessionTransaction:
        if not nested:
            _refuse("session.begin")
        savepoint = super().begin(nested=True)
        # SQLAlchemy makes it at the session's next statement, and not before one of
        # `context.connection`.
        self.connection()
        return savepoint

    def commit(self) -> None:
        _refuse("session.commit")

    def rollback(self) -> None:
        _refuse("session.rollback")

    def prepare(self) -> None:
        _refuse("session.prepare")

    def close(self) -> None:
        _refuse("session.close")

    def reset(self) -> None:
        _refuse("session.reset")

    def invalidate(self) -> None:
        _refuse("session.invalidate")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """`with context.session as session:` leaves it open."""

    def finish(self) -> None:
        """Writes what is left, before the transaction commits."""
        savepoint = self.get_nested_transaction()
        if self._driver.rolled_back or (savepoint is not None and not savepoint.is_active):
            raise TransientCommandError(
                "TRANSACTION_ABORTED",
                "the handler returned after an error had rolled back context.session: let the "
                "error out, or use a savepoint (with context.session.begin_nested())",
            )
        for _ in range(_MAX_FLUSHES):
            if self._is_clean():
                break
            self.flush()
        self._release_savepoints()

    def _release_savepoints(self) -> None:
        """Those that the handler has left open, as a commit does: closed, a session rolls back."""
        while (savepoint := self.get_nested_transaction()) is not None:
            savepoint.commit()

    def end(self) -> None:
        """Every later use is an error. Sends nothing."""
        connection, self._driver.is_over = self.bind, True
        with suppress(Exception):  # Another thread is in the middle of something.
            super().close()
        if isinstance(connection, HandlerSideConnection):
            with suppress(Exception):
                connection.end()
        object.__setattr__(self, "__class__", EndedSession)


class EndedSession(Session):
    """A HandlerSession after its execution: it refuses every use."""

    def __getattribute__(self, name: str) -> Any:
        raise InvalidOperationError(_USED_AFTER_RETURN)

    def __repr__(self) -> str:
        return "<context.session of a handler that has returned>"


class HandlerSideConnection(Connection):
    """What `context.session.connection()` returns."""

    def commit(self) -> None:
        _refuse("session.connection().commit")

    def rollback(self) -> None:
        _refuse("session.connection().rollback")

    def close(self) -> None:
        _refuse("session.connection().close")

    def end(self) -> None:
        super().close()


def _refuse(what: str) -> NoReturn:
    raise InvalidOperationError(
        f"context.{what}() would end the command's transaction: it commits when the handler "
        f"returns and rolls back when it raises; for a part that may fail use a savepoint "
        f"(with context.session.begin_nested())"
    )


class _Lent(threading.local):
    """The connection that the pool hands out next, in this thread."""

    connection: psycopg.Connection[Any] | None = None


_lent = _Lent()


def _take() -> psycopg.Connection[Any]:
    connection, _lent.connection = _lent.connection, None
    if connection is None:
        raise psycopg.OperationalError("the connection is lost")
    return connection


@cache
def _engine() -> Engine:
    """The first connection of a process is asked for the server's version and settings."""
    registry.register("postgresql.cmdbus", __name__, HandlerDialect.__name__)
    engine = create_engine(
        "postgresql+cmdbus://", creator=_take, poolclass=NullPool, pool_reset_on_return=None
    )
    event.listen(engine, "handle_error", _unwrapped)
    event.listen(engine, "savepoint", _enter_savepoint)
    event.listen(engine, "rollback_savepoint", _leave_savepoint)
    event.listen(engine, "release_savepoint", _leave_savepoint)
    return engine


def _enter_savepoint(connection: Connection, name: str) -> None:
    _driver(connection.connection).enter_savepoint()


def _leave_savepoint(connection: Connection, name: str, context: None) -> None:
    _driver(connection.connection).leave_savepoint()


def _unwrapped(context: ExceptionContext) -> BaseException | None:
    """Errors of our own are raised as they are."""
    error = context.original_exception
    return error if isinstance(error, CmdbusError) else None


def open_session(driver: Any) -> HandlerSession:
    """A session on `driver`, a connection that nothing else uses, in a transaction."""
    _lent.connection = driver
    try:
        connection = HandlerSideConnection(_engine())
    finally:
        _lent.connection = None
    driver.rolled_back = False  # SQLAlchemy rolls back the first one in a process.
    session = HandlerSession(connection)
    session._driver = driver
    return session
