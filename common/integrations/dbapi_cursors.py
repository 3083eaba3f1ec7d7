"""Cursors as their driver makes them, whatever an application sets for its own."""

import sys
from types import ModuleType
from typing import Any

#: psycopg2's readers of the types that the bus reads.
_OF_PSYCOPG2 = ("BOOLEAN", "INTEGER", "LONGINTEGER", "FLOAT", "UNICODE", "UNICODEARRAY")
_TIMES_OF_PSYCOPG2 = ("PYDATETIMETZ", "PYINTERVAL")
#: The numbers of the types uuid and uuid[].
_UUIDS = (2950, 2951)


def plain_cursor(driver: Any) -> Any:
    """Its rows are tuples of the values that the driver makes by itself."""
    for kind in driver.__class__.__mro__:
        if kind.__module__ == "psycopg2.extensions":
            return _of_psycopg2(driver, sys.modules[kind.__module__])
    return driver.cursor()


def _of_psycopg2(driver: Any, extensions: ModuleType) -> Any:
    """An application may have registered others, for the connection or for all."""
    if driver.async_:
        raise ValueError(
            "the connection is one of psycopg2's asynchronous ones (async_), which return before "
            "their statements end: pass one that waits"
        )
    style = driver.info.parameter_status("DateStyle")
    if not style.startswith("ISO"):
        raise ValueError(
            f"the connection's DateStyle is {style}, of which psycopg2 reads no times: execute "
            f"SET datestyle = 'ISO'"
        )
    cursor = driver.cursor(cursor_factory=extensions.cursor)
    for name in (*_OF_PSYCOPG2, *_TIMES_OF_PSYCOPG2):
        extensions.register_type(getattr(extensions, name), cursor)
    extensions.register_type(extensions.new_type(_UUIDS, "text", _as_text), cursor)
    return cursor


def _as_text(value: str | None, _: object) -> str | None:
    return value
