"""A connection of any DB-API driver for PostgreSQL, in place of psycopg's."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import psycopg

from cmdbus.database.adapters import Row
from cmdbus.database.statements import statement
from cmdbus.integrations.dbapi_cursors import plain_cursor
from cmdbus.integrations.dbapi_statements import Reader, as_text, reader_of, rendered

#: The errors that the bus explains. All others are raised as the driver raises them.
_EXPLAINED = {
    error.sqlstate: error
    for error in (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedFunction,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.UntranslatableCharacter,
    )
}
_OUTSIDE = psycopg.errors.NoActiveSqlTransaction.sqlstate
_INTRANS = psycopg.pq.TransactionStatus.INTRANS


class DbapiConnection:
    """Has those methods of psycopg's connection that sends and reads call."""

    def __init__(self, driver: Any, paramstyle: str) -> None:
        self._driver, self._paramstyle = driver, paramstyle

    @property
    def autocommit(self) -> bool:
        return bool(getattr(self._driver, "autocommit", False))

    @property
    def info(self) -> SimpleNamespace:
        """As that of psycopg, as far as the driver shows it. DB-API drivers begin a transaction by
        themselves."""
        info, encoding = getattr(self._driver, "info", None), getattr(self._driver, "encoding", "")
        return SimpleNamespace(
            transaction_status=_INTRANS,
            encoding="ascii" if encoding in ("SQLASCII", "SQL_ASCII") else encoding,
            user=getattr(info, "user", "of this connection"),
            dbname=getattr(info, "dbname", "of this connection"),
        )

    def own_cursor(self) -> "DbapiCursor":
        return DbapiCursor(self._driver, self._paramstyle)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A savepoint; in autocommit mode, unless the caller has begun a transaction by SQL, a
        transaction."""
        done, undone = ["release_savepoint"], ["undo_savepoint", "release_savepoint"]
        try:
            self._run("savepoint")
        except Exception as error:
            if not self.autocommit or sqlstate(error) != _OUTSIDE:
                raise
            self._run("begin")
            done, undone = ["commit"], ["rollback"]
        try:
            yield
        except BaseException:
            with suppress(Exception):  # The connection may be dead.
                self._run(*undone)
            raise
        self._run(*done)

    def _run(self, *names: str) -> None:
        for name in names:
            self.own_cursor().execute(statement(name, "cmdbus"), None)


class DbapiCursor:
    def __init__(self, driver: Any, paramstyle: str) -> None:
        self._driver, self._paramstyle = driver, paramstyle
        self._rows: list[Row] = []

    def execute(self, text: bytes, values: Mapping[str, Any] | None, **_: object) -> "DbapiCursor":
        """Ignores the options of psycopg, such as prepare and binary."""
        written, names = rendered(text, self._paramstyle)
        texts = [as_text((values or {})[name]) for name in names]
        by_name = self._paramstyle in ("pyformat", "named")
        given = dict(zip(names, texts, strict=True)) if by_name else texts
        with closing(plain_cursor(self._driver)) as cursor, _explained():
            # Without parameters a driver leaves percent signs as they are.
            cursor.execute(written, *([given] if given else []))
            self._rows = _read(cursor)
        return self

    def fetchall(self) -> list[Row]:
        return self._rows

    def fetchone(self) -> Row | None:
        return self._rows[0] if self._rows else None


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        kind = _EXPLAINED.get(sqlstate(error))
        if kind is None or isinstance(error, psycopg.Error):
            raise
        raise kind(_message(error)) from error


def _read(cursor: Any) -> list[Row]:
    if cursor.description is None:
        return []
    readers: list[Reader] = [reader_of(column[1]) for column in cursor.description]
    return [
        tuple([read(value) for read, value in zip(readers, row, strict=True)])
        for row in cursor.fetchall()
    ]


def sqlstate(error: Exception) -> str | None:
    """pg8000 gives the fields of the server's message, by their letters."""
    first = error.args[0] if error.args else None
    if isinstance(first, dict):
        return first.get("C")
    return getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)


def _message(error: Exception) -> str:
    first = error.args[0] if error.args else ""
    return str(first["M"] if isinstance(first, dict) else first).partition("\n")[0]
