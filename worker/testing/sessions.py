"""The database session that a test's runner works on: one of its own, on which each command commits
as in a worker, or another object for that of the test's open transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from cmdbus.database import dsn as dsns
from cmdbus.database.executor import Executor
from cmdbus.database.shared_session import shared_session
from cmdbus.integrations.callers_connection import CallersConnection, session_of
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.pools import complete

_IDLE = psycopg.pq.TransactionStatus.IDLE
_INERROR = psycopg.pq.TransactionStatus.INERROR


@contextmanager
def own_session(dsn: str, name: str) -> Iterator[Connection]:
    with dsns.connect(complete(dsns.parse(dsn), name, Timeouts())) as session:
        yield session


@contextmanager
def session_inside(given: CallersConnection) -> Iterator[Connection]:
    """Within the transaction of `given`. What an ORM's session has not written yet is written
    before, and what it has read is read again: see `expire`."""
    _call(given, "flush")
    expire(given)
    connection = session_of(given)
    if not isinstance(connection, psycopg.Connection):
        raise ValueError(
            "connection must be psycopg 3's, or an SQLAlchemy one that uses it "
            "(postgresql+psycopg://): handlers get psycopg 3 in context.connection"
        )
    _check_transaction(connection)
    with shared_session(connection) as session:
        session.row_factory = tuple_row
        if connection.cursor_factory.__module__.startswith("django."):  # so are the adapters
            session._adapters = AdaptersMap(psycopg.adapters)
        session.cursor_factory, session.server_cursor_factory = psycopg.Cursor, psycopg.ServerCursor
        level = Executor("cmdbus").value(session, "read_isolation")
        if level != "read committed":
            raise ValueError(
                f"the transaction of connection is {level}: handlers run in READ COMMITTED, so "
                f"begin it with that level"
            )
        yield session


def expire(given: CallersConnection | None) -> None:
    """Lets an ORM's session read again what it has read, because commands have changed the rows
    behind its back, and a handler may use it as in a transaction of its own."""
    _call(given, "expire_all")


def _check_transaction(connection: psycopg.Connection[Any]) -> None:
    status = connection.info.transaction_status
    if status is _INERROR:
        raise ValueError(
            "the transaction of connection was aborted by an error: roll it back, or to a savepoint"
        )
    if status is _IDLE and connection.autocommit:
        raise ValueError(
            "connection is in autocommit mode and has no open transaction: begin one (with "
            "connection.transaction()), or leave connection out, and each command commits"
        )


def _call(given: CallersConnection | None, method: str) -> None:
    if callable(found := getattr(given, method, None)):
        found()
