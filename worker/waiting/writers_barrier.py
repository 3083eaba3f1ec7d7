"""Waits for the transactions that were writing at a moment, and may have notified no node."""

from cmdbus.backoff import Backoff
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements

#: Seconds between two readings of the writers: the transactions with locks on the queue's tables.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.002, 0.1


class WritersBarrier:
    def __init__(self, statements: ClaimStatements) -> None:
        self._statements = statements
        self._pauses = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        #: The transactions that have not ended yet; None while the barrier is down.
        self._writers: set[str] | None = None

    @property
    def is_up(self) -> bool:
        return self._writers is not None

    def raise_(self, connection: Connection) -> None:
        self._writers = self._read(connection)
        self._pauses.reset()

    def lower(self) -> None:
        self._writers = None

    def check(self, connection: Connection) -> float:
        """Seconds until the next check; 0 once all have ended, which lowers the barrier."""
        if self._writers:
            self._writers &= self._read(connection)
        if self._writers:
            return self._pauses.pause()
        self._writers = None
        return 0.0

    def _read(self, connection: Connection) -> set[str]:
        return set(self._statements.value(connection, "writers"))
