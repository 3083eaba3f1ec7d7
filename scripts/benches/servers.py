"""Where scripts run: on the server of a DSN or on a durable one of the script's own, each run
in a fresh database that is dropped afterwards, whatever ends the run."""

import fcntl
import os
import platform
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import count
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from cmdbus.database import dsn as dsns
from cmdbus.database import schema
from cmdbus.embedded import EmbeddedPostgres, state_directory
from cmdbus.embedded.account import locked, open_lock
from cmdbus.embedded.cluster import Setting
from cmdbus.embedded.programs import find_programs

_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")


@contextmanager
def server(dsn: str | None, script: str = "bench", **settings: Setting) -> Iterator[str]:
    """The DSN of a database from which others can be made; settings are for one of our own."""
    if dsn is not None:
        yield dsn
        return
    with own_server(script, **settings) as own:
        yield own.dsn


@contextmanager
def own_server(script: str, **settings: Setting) -> Iterator[EmbeddedPostgres]:
    """The script's own, in a cluster that is kept between runs, and shared by those at the
    same time."""
    with _started(_directory(script), script, settings) as own:
        yield own


@contextmanager
def lone_server(script: str, **settings: Setting) -> Iterator[EmbeddedPostgres]:
    """The same for this run alone, which may break it."""
    for number in count(1):
        directory = _directory(script if number == 1 else f"{script}-{number}")
        with _started(directory, script, settings) as own, _locked(directory / "alone") as mine:
            if mine:
                yield own
                return


def _directory(name: str) -> Path:
    # A cluster belongs to one major version; it is kept, because making it takes seconds.
    return state_directory() / f"{name}-pg{find_programs().major}"


@contextmanager
def _started(
    directory: Path, script: str, settings: Mapping[str, Setting]
) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(directory, durable=True, settings=settings) as own:
        with connect(own.dsn) as admin:
            _drop_those_of_killed_runs(admin, script)
        yield own


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    descriptor = open_lock(path)
    try:
        yield locked(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


@contextmanager
def fresh_database(dsn: str, script: str = "bench") -> Iterator[str]:
    """The DSN of a new database with the schema."""
    name = f"cmdbus_{script}_{os.getpid()}_{uuid4().hex[:12]}"
    try:
        with connect(dsn) as admin:
            admin.execute(SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(name)))
        fresh = make_conninfo(dsn, dbname=name)
        schema.install(fresh)
        yield fresh
    finally:
        with _undisturbed(), connect(dsn) as admin:
            drop = SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            admin.execute(drop.format(Identifier(name)))


def look(dsn: str) -> tuple[dict[str, object], dict[str, str]]:
    """What the figures depend on besides the sizes, and the versions."""
    with connect(dsn) as connection:
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


def log_of(dsn: str) -> Path | None:
    """The log of an embedded server on this machine; None for any other."""
    query = "SELECT setting FROM pg_settings WHERE name = 'data_directory'"
    with connect(dsn) as connection:
        row = connection.execute(query).fetchone()  # only superusers see it
    log = Path(row[0]).parent / "log" if row and row[0] else None
    return log if log and log.is_file() else None


def connect(dsn: str) -> psycopg.Connection:
    # Also while a fault makes the server read-only.
    writable = {"default_transaction_read_only": "off"}
    parts = dsns.complete(dsns.parse(dsn), application_name="cmdbus:bench", settings=writable)
    return dsns.connect(parts)


def _drop_those_of_killed_runs(admin: psycopg.Connection, script: str) -> None:
    """Only on our own server, where a run's pid means something."""
    like = rf"cmdbus\_{script}\_%"
    found = admin.execute("SELECT datname FROM pg_database WHERE datname LIKE %s", (like,))
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
