"""Boards of supervisors of this name that died without a successor: this steward releases the
claims of their processes, once those are gone."""

import logging
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.board.views import SeatView
from cmdbus.clock import time
from cmdbus.errors import BoardError
from cmdbus.proc import PidState, pid_state
from cmdbus.timeouts import RESCUE_SECONDS
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.steward.rescue import Rescued

logger = logging.getLogger(__name__)

#: Seconds until boards are tried again because sessions of their processes have not ended.
_RETRY_SECONDS = 5.0
#: Seconds between checks whether a process that outlived its supervisor has exited.
_LIVING_SECONDS = 1.0
#: Seconds after which a board that cannot be read, as another version's, is removed: by then the
#: leases of its claims have ended. Its supervisor, while it ran, kept it from looking old.
_KEPT_SECONDS = 86400.0


class StaleBoards:
    def __init__(
        self,
        directory: Path,
        name: str,
        release: Callable[[Connection, SeatView], Rescued],
    ) -> None:
        self._release = release
        #: Pids of the supervisors whose boards were read.
        self.supervisors: set[int] = set()
        boards = sorted(directory.glob(f"{name}.board.*"))
        # Another supervisor may be called as this board is.
        self._boards = [path for path in boards if path.suffix[1:].isdigit()]
        #: Released by an earlier try.
        self._done: set[tuple[Path, int]] = set()
        #: Monotonic times of the latest tries that have not succeeded.
        self._tried: dict[tuple[Path, int], float] = {}
        #: Monotonic time of the next try.
        self.due_at = 0.0
        self._pause = _RETRY_SECONDS

    def run(self, connection: Connection) -> float:
        if not self._boards:
            return float("inf")
        if (pause := self.due_at - time.monotonic()) > 0:
            return pause
        self._pause = _RETRY_SECONDS
        done, until = len(self._done), time.monotonic() + RESCUE_SECONDS
        try:
            for path in list(self._boards):
                if time.monotonic() >= until:
                    break
                self._boards.remove(path)
                self._boards.append(path)  # The others come first in the next try.
                if self._is_rescued(connection, path, until):
                    self._boards.pop()
        finally:
            if len(self._done) > done:
                self._pause = 0.0
            self.due_at = time.monotonic() + self._pause
        return self._pause if self._boards else float("inf")

    def _is_rescued(self, connection: Connection, path: Path, until: float) -> bool:
        """Tries to release all that this board shows; begins with no process after `until`, as
        sessions that do not end must not keep the steward from its other rounds."""
        try:
            with closing(Board.open(path)) as board:
                view = board.snapshot()
        except BoardError as error:
            if not _remove_if_old(path):
                logger.warning("%s: its claims can be claimed again when their leases end", error)
            return True
        if view.pid is not None:
            self.supervisors.add(view.pid)
        claimers = [s for s in view.seats if s.incarnation and s.role is not Role.STEWARD]
        held = [s for s in claimers if not s.rescued and (path, s.index) not in self._done]
        for seat in sorted(held, key=lambda seat: self._tried.get((path, seat.index), 0.0)):
            if time.monotonic() >= until:
                break
            self._tried[path, seat.index] = time.monotonic()
            if view.this_boot and _lives(seat):
                self._pause = _LIVING_SECONDS
            elif self._release(connection, seat).sessions_ended:
                self._done.add((path, seat.index))
        is_done = all((path, seat.index) in self._done for seat in held)
        if is_done:
            with suppress(OSError):  # Else the next supervisor finds that nothing is left to do.
                path.unlink()
        return is_done


def _remove_if_old(path: Path) -> bool:
    with suppress(OSError):
        if time.time_ns() > path.stat().st_mtime_ns + _KEPT_SECONDS * 1e9:
            path.unlink()
            return True
    return False


def _lives(seat: SeatView) -> bool:
    """Whether its process still runs its commands: releasing them would run them twice."""
    return seat.pid is not None and pid_state(seat.pid, seat.since) is not PidState.GONE
