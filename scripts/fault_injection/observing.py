"""The observer of a run: it samples the processes, the boards and the database."""

import os
import threading
import time
from contextlib import suppress

import psutil
import psycopg
from lab.debugger import is_held

from cmdbus.board.board import Board
from cmdbus.board.counters import CountersView
from cmdbus.board.records import Role
from cmdbus.board.views import BoardView
from cmdbus.database.session_names import PATTERN
from cmdbus.errors import BoardError
from fault_injection.failpoints import DIRECTORY
from fault_injection.handlers import UNHANDLED
from fault_injection.history import Count, Sample, Stall, Stray
from fault_injection.pacing import Pace
from fault_injection.rig import CANARY, Rig

_LOOK_S, _SCAN_S, _COUNT_S = 0.25, 1.0, 2.0
_STRAY_S = 2.0
#: Seconds beyond its pause from which a round is a stall of the machine or the server.
_STALL_S = 0.7
_COUNT = (
    "SELECT (SELECT count(DISTINCT command_id) FROM chaos.move),"
    " (SELECT count(*) FROM cmdbus.command),"
    " (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    f"  AND application_name ~ '{PATTERN}'),"
    f" (SELECT count(*) FROM cmdbus.ready WHERE claimer IS NULL AND type <> '{UNHANDLED}')"
)
_LIVING = (Role.WORKER, Role.STOPPING)


class Observer:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._pace = Pace(rig.directory)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        #: Since when a process has been what it should not be.
        self._since: dict[tuple[int, str], float] = {}
        self.samples: list[Sample] = []
        self.counts: list[Count] = []
        self.stalls: list[Stall] = []
        #: Incarnations that boards showed, with their pids: a restored server forgets the latest.
        self.workers: dict[int, str] = {}
        self.strays: dict[tuple[int, str], Stray] = {}
        self.leaks: set[str] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        scan_at = count_at = 0.0
        began = time.time()
        while not self._stopping.wait(_LOOK_S):
            if (ended := time.time()) > began + _LOOK_S + _STALL_S:
                self.stalls.append(Stall(began=began, ended=ended))
            began = ended
            now = time.monotonic()
            scans = now >= scan_at
            self._look(counters=scans)
            if scans:
                scan_at = now + _SCAN_S
                self._scan(now)
            if now >= count_at:
                count_at = now + _COUNT_S
                with suppress(psycopg.Error, Exception):
                    self.count()

    def _look(self, *, counters: bool) -> None:
        for instance in self._rig.instances:
            try:
                board = Board.open(instance.board_path)
            except BoardError:
                continue
            view = board.snapshot(claims=False)
            counted = _plain(board.counters()) if counters else {}
            board.close()
            if view.pid != instance.pid:
                continue
            for seat in view.seats:
                if seat.incarnation is not None and seat.pid is not None:
                    kind = "steward" if seat.role is Role.STEWARD else instance.name
                    self.workers.setdefault(seat.incarnation, f"{kind}:{seat.pid}")
            self.samples.append(
                Sample(
                    instance=instance.name,
                    at=time.time(),
                    supervisor=view.pid,
                    workers=sum(map(instance.is_child, workers_of(view))),
                    wanted=view.wanted,
                    counters=counted,
                )
            )

    def _scan(self, now: float) -> None:
        """Ours are known by their environment, which forks keep."""
        ours = f"{self._rig.directory}"
        parents = {os.getpid(), *(instance.pid for instance in self._rig.instances)}
        seen = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                state = process.status()
                parent = process.ppid()
                if state == psutil.STATUS_ZOMBIE:
                    left = parent in parents and not is_held(process.pid)
                    what = "a zombie" if left else None
                elif process.environ().get(DIRECTORY) == ours:
                    # One that is stopped, or cannot die, cannot leave.
                    stays = state in (psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP)
                    there = parent in parents or stays
                    what = None if there else "an orphan"
                    if CANARY in " ".join(process.cmdline()):
                        self.leaks.add("a process list")
                else:
                    continue
                frozen = parent in parents and (
                    psutil.Process(parent).status() == psutil.STATUS_STOPPED
                )
                if what is not None and not frozen:
                    seen.add((process.pid, what))
        self._note(seen, now)

    def _note(self, seen: set[tuple[int, str]], now: float) -> None:
        self._since = {key: self._since.get(key, now) for key in seen}
        for key, since in self._since.items():
            if now - since > _STRAY_S:
                pid, what = key
                self.strays[key] = Stray(pid=pid, what=what, seconds=now - since)

    def count(self) -> None:
        """Also lets nodes publish often, as an operator does who watches them."""
        with self._rig.connect() as connection:
            connection.execute("SELECT cmdbus.watch_fleet(10)")
            self._count(connection)

    def _count(self, connection: psycopg.Connection) -> None:
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SET LOCAL lock_timeout = '1s'")
            commands, rows, sessions, waiting = connection.execute(_COUNT).fetchall()[0]
        self._pace.show(waiting)
        self.counts.append(Count(at=time.time(), commands=commands, rows=rows, sessions=sessions))


def workers_of(view: BoardView) -> list[int]:
    """The pids of those that live or leave; a quarantine process is none, also as it leaves."""
    seats = [seat for seat in view.seats if seat.role in _LIVING and seat.for_worker]
    return [seat.pid for seat in seats if seat.pid is not None]


def _plain(view: CountersView) -> dict[str, int]:
    return {
        **{" ".join(name): count for name, count in view.commands.items()},
        **{f"wakeups {source}": count for source, count in view.wakeups.items()},
        "batches": view.counts["batches_processed"],
        "lost leases": view.counts["lost_leases"],
        "claim failures": view.counts["claim_failures"],
    }
