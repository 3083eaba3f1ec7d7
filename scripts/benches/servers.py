"""Where the scenarios run: on the server of a DSN or on a durable one of the bench's own,
each run in a fresh database that is dropped afterwards, whatever ends the run."""

import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from uuid import uuid4

import psutil
import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from cmdbus import dsn as dsns
from cmdbus import schema
from cmdbus.binaries import find_programs
from cmdbus.embedded import EmbeddedPostgres, state_directory

_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")


@contextmanager
def server(dsn: str | None) -> Iterator[str]:
    """The DSN of a database from which others can be made."""
    if dsn is not None:
        yield dsn
        return
    # A cluster belongs to one major version; it is kept, because making it takes seconds.
    directory = state_directory() / f"bench-pg{find_programs().major}"
    with EmbeddedPostgres(directory, durable=True) as own:
        with _connect(own.dsn) as admin:
            _drop_those_of_killed_runs(admin)
        yield own.dsn


@contextmanager
def fresh_database(dsn: str) -> Iterator[str]:
    """The DSN of a new database with the schema."""
    name = f"cmdbus_bench_{os.getpid()}_{uuid4().hex[:12]}"
    try:
        with _connect(dsn) as admin:
            admin.execute(SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(name)))
        fresh = make_conninfo(dsn, dbname=name)
        schema.install(fresh)
        yield fresh
    finally:
        with _undisturbed(), _connect(dsn) as admin:
            drop = SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            admin.execute(drop.format(Identifier(name)))


def look(dsn: str) -> tuple[dict[str, object], dict[str, str]]:
    """What the figures depend on besides the sizes, and the versions."""
    with _connect(dsn) as connection:
        settings: dict[str, object] = {
            name: connection.execute("SELECT current_setting(%s)", (name,)).fetchall()[0][0]
            for name in _SETTINGS
        }
        server_version = connection.info.parameter_status("server_version") or "unknown"
    versions = {
        "cmdbus": metadata.version("cmdbus"),
        "python": platform.python_version(),
        "postgresql": server_version.split()[0],
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
    }
    return {"cpus": os.cpu_count(), **settings}, versions


def _connect(dsn: str) -> psycopg.Connection:
    parts = dsns.complete(dsns.parse(dsn), application_name="cmdbus:bench", settings={})
    return dsns.connect(parts)


def _drop_those_of_killed_runs(admin: psycopg.Connection) -> None:
    """Only on our own server, where a run's pid means something."""
    found = admin.execute(r"SELECT datname FROM pg_database WHERE datname LIKE 'cmdbus\_bench\_%'")
    for (name,) in found.fetchall():
        if not psutil.pid_exists(int(name.split("_")[2])):
            # In use: the pid is one of another container.
            with suppress(psycopg.errors.ObjectInUse):
                admin.execute(SQL("DROP DATABASE IF EXISTS {}").format(Identifier(name)))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C waits until the database is dropped, and then is forgotten."""
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
