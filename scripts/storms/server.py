"""Faults of the server, and of strangers in it; they hurt all instances."""

import time
from collections.abc import Callable

from storms.plan import Fault
from storms.world import World

_NOTIFIES = 20_000
_LOCK = b"LOCK TABLE cmdbus.%s IN %s MODE"
_SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    r" AND application_name ~ '^cmdbus:[0-9]+$'"
)


class Server:
    def __init__(self, world: World) -> None:
        self._world = world
        self.faults: dict[str, Callable[[Fault], object]] = {
            "end-sessions": self._end_sessions,
            "server-immediate": self._restart,
            "server-fast": self._restart,
            "notify-storm": self._notify,
            "snapshot": self._hold_snapshot,
            "lock-table": self._lock_table,
        }

    def _end_sessions(self, fault: Fault) -> None:
        with self._world.connect() as connection:
            pids = [pid for (pid,) in connection.execute(_SESSIONS).fetchall()]
            for pid in sorted(pids)[:: 1 + int(4 * fault.dice)]:
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def _restart(self, fault: Fault) -> None:
        server = self._world.server
        assert server is not None
        with self._world.server_lock:
            server.stop("immediate" if fault.kind == "server-immediate" else "fast")
            time.sleep(2 * fault.dice)
            server.start()

    def _notify(self, fault: Fault) -> None:
        with self._world.connect() as connection:
            connection.execute(
                "SELECT pg_notify(CASE WHEN n %% 2 = 0 THEN 'cmdbus_ready' ELSE 'cmdbus_due' END,"
                " n::text) FROM generate_series(1, %s) n",
                (_NOTIFIES,),
            )

    def _hold_snapshot(self, fault: Fault) -> None:
        with self._world.connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM cmdbus.ready")
            time.sleep(fault.lasts)

    def _lock_table(self, fault: Fault) -> None:
        tables = (b"ready", b"scheduled", b"finished", b"event", b"waiter", b"identity")
        mode = b"ACCESS EXCLUSIVE" if fault.dice < 0.5 else b"EXCLUSIVE"
        with self._world.connect() as connection, connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '5s'")
            connection.execute(_LOCK % (tables[int(fault.dice * len(tables) * 2) % 6], mode))
            time.sleep(fault.lasts)
