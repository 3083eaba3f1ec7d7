"""The producer's connections: a small pool, opened when it is first needed, in each
process again, and a second try for a call whose connection turns out to be dead."""

import copy
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from cmdbus.checks import check_seconds
from cmdbus.database import dsn as dsns
from cmdbus.database import schema as schemas
from cmdbus.database.adapters import Row
from cmdbus.database.connect_errors import is_read_only
from cmdbus.database.executor import Executor
from cmdbus.database.pool import Connection, SessionPool
from cmdbus.errors import (
    CommandNotFoundError,
    DatabaseUnavailableError,
    InvalidOperationError,
    SchemaError,
)
from cmdbus.integrations.callers_connection import CallersConnection, session_of
from cmdbus.printable import joined
from cmdbus.producer.ids import new_call
from cmdbus.producer.records import filled
from cmdbus.producer.statement_errors import (
    NOT_INSTALLED,
    missing_right,
    not_encodable,
    not_installed,
)

Pool = ConnectionPool[Any]
T = TypeVar("T")

MAX_CONNECTIONS = 4
#: Seconds that what has a timeout gives its pool for a connection, at least: libpq cannot connect
#: within less.
MIN_CONNECT_SECONDS = 2.0
WAIT_SECONDS = 30.0
#: Seconds after which all connections but one are closed, if they were not used.
_IDLE_SECONDS = 600.0
_ACTIVE = psycopg.pq.TransactionStatus.ACTIVE


