"""Faults of the server, and of strangers in it; they hurt all instances."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from uuid import UUID

import psutil
import psycopg
from benches.servers import connect
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from cmdbus.database import schema as schemas
from cmdbus.database.session_names import PATTERN
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.errors import CmdbusError
from fault_injection.handlers import DOMAIN
from fault_injection.kinds import Fault, Hurts, Kind, Needs
from fault_injection.rig import Rig, within

_NOTIFIES = 20_000
_STARTERS = 8
_PAIRS = 5
#: Seconds within which pairs that lock each other out have ended.
_CROSSED_S = 15.0
#: Seconds within which a fault is undone, although other faults are in its way.
_UNDONE_S = 30.0
_AGAIN_S = 0.1
_LOCK = b"LOCK TABLE cmdbus.%s IN %s MODE"
_SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    f" AND application_name ~ '{PATTERN}'"
)
_END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = %s AND pid <> pg_backend_pid()"
)
_STANDBYS = "synchronous_standby_names"
_READ_ONLY = "default_transaction_read_only"
_CROSSED = (
    "SELECT count(*) FROM cmdbus.event WHERE code = 'DeadlockDetected' AND command_id = ANY (%s)"
)
_UNFINISHED = (
    "SELECT count(*) FROM cmdbus.command WHERE NOT (status = ANY (%s)) AND command_id = ANY (%s)"
)
_ENDED = ["COMPLETED", "FAILED", "IN_TROUBLESHOOTING_QUEUE"]
_ALTERED = (b"cmdbus.ready", b"cmdbus.finished", b"chaos.wide")


# What is over when it is done.


@Kind("end-sessions", "pg_terminate_backend to some sessions", weight=3, hurts=Hurts.ALL)
def end_sessions(rig: Rig, fault: Fault) -> None:
    with rig.connect() as connection:
        for pid in _some(_sessions(connection), fault.rand):
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


@Kind("notify-storm", "a stranger notifies 20,000 times", hurts=Hurts.ALL)
def notify(rig: Rig, fault: Fault) -> None:
    with rig.connect() as connection:
        connection.execute(
            "SELECT pg_notify((ARRAY['cmdbus_ready', 'cmdbus_due', 'cmdbus_pause'])[1 + n %% 3],"
            " n::text) FROM generate_series(1, %s) n",
            (_NOTIFIES,),
        )


@Kind("deadlock", "handlers that lock each other's rows", slow_by=5, hurts=Hurts.ALL)
def cross(rig: Rig, fault: Fault) -> None:
    """Each two take the same two rows, which no others take."""
    first = 100 * fault.number
    rows = range(first, first + 2 * _PAIRS)
    with rig.connect() as connection:
        connection.execute("INSERT INTO chaos.twin SELECT unnest(%s::int[])", ([*rows],))
        ids: list[UUID] = []
        for row in rows[::2]:
            for pair in ((row, row + 1), (row + 1, row)):
                data = {"first": pair[0], "second": pair[1]}
                ids.append(rig.send(DOMAIN, "Cross", "high", **data))
        sent = [id_ for id_ in ids if id_ is not None]
        within(_CROSSED_S, lambda: not _count(connection, _UNFINISHED, _ENDED, sent))
        rig.hits[fault.kind] += _count(connection, _CROSSED, sent)


# What ends with the session that does it.


@Kind("snapshot", "a REPEATABLE READ snapshot is held", lasts=(5.0, 15.0), hurts=Hurts.ALL)
def hold_snapshot(rig: Rig, fault: Fault) -> None:
    with rig.connect() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM cmdbus.ready")
        time.sleep(fault.lasts)


@Kind("lock-table", "a stranger locks a table", weight=2, lasts=(0.3, 4.0), hurts=Hurts.ALL)
def lock_table(rig: Rig, fault: Fault) -> None:
    tables = (
        *(b"ready", b"scheduled", b"finished", b"event", b"waiter", b"identity"),
        *(b"lease", b"node", b"domain", b"incarnation"),
    )
    mode = b"ACCESS EXCLUSIVE" if fault.rand < 0.5 else b"EXCLUSIVE"
    with rig.connect() as connection, connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '5s'")
        connection.execute(_LOCK % (tables[int(fault.rand * len(tables) * 2) % len(tables)], mode))
        time.sleep(fault.lasts)


@Kind("lock-rows", "a stranger locks claimed rows", lasts=(0.3, 4.0), hurts=Hurts.ALL)
def lock_rows(rig: Rig, fault: Fault) -> None:
    with rig.connect() as connection, connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '1s'")
        connection.execute(
            "SELECT FROM cmdbus.ready WHERE claimer IS NOT NULL AND random() < 0.5 FOR UPDATE"
        )
        time.sleep(fault.lasts)


@Kind(
    "too-many",
    "strangers have all connections",
    lasts=(0.5, 5.0),
    needs=Needs.OWN_SERVER,
    hurts=Hurts.ALL,
)
def hoard(rig: Rig, fault: Fault) -> None:
    """All connections that the server has, and some of the fleets' too."""
    hoarded: list[psycopg.Connection] = []

    def take() -> None:
        with suppress(CmdbusError):
            while True:
                hoarded.append(rig.connect())

    def leave() -> None:
        for connection in hoarded:
            connection.close()

    with rig.undoing(take, leave):
        ends_at = time.monotonic() + fault.lasts
        for pid in _some(_sessions(hoarded[0]), fault.rand):
            hoarded[0].execute("SELECT pg_terminate_backend(%s)", (pid,))
        while time.monotonic() < ends_at:
            take()
            time.sleep(_AGAIN_S)


