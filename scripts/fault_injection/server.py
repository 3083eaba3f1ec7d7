"""Faults of the server, and of strangers in it; they hurt all instances."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
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
from fault_injection.plan import Fault
from fault_injection.test_rig import TestRig, within

_NOTIFIES = 20_000
_STARTERS = 8
_PAIRS = 5
#: Pairs that lock each other out come to their end so soon.
_CROSSED_S = 15.0
#: Something is undone as soon as others let it be, within so long.
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
_READ_ONLY = "default_transaction_read_only"
_CROSSED = (
    "SELECT count(*) FROM cmdbus.event WHERE code = 'DeadlockDetected' AND command_id = ANY (%s)"
)
_UNFINISHED = (
    "SELECT count(*) FROM cmdbus.command WHERE NOT (status = ANY (%s)) AND command_id = ANY (%s)"
)
_ENDED = ["COMPLETED", "FAILED", "IN_TROUBLESHOOTING_QUEUE"]
_ALTERED = (b"cmdbus.ready", b"cmdbus.finished", b"chaos.wide")


class Server:
    def __init__(self, rig: TestRig, send: Callable[..., Any], hits: Counter[str]) -> None:
        self._rig = rig
        self._send = send
        self._hits = hits
        self._database = str(conninfo_to_dict(rig.dsn)["dbname"])
        self.faults: dict[str, Callable[[Fault], object]] = {
            "end-sessions": self._end_sessions,
            "server-immediate": self._restart,
            "server-fast": self._restart,
            "outage-70": self._restart,
            "outage-135": self._restart,
            "notify-storm": self._notify,
            "snapshot": self._hold_snapshot,
            "lock-table": self._lock_table,
            "stop-backend": self._stop_backends,
            "read-only": self._be_read_only,
            "too-many": self._hoard,
            "deny": self._deny,
            "deadlock": self._cross,
            "migrate": self._migrate,
        }

    # What is over when it is done.

    def _end_sessions(self, fault: Fault) -> None:
        with self._rig.connect() as connection:
            for pid in _some(_sessions(connection), fault.rand):
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def _notify(self, fault: Fault) -> None:
        with self._rig.connect() as connection:
            connection.execute(
                "SELECT pg_notify(CASE WHEN n %% 2 = 0 THEN 'cmdbus_ready' ELSE 'cmdbus_due' END,"
                " n::text) FROM generate_series(1, %s) n",
                (_NOTIFIES,),
            )

    def _cross(self, fault: Fault) -> None:
        """Each two take the same two rows, which no others take."""
        first = 100 * fault.number
        rows = range(first, first + 2 * _PAIRS)
        with self._rig.connect() as connection:
            connection.execute("INSERT INTO chaos.twin SELECT unnest(%s::int[])", ([*rows],))
            ids: list[UUID] = []
            for row in rows[::2]:
                for pair in ((row, row + 1), (row + 1, row)):
                    told = {"first": pair[0], "second": pair[1]}
                    ids.append(self._send(DOMAIN, "Cross", "high", **told))
            sent = [id_ for id_ in ids if id_ is not None]
            within(_CROSSED_S, lambda: not _count(connection, _UNFINISHED, _ENDED, sent))
            self._hits[fault.kind] += _count(connection, _CROSSED, sent)

    # What ends with the session that does it.

    def _hold_snapshot(self, fault: Fault) -> None:
        with self._rig.connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM cmdbus.ready")
            time.sleep(fault.lasts)

    def _lock_table(self, fault: Fault) -> None:
        tables = (b"ready", b"scheduled", b"finished", b"event", b"waiter", b"identity")
        mode = b"ACCESS EXCLUSIVE" if fault.rand < 0.5 else b"EXCLUSIVE"
        with self._rig.connect() as connection, connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '5s'")
            connection.execute(_LOCK % (tables[int(fault.rand * len(tables) * 2) % 6], mode))
            time.sleep(fault.lasts)

    def _hoard(self, fault: Fault) -> None:
        """All connections that the server has, and some of the fleets' too."""
        hoarded: list[psycopg.Connection] = []

        def take() -> None:
            with suppress(CmdbusError):
                while True:
                    hoarded.append(self._rig.connect())

        def leave() -> None:
            for connection in hoarded:
                connection.close()

        with self._rig.undoing(take, leave):
            ends_at = time.monotonic() + fault.lasts
            for pid in _some(_sessions(hoarded[0]), fault.rand):
                hoarded[0].execute("SELECT pg_terminate_backend(%s)", (pid,))
            while time.monotonic() < ends_at:
                take()
                time.sleep(_AGAIN_S)

    # What has to be undone.

    def _restart(self, fault: Fault) -> None:
        server = self._rig.server
        assert server is not None
        stop = partial(server.stop, "fast" if fault.kind == "server-fast" else "immediate")
        with self._rig.server_lock, self._rig.undoing(stop, server.start):
            time.sleep(fault.lasts or 2 * fault.rand)

    def _stop_backends(self, fault: Fault) -> None:
        with ExitStack() as stack:
            with self._rig.connect() as connection:
                pids = _some(_sessions(connection), fault.rand)
            for pid in pids:
                stack.enter_context(self._rig.frozen(pid))
            time.sleep(fault.lasts)

    def _be_read_only(self, fault: Fault) -> None:
        """In the sessions that there are, or as after a failover: in new ones."""
        if self._rig.server is not None and fault.rand < 0.5:
            do, undo = self._set_read_only, self._reset_read_only
        else:
            do, undo = self._fail_over, self._fail_back
        with self._rig.refusing(), self._rig.undoing(do, lambda: self._persist(undo)):
            time.sleep(fault.lasts)

    def _set_read_only(self) -> None:
        with self._rig.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET {_READ_ONLY} = on".encode())
            connection.execute("SELECT pg_reload_conf()")

    def _reset_read_only(self) -> None:
        with self._rig.connect() as connection:
            reset_read_only(connection)

    def _fail_over(self) -> None:
        self._alter(f"SET {_READ_ONLY} = on")

    def _fail_back(self) -> None:
        self._alter(f"RESET {_READ_ONLY}")

    def _deny(self, fault: Fault) -> None:
        with (
            self._rig.refusing(),
            self._rig.undoing(
                lambda: self._alter("ALLOW_CONNECTIONS false"),
                lambda: self._persist(lambda: self._alter("ALLOW_CONNECTIONS true")),
            ),
        ):
            time.sleep(fault.lasts)

    def _alter(self, change: str) -> None:
        """The database, for those who connect after this: so for all."""
        with connect(self._rig.admin_dsn) as connection:
            statement = SQL("ALTER DATABASE {} " + change)
            connection.execute(statement.format(Identifier(self._database)))
            connection.execute(_END_ALL, (self._database,))

    def _migrate(self, fault: Fault) -> None:
        starters = [Thread(target=self._init) for _ in range(_STARTERS)]
        for starter in starters:
            starter.start()
        column = b"chaos_%d" % fault.number
        try:
            self._persist(partial(self._alter_tables, b"ADD COLUMN IF NOT EXISTS %s int" % column))
            time.sleep(fault.lasts)
        finally:
            self._persist(partial(self._alter_tables, b"DROP COLUMN IF EXISTS %s" % column))
        for starter in starters:
            starter.join()

    def _alter_tables(self, change: bytes) -> None:
        """As long as it waits for a table, everybody waits behind it."""
        with self._rig.connect() as connection:
            connection.execute("SET lock_timeout = '300ms'")
            for table in _ALTERED:
                connection.execute(b"ALTER TABLE %s %s" % (table, change))

    def _init(self) -> None:
        with suppress(psycopg.OperationalError, CmdbusError):
            done = schemas.install(self._rig.dsn)
            if done.before != done.after:
                self._rig.wrong.append(f"cmdbus init found version {done.before}")

    def _persist(self, what: Callable[[], object]) -> None:
        """Other faults may be in its way."""

        def is_done() -> bool:
            what()
            return True

        if within(_UNDONE_S, is_done) is None:
            self._rig.wrong.append("a fault could not be undone")


def mend(server: EmbeddedPostgres) -> None:
    """What a run that was killed has left in a server that runs on."""
    with suppress(OSError, ValueError, psutil.Error):
        number = (Path(server.directory) / "data" / "postmaster.pid").read_text().split()[0]
        for process in psutil.Process(int(number)).children():
            if process.status() == psutil.STATUS_STOPPED:
                process.resume()
    with connect(server.dsn) as connection:
        reset_read_only(connection)


def reset_read_only(connection: psycopg.Connection) -> None:
    connection.execute(f"ALTER SYSTEM RESET {_READ_ONLY}".encode())
    connection.execute("SELECT pg_reload_conf()")


def _sessions(connection: psycopg.Connection) -> list[int]:
    return [pid for (pid,) in connection.execute(_SESSIONS).fetchall()]


def _some(pids: Sequence[int], rand: float) -> list[int]:
    return sorted(pids)[:: 1 + int(4 * rand)]


def _count(connection: psycopg.Connection, query: str, *values: object) -> int:
    return int(connection.execute(query.encode(), values).fetchall()[0][0])
