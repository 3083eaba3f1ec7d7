"""What opens, limits and ends the transaction of a handler, on its thread's session."""

from collections.abc import Sequence

from cmdbus.database.executor import Executor
from cmdbus.database.statements import render, statement
from cmdbus.worker.claims.claim import Connection

#: What a timeout of PostgreSQL can hold.
_MAX_MS = 2**31 - 1


def begin(
    executor: Executor, connection: Connection, *, statement: float, idle: float, marker: str
) -> None:
    """With limits in seconds, and a marker by which its settlement knows it again."""
    connection.execute(_script(executor, "open_transaction", statement, idle, marker))


def limits(executor: Executor, *, statement: float, idle: float) -> bytes:
    """The statement that gives an open transaction new limits, in seconds."""
    return _script(executor, "limit_transaction", statement, idle)


def commit(executor: Executor, connection: Connection, prepared: Sequence[str]) -> None:
    """And deallocates these statements, in the same round trip."""
    script = statement("commit_transaction", executor.schema)
    connection.execute(script + _deallocate(executor, prepared))


def roll_back(executor: Executor, connection: Connection) -> None:
    """And deallocates what SQL has prepared, in a round trip of its own if there is any."""
    cursor = executor.execute(connection, "rollback_transaction")
    while cursor.nextset():
        pass
    (prepared,) = cursor.fetchall()[0]
    if prepared:
        connection.execute(_deallocate(executor, prepared))


def _script(executor: Executor, name: str, seconds: float, idle: float, marker: str = "") -> bytes:
    text = statement(name, executor.schema).decode()
    statement_ms, idle_ms = (min(int(s * 1000), _MAX_MS) for s in (seconds, idle))
    return text.format(statement_ms=statement_ms, idle_ms=idle_ms, marker=marker).encode()


def _deallocate(executor: Executor, names: Sequence[str]) -> bytes:
    return "".join(
        render("deallocate", executor.schema, identifier=name) for name in names
    ).encode()
