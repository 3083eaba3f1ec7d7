"""Logs when a breaker of the node's app opens, and when it is closed again: once for each node. In
the half minute after a change it makes commands due that were deferred while their breaker closed:
a process that stalls settles them late."""

import logging
from collections.abc import Sequence

from cmdbus.board.board import Board
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements

logger = logging.getLogger(__name__)

#: Seconds from one read to the next at least: what opens and closes in between is not logged.
_PAUSE_SECONDS = 1.0
#: Seconds until deferrals are ended, at first and at most: each time that there was none doubles
#: them.
_MIN_END_SECONDS, _MAX_END_SECONDS = 1.0, 16.0


class BreakerWatch:
    def __init__(
        self, board: Board, statements: ClaimStatements, names: Sequence[str] = ()
    ) -> None:
        self._board, self._statements, self._names = board, statements, names
        #: The number on the board for which the states were read.
        self._number = -1
        #: Monotonic time of the next read.
        self._next_at = float("-inf")
        #: Monotonic times since which they are not CLOSED.
        self._opened_at: dict[str, float] = {}
        #: Those that were CLOSED then, and may have deferred commands since before that.
        self._closed: set[str] = set()
        #: The monotonic time at which these deferrals are ended next, and the seconds before that.
        self._end_at = float("-inf")
        self._end_pause = _MIN_END_SECONDS

    def run(self, connection: Connection) -> float:
        number, now = self._board.breaker_changes, time.monotonic()
        has_changed = number != self._number
        if not self._names or not (has_changed or self._closed):
            return float("inf")
        due = self._next_at if has_changed else self._end_at
        if now < due:
            return due - now
        self._next_at = now + _PAUSE_SECONDS
        if self._closed and now >= self._end_at:
            self._end_deferrals(connection, now)
        if has_changed:
            self._read(connection, now)
            self._number = number
            self._end_pause, self._end_at = _MIN_END_SECONDS, now + _MIN_END_SECONDS
        return self._end_at - now if self._closed else float("inf")

    def _end_deferrals(self, connection: Connection, now: float) -> None:
        if self._statements.value(connection, "end_deferrals", names=[*self._closed]):
            self._end_pause = _MIN_END_SECONDS  # There may be more.
        elif self._end_pause < _MAX_END_SECONDS:
            self._end_pause *= 2
        else:
            self._closed = set()
        self._end_at = now + self._end_pause

    def _read(self, connection: Connection, now: float) -> None:
        rows = self._statements.rows(connection, "read_openings", names=self._names)
        self._closed = {*self._names} - {row[0] for row in rows}
        for name in self._opened_at.keys() & self._closed:
            seconds = now - self._opened_at.pop(name)
            logger.info("the breaker %s is closed again, after %.0f s", name, seconds)
        for name, open_for, cause in rows:
            if name not in self._opened_at:
                logger.warning("the breaker %s is open: %s", name, cause)
                self._opened_at[name] = now - open_for