# What has to be undone.


@Kind(
    "server-immediate",
    "PostgreSQL stops at once, and starts",
    hurts=Hurts.ALL,
    needs=Needs.OWN_SERVER,
)
@Kind(
    "server-fast", "PostgreSQL stops in order, and starts", hurts=Hurts.ALL, needs=Needs.OWN_SERVER
)
@Kind(
    "outage-70",
    "PostgreSQL is away for 70 s",
    lasts=(70.0, 70.0),
    hurts=Hurts.ALL,
    needs=Needs.OWN_SERVER,
    apart=True,
)
@Kind(
    "outage-135",
    "and for 135 s",
    lasts=(135.0, 135.0),
    hurts=Hurts.ALL,
    needs=Needs.OWN_SERVER,
    apart=True,
)
def restart(rig: Rig, fault: Fault) -> None:
    server = rig.server
    assert server is not None
    stop = partial(server.stop, "fast" if fault.kind == "server-fast" else "immediate")
    with rig.server_lock, rig.undoing(stop, server.start):
        time.sleep(fault.lasts or 2 * fault.rand)


@Kind(
    "stop-backend",
    "SIGSTOP to sessions' processes",
    lasts=(0.5, 5.0),
    needs=Needs.OWN_SERVER,
    hurts=Hurts.ALL,
)
def stop_backends(rig: Rig, fault: Fault) -> None:
    with ExitStack() as stack:
        with rig.connect() as connection:
            pids = _some(_sessions(connection), fault.rand)
        for pid in pids:
            stack.enter_context(rig.freezer.frozen(pid))
        time.sleep(fault.lasts)


@Kind("read-only", "the server is read-only", lasts=(0.5, 5.0), hurts=Hurts.ALL)
def be_read_only(rig: Rig, fault: Fault) -> None:
    """In the sessions that there are, or as after a failover: in new ones."""
    alter = _alter_system if rig.server is not None and fault.rand < 0.5 else _alter_database
    with (
        rig.exits.refusing(),
        rig.undoing(
            partial(alter, rig, f"SET {_READ_ONLY} = on"),
            lambda: _persist(rig, partial(alter, rig, f"RESET {_READ_ONLY}")),
        ),
    ):
        time.sleep(fault.lasts)


