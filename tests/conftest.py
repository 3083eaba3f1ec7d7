"""A real PostgreSQL for every test that asks for one, and nothing left behind by any test.

The server is an embedded one of this checkout's own, kept between runs; with
CMDBUS_TEST_DSN it is the one that this names (a superuser's DSN).
"""

import hashlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import psycopg
import pytest
from claiming import Claimer
from databases import Databases, GivenServer, Server, freeze_catalogs
from django_support import django_dsn as django_dsn
from django_support import django_template as django_template
from embedded_servers import copy_cluster
from fleet import Fleet, make_effects, unstarted
from garbage_collection import pytest_collection_finish as pytest_collection_finish
from guarded import Guarded, guarded_server
from leftovers import assert_soon_empty, children, names_in, open_files
from pgmq_queues import pgmq_dsn as pgmq_dsn
from pgmq_queues import pgmq_template as pgmq_template
from pgmq_queues import queues_dsn as queues_dsn
from pgmq_queues import queues_template as queues_template
from psycopg.sql import SQL, Identifier, Literal
from queries import keeping
from shop_days import shop as shop
from shop_days import shop_template as shop_template
from stewards import Steward, stewarding
from visits import browser as browser
from visits import visiting as visiting

from cmdbus import CommandBus
from cmdbus.embedded import EmbeddedError, EmbeddedPostgres, state_directory
from cmdbus.embedded.account import server_account
from cmdbus.embedded.programs import find_programs

# A zone with daylight saving time, for this process and for every session: in UTC, arithmetic
# with clocks and calendars cannot be seen to be wrong.
os.environ.update(TZ="Europe/Berlin", PGTZ="Europe/Berlin")
time.tzset()

# Of processes that tests start: an application that a test writes twice within a second would be
# taken from the file that the first was compiled to.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

# A shell without job control starts background processes with SIGINT ignored, and their children
# inherit that: interrupts could not be tested, and Ctrl-C would leave such a run behind.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Those of a part of the suite (scripts/parts.sh); all, if there are none.
_FILES = {*map(Path, os.environ.pop("CMDBUS_TEST_FILES", "").splitlines())}
_MEMORY_BYTES = 2 * 1024**3
#: Thousands of sessions start. Each would read the directories of zones for a zone of its own, and
#: load the language. The pages of many databases fit into the caches of the processor.
_CHEAP_SESSIONS: dict[str, str | int] = {
    "timezone": os.environ["TZ"],
    "shared_preload_libraries": "plpgsql",
    "shared_buffers": "16MB",
    # It changes figures of the template by which a copy is known to be as at first: none would be
    # used again. (It comes a minute after the start.)
    "autovacuum": "off",
}
#: A fleet takes its time to boot on a busy machine.
_FLEETS_TIMEOUT_S = 90
#: Fixtures: the server of the run, one whose settings are tested, and where tests start their own.
_OF_SERVERS = {"server", "guarded", "memory"}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if _FILES and collection_path.suffix and collection_path not in _FILES else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The mark `db` is that of the tests which use a server, and `browser` that of those in one."""
    for item in items:
        if _OF_SERVERS & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.db)
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
        if item.get_closest_marker("fleet") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_FLEETS_TIMEOUT_S))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of this run's tests."""
    given = os.environ.get("CMDBUS_TEST_DSN")
    if given:
        with psycopg.connect(given) as connection:
            version = connection.execute("SHOW server_version").fetchone()
        assert version is not None
        yield GivenServer(dsn=given, version=version[0].split()[0])
        return
    checkout = hashlib.sha256(os.fsencode(Path(__file__).resolve().parent.parent)).hexdigest()[:8]
    # Concurrent runs see each other's sessions and locks, unless each has its own server.
    beside = os.environ.get("CMDBUS_TEST_BESIDE", "")
    directory = state_directory() / f"test-{checkout}{beside}-pg{find_programs().major}"
    with _started(directory) as own:
        yield own


def _started(directory: Path) -> EmbeddedPostgres:
    """The tests' own server; its cluster is made again if the machine has crashed.

    Without fsync, and with databases in memory, it does not survive a loss of power.
    """
    server = EmbeddedPostgres(directory, durable=False, settings=_CHEAP_SESSIONS)
    try:
        server.start()
    except EmbeddedError:
        if not (directory / "data").exists() or (directory / "data" / "postmaster.pid").exists():
            raise
        shutil.rmtree(directory)
        server.start()
    return server


@pytest.fixture(scope="session")
def guarded(memory: Path | None) -> Iterator[Guarded]:
    with guarded_server(memory) as made:
        yield made


@pytest.fixture(scope="session")
def memory() -> Path | None:
    """A directory whose files are in memory, if that is plentiful.

    A copy of a database is 300 files: 6 ms there, and 100 to 270 ms on the disk of a
    virtual machine.
    """
    path = Path("/dev/shm")
    plenty = path.is_dir() and shutil.disk_usage(path).free > _MEMORY_BYTES
    return path if plenty else None


@pytest.fixture(scope="session")
def databases(server: Server, memory: Path | None) -> Iterator[Databases]:
    with psycopg.connect(server.dsn, autocommit=True, application_name="tests") as admin:
        run = uuid4().int % 2**31
        databases = Databases(admin=admin, dsn=server.dsn, run=run)
        databases.claim_run()
        databases.drop_those_of_killed_runs()
        if memory is None or isinstance(server, GivenServer):  # which may be on another machine
            yield databases
            databases.drop_spare()
            return
        directory = _directory_for_server(memory, run)
        try:
            name = f"cmdbus_test_{run}"
            create = SQL("CREATE TABLESPACE {} LOCATION {}")
            admin.execute(create.format(Identifier(name), Literal(str(directory))))
            yield (databases := replace(databases, tablespace=name, copies_files=True))
            databases.drop_spare()
            admin.execute(SQL("DROP TABLESPACE {}").format(Identifier(name)))
        finally:
            shutil.rmtree(directory)


