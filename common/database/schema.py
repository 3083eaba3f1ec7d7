"""The schema in the database: installed, upgraded, compared with this code, granted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg

from cmdbus.checks import check_schema
from cmdbus.database import dsn as dsns
from cmdbus.database.executor import Executor
from cmdbus.database.sentences import primary_message
from cmdbus.database.statements import digest, render, versions
from cmdbus.errors import MissingRightError, SchemaError

DEFAULT = "cmdbus"
#: The kinds of roles that `install` grants rights to; see sql/queries/installing.sql.
ROLES = ("worker", "producer", "operator", "monitor")
#: Days for which partitions of history are made ahead, because nothing settles without one.
DAYS_AHEAD = 14
#: The encoding in which the server checks no text.
UNCHECKED = "SQL_ASCII"

_LOCK_WAIT_SECONDS = 60
_PARTITION_TRIES = 50


@dataclass(frozen=True, slots=True)
class Installed:
    """The versions of the schema before and after `install`; 0 is none."""

    before: int
    after: int
    database: str


def install(
    dsn: str, schema: str = DEFAULT, *, grants: Mapping[str, Iterable[str]] | None = None
) -> Installed:
    """Creates the schema or upgrades it, in one transaction; safe to run again, and by many at
    once. `grants` maps names of ROLES to database roles that get their rights."""
    check_schema(schema)
    parts = dsns.complete(
        dsns.parse(dsn),
        application_name="cmdbus:init",
        settings={"lock_timeout": f"{_LOCK_WAIT_SECONDS}s", "client_min_messages": "warning"},
    )
    with dsns.connect(parts) as connection:
        try:
            before = _install(connection, schema, grants or {})
        except psycopg.errors.InsufficientPrivilege as error:
            role = Executor(schema).value(connection, "read_role")
            raise MissingRightError(
                f"{primary_message(error)}: role {role!r} cannot install or "
                f"upgrade schema {schema!r}; run cmdbus init {_installer(connection, schema)}"
            ) from error
        return Installed(before, len(versions()), dsns.describe(parts))


def _install(
    connection: psycopg.Connection, schema: str, grants: Mapping[str, Iterable[str]]
) -> int:
    """Returns the version that it found."""
    if connection.info.parameter_status("server_encoding") == UNCHECKED:
        raise SchemaError(
            f"database {connection.info.dbname!r} has the encoding SQL_ASCII, which takes "
            f"bytes that are no text, so a worker could not read the data: create a "
            f"database with ENCODING 'UTF8' TEMPLATE template0"
        )
    with connection.transaction():
        Executor(schema).execute(connection, "narrow_search_path")
        before = _migrate(connection, schema)
        for kind, roles in grants.items():
            for role in roles:
                _grant(connection, schema, kind, role)
    make_partitions(connection, schema)
    return before


def _installer(connection: psycopg.Connection, schema: str) -> str:
    """As which role: only its owner can upgrade a schema that exists."""
    if found := Executor(schema).row(connection, "find_schema_owner", schema=schema):
        return f"as the schema's owner, role {found[0]!r}"
    database = connection.info.dbname
    return f"as a role that may create schemas (GRANT CREATE ON DATABASE {database})"


def check(connection: psycopg.Connection, schema: str) -> None:
    """A SchemaError if the schema is not this code's."""
    known = len(versions())
    version = _version(connection, schema)
    if version < known:
        found = f"has version {version}" if version else "is not installed"
        database = connection.info.dbname
        raise SchemaError(
            f"schema {schema!r} {found} in database {database!r}, and this code needs version "
            f"{known}: run cmdbus init for this database and schema (for the embedded server: "
            f"cmdbus init --embedded)"
        )


def make_partitions(connection: psycopg.Connection, schema: str) -> None:
    """Makes today's partition of history and those ahead; in autocommit mode. Tries again where a
    report has locked the table: settlements would wait behind a longer wait for the lock."""
    for left in reversed(range(_PARTITION_TRIES)):
        try:
            Executor(schema).row(connection, "make_partitions", days_ahead=DAYS_AHEAD)
            return
        except psycopg.errors.LockNotAvailable:
            if not left:
                raise SchemaError(
                    f"the partitions of {schema}.finished could not be made, because another "
                    f"session holds a lock on that table: end it and run cmdbus init again"
                ) from None


def _migrate(connection: psycopg.Connection, schema: str) -> int:
    executor = Executor(schema)
    try:
        executor.execute(connection, "lock_migrations", {"schema": schema})
    except psycopg.errors.LockNotAvailable:
        raise SchemaError(
            f"another cmdbus init has held the lock of schema {schema!r} for "
            f"{_LOCK_WAIT_SECONDS} s: look for its session and try again"
        ) from None
    version = _version(connection, schema)
    if version == 0:
        _refuse_foreign(connection, schema)
        connection.execute(render("create_schema", schema))
    for number, name in enumerate(versions()[version:], start=version + 1):
        connection.execute(render(name, schema))
        recorded = {"version": number, "name": name, "digest": digest(name)}
        executor.execute(connection, "insert_migration", recorded)
    connection.execute(render("function_settings", schema))
    return version


def _refuse_foreign(connection: psycopg.Connection, schema: str) -> None:
    """Functions of another origin would run with the owner's rights."""
    if row := Executor(schema).row(connection, "read_foreign_schema", schema=schema):
        raise SchemaError(
            f"schema {schema!r} exists already and {row[0]}: name another one (--schema), "
            f"or drop it if it is not needed"
        )


def _version(connection: psycopg.Connection, schema: str) -> int:
    """0 is none; a SchemaError if this code could not have made it so."""
    executor = Executor(schema)
    if executor.value(connection, "find_migrations") is None:
        return 0
    applied = executor.rows(connection, "read_migrations")
    version, names = max((row[0] for row in applied), default=0), versions()
    for number, name, recorded in applied:
        if number <= len(names) and recorded != digest(names[number - 1]):
            raise SchemaError(
                f"schema {schema!r} in database {connection.info.dbname!r} was made by another "
                f"build of cmdbus (its {name} is not this one's): use that build, or, "
                f'if its commands are not needed, run DROP SCHEMA "{schema}" CASCADE there and '
                f"cmdbus init"
            )
    if version > len(names):
        raise SchemaError(
            f"schema {schema!r} has version {version}, and this code knows versions up to "
            f"{len(names)}: the database was upgraded by a newer cmdbus; upgrade this one"
        )
    return version


def _grant(connection: psycopg.Connection, schema: str, kind: str, role: str) -> None:
    if kind not in ROLES:
        raise ValueError(f"there is no kind of role {kind!r}: use one of {', '.join(ROLES)}")
    quoted = psycopg.sql.Identifier(role).as_string(connection)
    try:
        for name in ("grant_any", f"grant_{kind}"):
            connection.execute(render(name, schema, role=quoted))
    except psycopg.errors.UndefinedObject:
        raise SchemaError(
            f"there is no role {role!r} in the database to grant the rights of a {kind} to: "
            f"create it first (CREATE ROLE {quoted} LOGIN)"
        ) from None