@Kind(
    "no-standby",
    "COMMITs wait for a standby that is gone",
    lasts=(0.5, 5.0),
    needs=Needs.OWN_SERVER,
    hurts=Hurts.ALL,
)
def lose_standby(rig: Rig, fault: Fault) -> None:
    with rig.undoing(
        partial(_alter_system, rig, f"SET {_STANDBYS} = 'gone'"),
        lambda: _persist(rig, partial(_alter_system, rig, f"RESET {_STANDBYS}")),
    ):
        time.sleep(fault.lasts)


def _alter_system(rig: Rig, change: str) -> None:
    with rig.connect() as connection:
        _change_setting(connection, change)


@Kind("deny", "the database refuses connections", lasts=(0.5, 5.0), hurts=Hurts.ALL)
def deny(rig: Rig, fault: Fault) -> None:
    with (
        rig.exits.refusing(),
        rig.undoing(
            partial(_alter_database, rig, "ALLOW_CONNECTIONS false"),
            lambda: _persist(rig, partial(_alter_database, rig, "ALLOW_CONNECTIONS true")),
        ),
    ):
        time.sleep(fault.lasts)


def _alter_database(rig: Rig, change: str) -> None:
    """For later sessions: the present ones are ended."""
    with connect(rig.admin_dsn) as connection:
        database = str(conninfo_to_dict(rig.dsn)["dbname"])
        statement = SQL("ALTER DATABASE {} " + change)
        connection.execute(statement.format(Identifier(database)))
        connection.execute(_END_ALL, (database,))


@Kind("migrate", "8 x cmdbus init, and altered tables", lasts=(0.3, 3.0), hurts=Hurts.ALL)
def migrate(rig: Rig, fault: Fault) -> None:
    starters = [Thread(target=_init, args=(rig,)) for _ in range(_STARTERS)]
    for starter in starters:
        starter.start()
    column = b"chaos_%d" % fault.number
    try:
        _persist(rig, partial(_alter_tables, rig, b"ADD COLUMN IF NOT EXISTS %s int" % column))
        time.sleep(fault.lasts)
    finally:
        _persist(rig, partial(_alter_tables, rig, b"DROP COLUMN IF EXISTS %s" % column))
    for starter in starters:
        starter.join()


def _alter_tables(rig: Rig, change: bytes) -> None:
    """As long as it waits for a table, all other sessions wait behind it."""
    with rig.connect() as connection:
        connection.execute("SET lock_timeout = '300ms'")
        for table in _ALTERED:
            connection.execute(b"ALTER TABLE %s %s" % (table, change))


def _init(rig: Rig) -> None:
    with suppress(psycopg.OperationalError, CmdbusError):
        done = schemas.install(rig.dsn)
        if done.before != done.after:
            rig.wrong.append(f"cmdbus init found version {done.before}")


def _persist(rig: Rig, what: Callable[[], object]) -> None:
    """Other faults may be in its way."""

    def is_done() -> bool:
        what()
        return True

    if within(_UNDONE_S, is_done) is None:
        rig.wrong.append("a fault could not be undone")


def repair(server: EmbeddedPostgres) -> None:
    """What a run that was killed has left in a server that runs on."""
    with suppress(OSError, ValueError, psutil.Error):
        number = (Path(server.directory) / "data" / "postmaster.pid").read_text().split()[0]
        for process in psutil.Process(int(number)).children():
            if process.status() == psutil.STATUS_STOPPED:
                process.resume()
    with connect(server.dsn) as connection:
        for name in (_STANDBYS, _READ_ONLY):
            _change_setting(connection, f"RESET {name}")


def _change_setting(connection: psycopg.Connection, change: str) -> None:
    """Writes no table: the COMMIT of that would wait for a standby, too."""
    connection.execute(f"ALTER SYSTEM {change}".encode())
    connection.execute("SELECT pg_reload_conf()")


def _sessions(connection: psycopg.Connection) -> list[int]:
    return [pid for (pid,) in connection.execute(_SESSIONS).fetchall()]


def _some(pids: Sequence[int], rand: float) -> list[int]:
    return sorted(pids)[:: 1 + int(4 * rand)]


def _count(connection: psycopg.Connection, query: str, *values: object) -> int:
    return int(connection.execute(query.encode(), values).fetchall()[0][0])