def _directory_for_server(memory: Path, run: int) -> Path:
    account = server_account()
    for left in memory.glob(f"cmdbus-test-{account.uid}-*"):  # by runs that were killed
        if not psutil.pid_exists(int(left.name.split("-")[3])):
            shutil.rmtree(left, ignore_errors=True)
    made = memory / f"cmdbus-test-{account.uid}-{os.getpid()}-{run}"
    made.mkdir(mode=0o700)
    os.chown(made, account.uid, account.gid)
    return made


@pytest.fixture(scope="session")
def template(databases: Databases) -> Iterator[str]:
    """The name of a database to be copied and never connected to: with the schema, and with a
    table for what handlers write."""
    from cmdbus.database.schema import install

    with databases.fresh() as name:
        install(databases.dsn_of(name))
        make_effects(databases.dsn_of(name))
        freeze_catalogs(databases.dsn_of(name))
        # A session's start leaves a file of the catalog's cache, which every copy has then.
        psycopg.connect(databases.dsn_of(name)).close()
        yield name


@pytest.fixture
def dsn(request: pytest.FixtureRequest, databases: Databases, template: str) -> Iterator[str]:
    """A database of this test's own, with the schema and the table of effects; its user is a
    superuser. Another test may have had it, but for tests of fleets and with `new_database`."""
    marks = {mark.name for mark in request.node.iter_markers()}
    for kind in ("pgmq", "queues"):
        if f"{kind}_dsn" in request.fixturenames:
            template = request.getfixturevalue(f"{kind}_template")
    cleaned = not marks & {"fleet", "new_database"}
    with (
        databases.fresh(template, cleaned=cleaned) as name,
        keeping(dsn := databases.dsn_of(name)),
    ):
        yield dsn


@pytest.fixture
def home(memory: Path | None) -> Iterator[Path]:
    """A short-named directory that a server's user can reach, also under root."""
    home = Path(tempfile.mkdtemp(prefix="cmdbus-", dir=memory))
    home.chmod(0o711)
    yield home
    running = [path.parent for path in home.rglob("postmaster.pid")]
    shutil.rmtree(home)
    assert not running, "the test has left a server running"


@pytest.fixture
def empty_directory(home: Path) -> Path:
    """For an embedded server, which makes it and its cluster."""
    return home / "pg"


@pytest.fixture(scope="session")
def cluster(memory: Path | None) -> Iterator[Path]:
    """The directory of an embedded server that has started once, to be copied."""
    path = Path(tempfile.mkdtemp(prefix="cmdbus-", dir=memory))
    path.chmod(0o711)
    with EmbeddedPostgres(path / "pg", durable=False):
        pass
    yield path / "pg"
    shutil.rmtree(path)


@pytest.fixture
def directory(empty_directory: Path, cluster: Path) -> Path:
    """Of an embedded server, with a cluster: making one takes ten times longer."""
    copy_cluster(cluster, empty_directory)
    return empty_directory


@pytest.fixture
def bus(dsn: str) -> Iterator[CommandBus]:
    with CommandBus(dsn) as bus:
        yield bus


@pytest.fixture
def cmdbus_dsn(dsn: str) -> str:
    """The database of cmdbus.testing's own fixtures."""
    return dsn


@pytest.fixture
def empty_dsn(databases: Databases) -> Iterator[str]:
    """A database of this test's own, without the schema."""
    with databases.fresh() as name:
        yield databases.dsn_of(name)


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    """A session of the test's own, in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def sender(dsn: str) -> Iterator[psycopg.Connection]:
    """A session with a transaction, which the test commits."""
    with psycopg.connect(dsn) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def claimer(connection: psycopg.Connection) -> Claimer:
    return Claimer(connection)


@pytest.fixture
def steward(dsn: str) -> Iterator[Steward]:
    """The part of one that arms its node."""
    with stewarding(dsn) as steward:
        yield steward


@pytest.fixture
def fleet(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[Fleet]:
    """One that is ready, with the options of the mark `fleet`: the test's, then its file's.

    With `started=False` the test itself starts it.
    """
    options: dict[str, Any] = {}
    for mark in request.node.iter_markers("fleet"):
        options = {**mark.kwargs, **options}
    started = options.pop("started", True)
    with unstarted(dsn, tmp_path, **options) as fleet:
        if started:
            fleet.start()
            fleet.wait_until_ready()
        yield fleet


@pytest.fixture(autouse=True)
def nothing_left_behind(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    memory: Path | None,
) -> Iterator[None]:
    """Fail the test that leaves a thread, a process, an open file or a temporary file."""
    tmp_path_factory.getbasetemp()  # made at its first use, which would be in the directory below
    # Not tmp_path: that is too long for sockets, and closed to the server's user under root.
    temporary = Path(tempfile.mkdtemp(prefix="cmdbus-tmp-", dir=memory))
    temporary.chmod(0o711)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    threads, processes, files = set(threading.enumerate()), children(), open_files()
    try:
        yield
        assert_soon_empty("threads left", lambda: set(threading.enumerate()) - threads)
        assert_soon_empty("processes left", lambda: children() - processes)
        assert_soon_empty("files left open", lambda: open_files() - files)
        assert_soon_empty("temporary files left", lambda: names_in(temporary))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads alternate after almost every instruction."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
