"""Boards of supervisors of this name that died without a successor: this steward releases what
their processes had claimed, once those processes are gone."""

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cmdbus.board.board import Board
from cmdbus.board.records import ExitRecord, Role
from cmdbus.board.views import SeatView
from cmdbus.clock import time
from cmdbus.errors import BoardError
from cmdbus.proc import PidState, pid_state
from cmdbus.worker.claims.claim import Connection

logger = logging.getLogger(__name__)

#: Seconds for the boards of whole fleets in one round.
_ROUND_SECONDS = 60.0
#: Seconds until boards are tried again whose processes' sessions have not ended.
_RETRY_SECONDS = 5.0
#: Seconds between checks whether a process that outlived its supervisor has exited.
_LIVING_SECONDS = 1.0
#: The exit of a process whose supervisor died before it could record one.
KILLED = ExitRecord(generation=0, pid=0, signal=signal.SIGKILL, orphaned=True)


class StaleBoards:
    def __init__(
        self,
        directory: Path,
        name: str,
        release: Callable[[Connection, SeatView, ExitRecord], bool],
        allow: Callable[[float], None],
    ) -> None:
        """`allow` gives a round more seconds than others have."""
        self._release = release
        self._allow = allow
        boards = sorted(directory.glob(f"{name}.board.*"))
        # Another supervisor may be called as this board is.
        self._boards = [path for path in boards if path.suffix[1:].isdigit()]
        #: Released by an earlier try.
        self._done: set[tuple[Path, int]] = set()
        self._due = 0.0
        self._pause = _RETRY_SECONDS

    def run(self, connection: Connection) -> float:
        now = time.monotonic()
        if self._boards and now >= self._due:
            self._allow(_ROUND_SECONDS)
            return self.rescue(connection)
        return self._due - now if self._boards else float("inf")

    def rescue(self, connection: Connection) -> float:
        """Tries all boards; returns the seconds until it must try again."""
        self._pause = _RETRY_SECONDS
        try:
            for path in list(self._boards):
                if self._is_rescued(connection, path):
                    self._boards.remove(path)
        finally:
            self._due = time.monotonic() + self._pause
        return self._pause if self._boards else float("inf")

    def _is_rescued(self, connection: Connection, path: Path) -> bool:
        """Tries to release all that this board shows."""
        try:
            board = Board.open(path)
        except BoardError as error:
            logger.warning("%s: what it shows is claimable when its leases end", error)
            return True
        try:
            view = board.snapshot()
            seats = [seat for seat in view.seats if not seat.rescued]
            ours = [seat for seat in seats if seat.incarnation and seat.role is not Role.STEWARD]
        finally:
            board.close()
        for seat in ours:
            if view.this_boot and _lives(seat):
                self._pause = _LIVING_SECONDS
                continue
            exit_record = seat.exit or replace(KILLED, pid=seat.pid or 0)
            if (path, seat.index) not in self._done and self._release(
                connection, seat, exit_record
            ):
                self._done.add((path, seat.index))
        is_done = all((path, seat.index) in self._done for seat in ours)
        if is_done:
            with suppress(OSError):  # Else the next supervisor finds that nothing is left to do.
                path.unlink()
        return is_done


def _lives(seat: SeatView) -> bool:
    """Whether its process still runs its commands: releasing them would run them twice."""
    return seat.pid is not None and pid_state(seat.pid, seat.since) is not PidState.GONE
