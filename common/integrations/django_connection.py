"""Connections of Django, from `django.db`. The driver's own is used: psycopg's itself, and that of
psycopg2 as a DB-API connection."""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy


def connection_of(given: object) -> object:
    """Within Django's transaction, if one is open, else in autocommit mode. Raises what Django says
    about a transaction that must be rolled back, about another thread, or about its settings."""
    if isinstance(given, ConnectionProxy):
        given = given._connections[given._alias]
    if not isinstance(given, BaseDatabaseWrapper):
        return None
    if given.vendor != "postgresql":
        raise ValueError(
            f"connection is Django's for {given.display_name} (DATABASES[{given.alias!r}]): "
            f"commands are sent in a transaction of the PostgreSQL database that has the schema"
        )
    given.validate_no_broken_transaction()
    given.cursor().close()  # As for a statement of Django's own: it may connect.
    return given.connection
