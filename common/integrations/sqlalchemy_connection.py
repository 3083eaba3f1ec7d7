"""Sessions and connections of SQLAlchemy 2, and of what derives from these, as Flask-SQLAlchemy's.

With psycopg 3 the driver's connection is used itself, and any other as a DB-API connection: also
what SQLAlchemy shows of an asynchronous driver inside of `run_sync`.
"""

import psycopg
from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import PoolProxiedConnection

from cmdbus.integrations.dbapi import DbapiConnection


def connection_of(given: object) -> object:
    """Within SQLAlchemy's transaction, which begins if it has not, so that its `commit` commits."""
    if isinstance(given, Session | scoped_session):
        given = given.connection()
    if isinstance(given, Connection):
        return _of_connection(given)
    if isinstance(given, PoolProxiedConnection):
        return given.driver_connection
    return None


def _of_connection(given: Connection) -> psycopg.Connection | DbapiConnection:
    dialect = given.dialect
    if dialect.name != "postgresql":
        raise ValueError(
            f"connection is SQLAlchemy's for {dialect.name}: commands are sent in a transaction of "
            f"the PostgreSQL database that has the schema"
        )
    if not given.in_transaction():
        given.begin()
    pooled = given.connection
    if isinstance(pooled.driver_connection, psycopg.Connection):
        return pooled.driver_connection
    assert dialect.dbapi is not None, "a connected dialect has its driver"
    return DbapiConnection(pooled.dbapi_connection, dialect.dbapi.paramstyle)
