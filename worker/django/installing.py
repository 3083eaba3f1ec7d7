"""What `manage.py migrate`, and so the test runner, does for cmdbus: the schemas of a database are
installed or upgraded before its migrations. In tests, `flush` deletes the commands, too."""

import sys
from contextlib import closing, suppress
from typing import Any

import psycopg
from django.core import mail
from django.core.management.base import CommandError, OutputWrapper
from django.db import connections

from cmdbus.database import dsn as dsns
from cmdbus.database.executor import Executor
from cmdbus.database.schema import Installed, check, install
from cmdbus.database.sentences import in_one_sentence
from cmdbus.database.statements import versions
from cmdbus.django.buses import VENDOR, buses
from cmdbus.django.dsn import dsn_of
from cmdbus.errors import CmdbusError, MissingRightError, SchemaError


def install_schemas(using: str, verbosity: int, stdout: Any = None, **_: Any) -> None:
    """A receiver of `pre_migrate`: migrations of data may send commands, and where a schema cannot
    be made, nothing else is."""
    output = stdout or OutputWrapper(sys.stdout)
    for schema in _schemas(using):
        done = _installed(using, schema)
        if verbosity > (done.before == done.after):
            output.write(_sentence(schema, done))


def clear_schemas(using: str, **about: Any) -> None:
    """A receiver of `post_migrate`, which `flush` sends without a plan, and so do others: only in
    tests may that delete anything."""
    if "plan" in about or not hasattr(mail, "outbox"):
        return
    wrapper = connections[using]
    for executor in map(Executor, _schemas(using)):
        wrapper.ensure_connection()
        if executor.value(wrapper.connection, "find_migrations") is not None:
            executor.execute(wrapper.connection, "clear_tables")


def _schemas(using: str) -> list[str]:
    """Empty if the database is no PostgreSQL, which the system checks report."""
    is_postgresql = connections[using].vendor == VENDOR
    return [bus.schema for bus in buses() if bus.using == using and is_postgresql]


def _installed(using: str, schema: str) -> Installed:
    dsn = dsn_of(using)
    try:
        with in_one_sentence():
            return install(dsn, schema)
    except MissingRightError as error:
        if current := _found(dsn, schema):  # which its owner has installed
            return current
        raise CommandError(str(error)) from error
    except CmdbusError as error:
        raise CommandError(str(error)) from error


def _found(dsn: str, schema: str) -> Installed | None:
    """What is there, if it is this code's."""
    parts = dsns.parse(dsn)
    with suppress(SchemaError, psycopg.Error), closing(dsns.connect(parts)) as session:
        check(session, schema)
        return Installed(len(versions()), len(versions()), dsns.describe(parts))
    return None


def _sentence(schema: str, done: Installed) -> str:
    change = {0: "installed", done.after: "up to date"}.get(done.before, "upgraded")
    return f"cmdbus: schema {schema} {change}, version {done.after}, in {done.database}"
