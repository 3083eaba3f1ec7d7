"""How values are sent and read: as psycopg does it by default, whatever loaders and dumpers an
application registers for all connections (UUIDs as text, say)."""

from typing import Any

import psycopg
from psycopg import postgres
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg.types import TypesRegistry
from psycopg.types.array import register_all_arrays

from cmdbus.arrays import PackedArray

Row = tuple[Any, ...]


class _PackedArrayDumper(Dumper):
    """The statement names the type, as it does for arrays that are sent as text."""

    format = Format.BINARY

    def dump(self, obj: PackedArray) -> PackedArray:
        return obj


ADAPTERS = AdaptersMap(types=TypesRegistry(postgres.types))
postgres.register_default_adapters(ADAPTERS)
register_all_arrays(ADAPTERS)
ADAPTERS.register_dumper(PackedArray, _PackedArrayDumper)


def own_cursor(connection: psycopg.Connection[Any]) -> psycopg.Cursor[Row]:
    """A cursor with tuples as rows, also on a connection of the application's. One of another
    driver brings its own."""
    if getattr(connection, "has_default_adapters", False):
        return psycopg.Cursor(connection, row_factory=tuple_row)
    if not isinstance(connection, psycopg.Connection):
        return connection.own_cursor()
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    cursor._adapters = AdaptersMap(ADAPTERS)
    return cursor
