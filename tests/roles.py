"""Database roles with the rights of one kind of user."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from psycopg import sql

from cmdbus.database.schema import install


@contextmanager
def role(dsn: str, kind: str) -> Iterator[psycopg.Connection]:
    """A session with just the rights of a kind of role."""
    name = f"cmdbus_test_{kind}_{uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        try:
            install(dsn, grants={kind: [name]})
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(name)))
                yield connection
        finally:
            drop = "DROP OWNED BY {0}; DROP ROLE {0}"
            admin.execute(sql.SQL(drop).format(sql.Identifier(name)))


def refused(connection: psycopg.Connection, query: str) -> bool:
    try:
        connection.execute(query.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False
