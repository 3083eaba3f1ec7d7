"""PGMQ in a database, by the SQL of its extension, which the package `pgmq` of the Python registry
ships: the server need not have the extension."""

from functools import cache
from importlib import metadata
from pathlib import Path

import psycopg

from cmdbus.errors import CmdbusError

#: What to say where the package is not installed.
MISSING = "this needs the SQL of PGMQ: pip install pgmq"
_PRESENT = "SELECT to_regclass('pgmq.meta') IS NOT NULL"


def install_pgmq(connection: psycopg.Connection) -> None:
    """Makes the schema `pgmq`, whole or not at all; leaves one that is there."""
    row = connection.execute(_PRESENT).fetchone()
    if row is not None and not row[0]:
        connection.execute(_sql())  # without parameters, so the server takes it as one transaction


def has_pgmq() -> bool:
    """Whether its SQL is on this machine."""
    return _package() is not None


@cache
def _sql() -> bytes:
    if (package := _package()) is None:
        raise CmdbusError(MISSING)
    return Path(str(package.locate_file("pgmq/sql/pgmq.sql"))).read_bytes()


def _package() -> metadata.Distribution | None:
    """Without an import of it, which brings libraries with it."""
    try:
        return metadata.distribution("pgmq")
    except metadata.PackageNotFoundError:
        return None
