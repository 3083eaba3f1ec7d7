"""The database of a project's tests: on an embedded server of the project's own, which all of its
test processes share, and in a database of its own for each worker of pytest-xdist."""

import hashlib
import os
import re
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

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


def prepared_database(server: EmbeddedPostgres, worker: str | None) -> str:
    """The DSN of the database of this worker, with the schema, and without commands that an earlier
    run has left."""
    dsn = server.dsn
    if worker is not None:
        name = "cmdbus_" + _NOT_IN_NAMES.sub("_", worker.lower())
        executor = Executor("cmdbus")
        with psycopg.connect(dsn, autocommit=True) as connection:
            if executor.row(connection, "find_database", name=name) is None:
                create = render("create_named_database", executor.schema, identifier=name)
                connection.execute(create.encode())
        dsn = make_conninfo(dsn, dbname=name)
    prepare(dsn)
    return dsn


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
