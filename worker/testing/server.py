"""The database of a project's tests: on an embedded server of the project's own, which all of its
test processes share, and in a database of its own for each run and worker of pytest-xdist."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cmdbus.database.executor import Executor
from cmdbus.database.schema import install
from cmdbus.database.statements import render
from cmdbus.embedded import EmbeddedPostgres, state_directory
from cmdbus.errors import SchemaError
from cmdbus.testing.own_database import clear_database
from cmdbus.testing.sessions import own_session

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]")


def project_server(root: Path) -> EmbeddedPostgres:
    """Without durability, which makes it fast. Its directory is named after the project's."""
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:8]
    return EmbeddedPostgres(state_directory() / f"testing-{digest}", durable=False)


@contextmanager
def prepared_database(dsn: str, worker: str | None) -> Iterator[str]:
    """The DSN of a database of this worker's on the server of `dsn`, with the schema, and without
    commands that an earlier run has left. Another run at the same time gets another one."""
    executor = Executor("cmdbus")
    first = conninfo_to_dict(dsn)["dbname"] if worker is None else f"cmdbus_{_in_names(worker)}"
    for number in count(1):
        own = _existing(executor, dsn, str(first) if number == 1 else f"{first}_{number}")
        with psycopg.connect(own, autocommit=True) as holder:
            if executor.value(holder, "hold_database"):
                prepare(own)
                yield own
                return


def _in_names(worker: str) -> str:
    return _NOT_IN_NAMES.sub("_", worker.lower())


def _existing(executor: Executor, dsn: str, name: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        if executor.row(connection, "find_database", name=name) is None:
            create = render("create_named_database", executor.schema, identifier=name)
            with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                connection.execute(create.encode())  # else another run has just made it
    return make_conninfo(dsn, dbname=name)


def prepare(dsn: str) -> None:
    """Also instead of the schema of another build of cmdbus, as commands of tests are not kept."""
    executor = Executor("cmdbus")
    try:
        install(dsn)
    except SchemaError:
        with psycopg.connect(dsn) as connection:
            executor.execute(connection, "drop_schema")
        install(dsn)
    with own_session(dsn, "cmdbus-testing") as session:
        clear_database(executor, session)
