"""The statements that open, limit and end the transaction of a handler, and its session without
one."""

from collections.abc import Sequence

import psycopg

from cmdbus.database.executor import Executor
from cmdbus.database.statements import render, statement
from cmdbus.worker.claims.claim import Connection

#: The maximum of PostgreSQL's timeouts.
_MAX_MS = 2**31 - 1
_IDLE = psycopg.pq.TransactionStatus.IDLE


def begin(
    executor: Executor, connection: Connection, *, statement: float, idle: float, marker: str
) -> None:
    """Limits are in seconds; the settlement recognizes the transaction by its marker."""
    connection.execute(_script(executor, "open_transaction", statement, idle, marker))


def limits(executor: Executor, *, statement: float, idle: float) -> bytes:
    """The statement that gives an open transaction new limits, in seconds."""
    return _script(executor, "limit_transaction", statement, idle)


def session_limits(executor: Executor, *, statement: float, idle: float) -> bytes:
    """The statement that gives a session limits, in seconds, until it is reset."""
    return _script(executor, "limit_session", statement, idle)


def commit(executor: Executor, connection: Connection, prepared: Sequence[str]) -> None:
    """Also deallocates these statements, in the same round trip."""
    script = statement("commit_transaction", executor.schema)
    connection.execute(script + _deallocate(executor, prepared))


def roll_back(executor: Executor, connection: Connection) -> None:
    """Also deallocates statements that SQL has prepared, in a second round trip."""
    cursor = executor.execute(connection, "rollback_transaction")
    while cursor.nextset():
        pass
    (prepared,) = cursor.fetchall()[0]
    if prepared:
        connection.execute(_deallocate(executor, prepared))


def reset(executor: Executor, connection: Connection) -> None:
    """Rolls back a transaction that may be open, and leaves nothing of the session."""
    if connection.info.transaction_status is _IDLE:
        executor.execute(connection, "begin")  # Else the server's log gets a warning.
    roll_back(executor, connection)


def _script(executor: Executor, name: str, seconds: float, idle: float, marker: str = "") -> bytes:
    text = statement(name, executor.schema).decode()
    statement_ms, idle_ms = (min(int(s * 1000), _MAX_MS) for s in (seconds, idle))
    return text.format(statement_ms=statement_ms, idle_ms=idle_ms, marker=marker).encode()


def _deallocate(executor: Executor, names: Sequence[str]) -> bytes:
    return "".join(
        render("deallocate", executor.schema, identifier=name) for name in names
    ).encode()
