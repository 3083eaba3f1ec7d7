"""PGMQ in a database, by the SQL of its extension, which the package `pgmq` of the Python registry
ships: the server need not have the extension."""

from functools import cache
from importlib import metadata
from pathlib import Path

import psycopg

from cmdbus.errors import CmdbusError

_PRESENT = "SELECT to_regclass('pgmq.meta') IS NOT NULL"


def install_pgmq(connection: psycopg.Connection) -> None:
    """Makes the schema `pgmq`, whole or not at all; leaves one that is there."""
    row = connection.execute(_PRESENT).fetchone()
    if row is not None and not row[0]:
        connection.execute(_sql())  # without parameters, so the server takes it as one transaction


@cache
def _sql() -> bytes:
    """Without an import of the package, which brings libraries with it."""
    try:
        package = metadata.distribution("pgmq")
    except metadata.PackageNotFoundError:
        raise CmdbusError("this needs the SQL of PGMQ: pip install pgmq") from None
    return Path(str(package.locate_file("pgmq/sql/pgmq.sql"))).read_bytes()
