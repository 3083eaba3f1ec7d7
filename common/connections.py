"""The producer's connections: a small pool, opened when it is first needed, in each
process anew, and a second try for a call whose connection turns out to be dead."""

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from cmdbus import dsn as dsns
from cmdbus import schema as schemas
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.sentences import missing_right

Connection = psycopg.Connection[Any]
Pool = ConnectionPool[Any]
T = TypeVar("T")

MAX_CONNECTIONS = 4
_WAIT_SECONDS = 30.0
#: Pools of a parent process. Closing or even forgetting one here would end the
#: parent's sessions, since a fork shares their sockets.
_inherited: list[Pool] = []
_everyone: WeakSet["Connections"] = WeakSet()


class Connections:
    """Runs work on a connection of its own pool, or of the caller's."""

    def __init__(self, dsn: str | None, pool: Pool | None, schema: str) -> None:
        if (dsn is None) == (pool is None):
            raise ValueError("CommandBus needs a DSN or a pool: give exactly one of them")
        self._schema = schema
        self._parts = None if dsn is None else _completed(dsn)
        self._pool = pool
        self._opening = Lock()
        self._closed = False
        _everyone.add(self)

    def run(self, work: Callable[[Connection, bool], T]) -> T:
        """`work(connection, again)`, once more on a fresh connection if its own dies.

        The first try may have been carried out before its connection died, or still
        be on its way: with `again` the work must be harmless then.
        """
        pool = self._opened()
        try:
            return self._try(pool, work, again=False)
        except _DiedError:
            # The others died with it; drained, they are not tried one by one.
            pool.drain()
        try:
            return self._try(pool, work, again=True)
        except _DiedError as died:
            raise died.error from None

    def use(self, connection: Connection | None, work: Callable[[Connection, bool], T]) -> T:
        """In the caller's transaction, never repeated; without one like `run`."""
        if connection is None:
            return self.run(work)
        try:
            return work(check_encoding(connection), False)
        except psycopg.errors.InsufficientPrivilege as error:
            raise missing_right(error) from error

    def close(self) -> None:
        with self._opening:
            self._closed = True
            if self._parts and self._pool:
                self._pool.close()
                self._pool = None

    def after_fork(self) -> None:
        """In the child: the parent's pool stays the parent's."""
        self._opening = Lock()
        if self._parts and self._pool:
            _inherited.append(self._pool)
            self._pool = None

    def _try(self, pool: Pool, work: Callable[[Connection, bool], T], *, again: bool) -> T:
        connection = None
        try:
            with pool.connection() as connection:
                return work(check_encoding(connection), again)
        except PoolTimeout:
            raise DatabaseUnavailableError(self._why_not()) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise missing_right(error) from error
        except psycopg.OperationalError as error:
            if connection is not None and connection.closed:
                raise _DiedError(error) from None
            raise
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedFunction,
            psycopg.errors.InvalidSchemaName,
        ):
            with pool.connection() as connection:
                schemas.check(connection, self._schema)
            raise

    def _opened(self) -> Pool:
        with self._opening:
            if self._closed:
                raise psycopg.OperationalError("this CommandBus is closed")
            if self._pool is None:
                assert self._parts is not None
                self._pool = _open(self._parts)
            return self._pool

    def _why_not(self) -> str:
        if self._parts is None:
            return f"the pool had no connection to give for {_WAIT_SECONDS:g} s"
        try:
            dsns.connect(self._parts).close()
        except DatabaseUnavailableError as error:
            return str(error)
        return f"all {MAX_CONNECTIONS} connections of this CommandBus were busy for too long"


class _DiedError(Exception):
    def __init__(self, error: psycopg.Error) -> None:
        self.error = error


def _forget_pools() -> None:
    for connections in _everyone:
        connections.after_fork()


os.register_at_fork(after_in_child=_forget_pools)


def check_encoding(connection: Connection) -> Connection:
    """With SQL_ASCII the driver returns bytes, and nothing that is read means anything."""
    if connection.info.encoding == "ascii":
        raise ValueError(
            "the connection's client_encoding is SQL_ASCII: make it with client_encoding=UTF8"
        )
    return connection


def _completed(dsn: str) -> dsns.Parts:
    return dsns.complete_producers(dsns.parse(dsn))


def _open(parts: dsns.Parts) -> Pool:
    # A pool tries for its whole timeout and then hides the reason.
    dsns.connect(parts).close()
    pool = ConnectionPool(
        connection_class=dsns.Session,
        kwargs={**parts, "autocommit": True},
        min_size=1,
        max_size=MAX_CONNECTIONS,
        timeout=_WAIT_SECONDS,
        name="cmdbus",
        open=True,
    )
    # Else the first caller does not wait for the first connection, but has a second made.
    pool.wait(_WAIT_SECONDS)
    return pool
