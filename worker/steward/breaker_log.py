"""Logs when a breaker of the node's app opens, and when it is closed again: once for each node."""

import logging
from collections.abc import Sequence

from cmdbus.board.board import Board
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements

logger = logging.getLogger(__name__)

#: Seconds from one read to the next at least: what opens and closes in between is not logged.
_PAUSE_SECONDS = 1.0


class BreakerLog:
    def __init__(
        self, board: Board, statements: ClaimStatements, names: Sequence[str] = ()
    ) -> None:
        self._board, self._statements, self._names = board, statements, names
        #: The number on the board for which the states were read.
        self._number = -1
        self._read_at = float("-inf")
        #: Monotonic times since which they are not CLOSED.
        self._opened_at: dict[str, float] = {}

    def run(self, connection: Connection) -> float:
        number = self._board.breaker_changes
        if not self._names or number == self._number:
            return float("inf")
        now = time.monotonic()
        if now < self._read_at + _PAUSE_SECONDS:
            return self._read_at + _PAUSE_SECONDS - now
        rows = self._statements.rows(connection, "read_openings", names=self._names)
        self._number, self._read_at = number, now
        for name in self._opened_at.keys() - {row[0] for row in rows}:
            seconds = now - self._opened_at.pop(name)
            logger.info("the breaker %s is closed again, after %.0f s", name, seconds)
        for name, open_for, cause in rows:
            if name not in self._opened_at:
                logger.warning("the breaker %s is open: %s", name, cause)
                self._opened_at[name] = now - open_for
        return float("inf")
