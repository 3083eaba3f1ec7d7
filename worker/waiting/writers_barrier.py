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
        #: Monotonic time of the next check.
        self._check_at = float("-inf")

    @property
    def is_up(self) -> bool:
        return self._writers is not None

    @property
    def count(self) -> int:
        """The number of transactions that have not ended yet, as of the latest check."""
        return len(self._writers or ())

    def raise_(self, connection: Connection) -> None:
        self._writers = self._read(connection)
        self._pauses.reset()
        self._check_at = float("-inf")

    def lower(self) -> None:
        self._writers = None

    def seconds_to_check(self, now: float) -> float:
        """Above 0: it is too early for the next check."""
        return max(0.0, self._check_at - now)

    def check(self, connection: Connection, now: float) -> float:
        """Seconds until the next check; 0 once all have ended, which lowers the barrier."""
        if self._writers:
            self._writers &= self._read(connection)
        if self._writers:
            pause = self._pauses.pause()
            self._check_at = now + pause
            return pause
        self._writers = None
        return 0.0

    def _read(self, connection: Connection) -> set[str]:
        return set(self._statements.value(connection, "writers"))