class Connections:
    """Executes statements on a connection of its own pool, or in the caller's transaction.

    `needs` is the kind of role with the fewest rights that suffice, or "owner".
    """

    #: The class of the objects that have them.
    owner = "CommandBus"

    def __init__(
        self, dsn: str | None, pool: Pool | None, executor: Executor, timeout: float
    ) -> None:
        if (dsn is None) == (pool is None):
            raise ValueError(f"{self.owner} needs a DSN or a pool: give exactly one of them")
        if isinstance(pool, AsyncConnectionPool):
            raise ValueError("pool must be a psycopg_pool.ConnectionPool, not an asynchronous one")
        self._executor = executor
        self._parts = None if dsn is None else dsns.complete_producers(dsns.parse(dsn))
        self._given = pool
        self._timeout = check_seconds("timeout", timeout)
        self._pid = os.getpid()
        #: Pools by process. Those of others are kept as they are: a fork shares their sockets,
        #: and closing one here would end the other process's session. The pid is compared at
        #: each use, because a fork in C, as uWSGI's, runs no hooks.
        self._pools: dict[int, SessionPool] = {}
        self._closed = False
        #: Each use of a connection is within this.
        self.using: Callable[[Connection], AbstractContextManager[None]] | None = None
        self._open: Callable[[float], Connection] = partial(_opened, self._parts or {})

    @property
    def schema(self) -> str:
        return self._executor.schema

    def named(
        self, application_name: str, prepare: Callable[[Connection], object], needs: str
    ) -> "Connections":
        """Others of the same database: a pool of its own, whose sessions have this name, and of
        which each new one is prepared, which needs the rights of such a role."""

        def opened(within: float) -> Connection:
            connection = self.open_session(within, application_name=application_name)
            with ExitStack() as closing:
                closing.callback(connection.close)
                try:
                    prepare(connection)
                except psycopg.errors.InsufficientPrivilege as error:
                    raise missing_right(self._executor, connection, error, needs) from None
                closing.pop_all()
            return connection

        others = copy.copy(self)
        others._given, others._pools, others._open = None, {}, opened
        return others

    def rows(
        self,
        connection: CallersConnection | None,
        name: str,
        needs: str = "operator",
        /,
        *,
        within: float | None = None,
        **values: Any,
    ) -> list[Row]:
        return self.use(
            connection, lambda c, _: self._executor.rows(c, name, **values), needs, within
        )

    def row(
        self,
        connection: CallersConnection | None,
        name: str,
        needs: str = "operator",
        /,
        **values: Any,
    ) -> Row:
        [row] = self.rows(connection, name, needs, **values)
        return row

    def row_once(self, connection: CallersConnection | None, name: str, /, **values: Any) -> Row:
        """The row of a function that takes the number of its call, and whether that is repeated:
        what its first try has done, it does not do again."""
        call = _call(connection)
        row = self.use(
            connection,
            lambda c, again: self._executor.row(c, name, **values, call=call, again=again),
        )
        assert row is not None, f"{name} returns exactly one row"
        return row

    def records(
        self,
        kind: type[T],
        connection: CallersConnection | None,
        name: str,
        needs: str = "operator",
        /,
        **values: Any,
    ) -> list[T]:
        return [filled(kind, row) for row in self.rows(connection, name, needs, **values)]

    def change(
        self,
        connection: CallersConnection | None,
        name: str,
        participle: str,
        refusals: Mapping[str, str],
        needs: str = "operator",
        /,
        **values: Any,
    ) -> None:
        """Calls a function that returns where it found the command; `refusals` says why one that
        is there stays as it is."""
        found = self.call(connection, name, needs, **values)
        domain, command_id = values["domain"], values["command_id"]
        if found is None:
            raise CommandNotFoundError(domain, command_id)
        if why := refusals.get(found):
            raise InvalidOperationError(
                f"command {command_id} of domain {domain!r} cannot be {participle}: {why}"
            )

    def call(
        self,
        connection: CallersConnection | None,
        name: str,
        needs: str = "operator",
        /,
        **values: Any,
    ) -> Any:
        """The result of a function that takes the number of its call."""
        values["call"] = _call(connection)
        return self.use(connection, lambda c, _: self._executor.value(c, name, **values), needs)

    def use(
        self,
        connection: CallersConnection | None,
        work: Callable[[Connection, bool], T],
        needs: str = "operator",
        within: float | None = None,
    ) -> T:
        """`work(connection, again)` in the caller's transaction; without one on a connection of
        its own, and once more on a fresh one if that dies: then the first try may have been
        carried out, or still run, and with `again` the work must be harmless. `within`: seconds to
        wait for a connection; the pool's own timeout if that is less.
        """

        def attempt(connection: Connection, again: bool) -> T:
            try:
                if self.using is None:
                    return work(connection, again)
                with self.using(connection):
                    return work(connection, again)
            except psycopg.errors.InsufficientPrivilege as error:
                raise missing_right(self._executor, connection, error, needs) from None
            except (psycopg.errors.UntranslatableCharacter, UnicodeEncodeError) as error:
                raise not_encodable(error) from None

        if connection is not None:
            session = session_of(connection)
            try:
                return attempt(session, False)
            except NOT_INSTALLED as error:
                raise not_installed(self._executor.schema, session, error) from None
        pool = self._pool()
        try:
            return self._try(pool, lambda c: attempt(c, False), within)
        except _DiedError:
            # The others died with it; drained, they are not tried one by one.
            pool.drain()
        try:
            return self._try(pool, lambda c: attempt(c, True), within)
        except _DiedError as died:
            raise died.error from None

    def open_session(self, within: float = WAIT_SECONDS, **named: str) -> Connection:
        """A session outside of the pool, in autocommit mode, with these keywords of libpq; the
        caller closes it."""
        if self._given is not None:
            return opened_as_by(self._given, named)
        assert self._parts is not None
        return _opened({**self._parts, **named}, within)

    def close(self) -> None:
        self._closed = True
        pool = self._pools.get(os.getpid())
        if pool is not None:
            pool.close()

    def _try(
        self, pool: Pool | SessionPool, work: Callable[[Connection], T], within: float | None
    ) -> T:
        seconds = pool.timeout if within is None else min(within, pool.timeout)
        try:
            with pool.connection(seconds) as connection:
                return _discard_dead(connection, work)
        except PoolTimeout as error:
            raise DatabaseUnavailableError(self._why_not(error, seconds)) from None
        except PoolClosed:
            if self._closed:
                raise psycopg.OperationalError(f"this {self.owner} is closed") from None
            raise
        except NOT_INSTALLED:
            with pool.connection() as connection:
                try:
                    schemas.check(connection, self._executor.schema)
                except SchemaError as error:
                    raise error from None  # It says what the driver's error, its context, means.
            raise

    def _pool(self) -> Pool | SessionPool:
        pid = os.getpid()
        if self._given is not None:
            if pid != self._pid:
                raise InvalidOperationError(
                    f"this {self.owner} and its pool were made in process {self._pid}, and this is "
                    f"process {pid}: two processes cannot share connections, so make both after "
                    f"the fork, or give it a DSN instead of a pool"
                )
            pool: Pool | SessionPool = self._given
        else:
            # Threads that come together agree on one: setdefault is atomic.
            pool = self._pools.get(pid) or self._pools.setdefault(pid, self._made())
        if self._closed:
            self.close()
            raise psycopg.OperationalError(f"this {self.owner} is closed")
        return pool

    def _made(self) -> SessionPool:
        return SessionPool(
            self._open,
            max_size=MAX_CONNECTIONS,
            timeout=self._timeout,
            max_idle=_IDLE_SECONDS,
            # A standby that is being promoted lets writes in within seconds.
            passes=lambda error: is_read_only(str(error)),
        )

    def _why_not(self, error: PoolTimeout, seconds: float) -> str:
        if self._given is not None:
            return f"the pool had no connection to give for {seconds:.3g} s"
        if error.__cause__ is not None:
            return str(error.__cause__)
        busy = f"all {MAX_CONNECTIONS} connections of this {self.owner} were busy"
        return f"{busy} for {seconds:.3g} s"


