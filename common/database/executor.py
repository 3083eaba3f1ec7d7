"""Executes the statements of one schema, and calls its functions, by their names."""

from collections.abc import Mapping
from typing import Any

import psycopg

from cmdbus.database.adapters import Row, own_cursor
from cmdbus.database.statements import statement


class Executor:
    def __init__(self, schema: str, *, prepare: bool | None = None, binary: bool = False) -> None:
        self.schema = schema
        self._prepare, self._binary = prepare, binary

    def execute(
        self,
        connection: psycopg.Connection[Any],
        name: str,
        values: Mapping[str, Any] | None = None,
        *,
        prepare: bool | None = None,
        binary: bool = False,
    ) -> psycopg.Cursor[Row]:
        cursor = own_cursor(connection)
        prepare = self._prepare if prepare is None else prepare
        text = statement(name, self.schema, tuple(values or ()))
        return cursor.execute(text, values, prepare=prepare, binary=binary or self._binary)

    def rows(self, connection: psycopg.Connection[Any], name: str, /, **values: Any) -> list[Row]:
        return self.execute(connection, name, values).fetchall()

    def row(self, connection: psycopg.Connection[Any], name: str, /, **values: Any) -> Row | None:
        return self.execute(connection, name, values).fetchone()

    def value(self, connection: psycopg.Connection[Any], name: str, /, **values: Any) -> Any:
        """The first column of the only row."""
        row = self.row(connection, name, **values)
        assert row is not None, f"{name} returns exactly one row"
        return row[0]
