"""What callers pass as `connection=`, and the session that the bus executes its statements on."""

import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeVar, cast

import psycopg

from cmdbus.database.pool import Connection
from cmdbus.integrations.dbapi import DbapiConnection

T = TypeVar("T")

#: The modules that know the objects of a library, by its package. Each has `connection_of`, which
#: returns the driver's connection, or a DbapiConnection, or None for an object that has none.
_LIBRARIES = {
    "sqlalchemy": "cmdbus.integrations.sqlalchemy_connection",
    "django": "cmdbus.integrations.django_connection",
}
#: DB-API drivers of other databases.
_OTHER_DATABASES = frozenset({"sqlite3", "MySQLdb", "pymysql", "mysql", "oracledb", "cx_Oracle"})
ACCEPTED = (
    "connection must be a psycopg.Connection (psycopg 3), an SQLAlchemy Session, scoped_session or "
    "Connection, one of Django's connections, or a DB-API connection to PostgreSQL, such as "
    "psycopg2's"
)


class CallersConnection(Protocol):
    """A transaction of the caller's: of psycopg, of SQLAlchemy, or of a DB-API driver. Those of
    asyncio, whose methods are awaited, are for AsyncCommandBus."""

    def commit(self) -> object: ...

    def rollback(self) -> object: ...


def session_of(given: CallersConnection) -> Connection:
    """What the bus executes its statements on. With SQL_ASCII a driver returns bytes, and nothing
    that is read means anything."""
    session = given if isinstance(given, psycopg.Connection) else _recognised(given)
    if session.info.encoding == "ascii":
        raise ValueError(
            "the connection's client_encoding is SQL_ASCII: make it with client_encoding=UTF8"
        )
    return session


def _recognised(given: object) -> Connection:
    found = given
    for library in _packages(given) & _LIBRARIES.keys():
        find: Callable[[object], object] = import_module(_LIBRARIES[library]).connection_of
        found = find(given) or found
    if isinstance(found, psycopg.Connection):
        return found
    session = found if isinstance(found, DbapiConnection) else _dbapi_connection(found)
    if session is None:
        kind = found.__class__
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        hint = ": AsyncCommandBus takes it" if is_asynchronous(given) else ""
        raise ValueError(f"{ACCEPTED}, not {module}{kind.__qualname__}{hint}")
    # It has those methods of psycopg's connection that the bus calls.
    return cast(Connection, session)


def run_sync_of(given: object) -> Callable[[Callable[[Any], T]], Awaitable[T]] | None:
    """What runs a function with the session or connection that a library's asynchronous one wraps;
    None if `given` is none."""
    # Without greenlet, which SQLAlchemy needs for asyncio alone, that part cannot be imported.
    modules = (kind.__module__ for kind in given.__class__.__mro__)
    if not any(module.startswith("sqlalchemy.ext.asyncio.") for module in modules):
        return None
    from cmdbus.integrations import sqlalchemy_asyncio

    return sqlalchemy_asyncio.run_sync_of(given)


def _packages(given: object) -> set[str]:
    return {kind.__module__.split(".")[0] for kind in given.__class__.__mro__}


def is_asynchronous(given: object) -> bool:
    return isinstance(given, psycopg.AsyncConnection) or run_sync_of(given) is not None


def _dbapi_connection(given: object) -> DbapiConnection | None:
    methods = [getattr(given, name, None) for name in ("cursor", "commit", "rollback")]
    if not all(map(callable, methods)) or any(map(iscoroutinefunction, methods)):
        return None
    if _packages(given) & _OTHER_DATABASES:
        return None
    for module in map(sys.modules.get, _modules(given)):
        if style := getattr(module, "paramstyle", None):
            return DbapiConnection(given, style)
    return None


def _modules(given: object) -> Iterator[str]:
    """Those of a driver's class, and the packages around them. One of these says how the driver
    takes parameters."""
    for kind in given.__class__.__mro__:
        module = kind.__module__
        while module:
            yield module
            module, _, _ = module.rpartition(".")
