"""Logs when a breaker of the node's app opens, and when it is closed again: once for each node. A
second after a change it makes commands due that were deferred while their breaker closed."""

import logging
from collections.abc import Sequence

from cmdbus.board.board import Board
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements

logger = logging.getLogger(__name__)

#: Seconds from one read to the next at least: what opens and closes in between is not logged.
_PAUSE_SECONDS = 1.0


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

    def run(self, connection: Connection) -> float:
        number, now = self._board.breaker_changes, time.monotonic()
        has_changed = number != self._number
        if not self._names or not (has_changed or self._closed):
            return float("inf")
        if now < self._next_at:
            return self._next_at - now
        self._next_at = now + _PAUSE_SECONDS
        if self._closed and not self._end_deferrals(connection):
            self._closed = set()
        if has_changed:
            self._read(connection, now)
            self._number = number
        return _PAUSE_SECONDS if self._closed else float("inf")

    def _end_deferrals(self, connection: Connection) -> bool:
        """Whether there were any, so that there may be more."""
        names = [*self._closed]
        return bool(self._statements.value(connection, "end_deferrals", names=names))

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