def _call(connection: CallersConnection | None) -> int | None:
    """None in the caller's transaction: there a call is not repeated, and would hold a lock for
    each command."""
    return new_call() if connection is None else None


class _DiedError(Exception):
    def __init__(self, error: psycopg.Error) -> None:
        self.error = error


def _discard_dead(connection: Connection, work: Callable[[Connection], T]) -> T:
    """A _DiedError if the connection is of no more use, whatever its pool."""
    try:
        done = work(connection)
        if not connection.autocommit:
            connection.commit()  # Else its pool does it, and its death would not be noticed here.
        return done
    except psycopg.errors.ReadOnlySqlTransaction as error:
        # The server has become a standby; another one is the primary now.
        connection.close()
        raise _DiedError(error) from None
    except psycopg.OperationalError as error:
        # Nor can anything be sent to a session whose answer is half read.
        if connection.closed or connection.info.transaction_status is _ACTIVE:
            connection.close()
            raise _DiedError(error) from None
        raise


def opened_as_by(pool: Any, named: Mapping[str, str]) -> Connection:
    """As a pool of the caller's opens its own, but for these keywords and autocommit."""
    conninfo = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
    keywords = (pool.kwargs() if callable(pool.kwargs) else pool.kwargs) or {}
    try:
        connection: Connection = pool.connection_class.connect(
            conninfo, **{**keywords, **named, "autocommit": True}
        )
    except psycopg.OperationalError as error:
        reason = joined(str(error)) or type(error).__name__
        raise DatabaseUnavailableError(f"cannot connect as the pool does: {reason}") from None
    return connection


def _opened(parts: dsns.Parts, within: float) -> Connection:
    """Prepares nothing behind a pooler, which may give each transaction to another session, with
    other prepared statements. It is recognised by the pid that it invents for its clients."""
    connection = dsns.connect(parts, within)
    if Executor("cmdbus").value(connection, "read_pid") != connection.info.backend_pid:
        connection.prepare_threshold = None
    return connection
