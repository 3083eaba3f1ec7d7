"""Waits for the transactions that were writing at a moment, and may have notified no node."""

from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements

#: Seconds between two readings of the writers: the transactions with locks on the queue's tables.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.002, 1.0
#: Share of the time for which they have been waited for. What one of them has sent is found so
#: much later than it could be, and one that stays open for hours costs a reading a second.
_PAUSE_SHARE = 0.1


class WritersBarrier:
    def __init__(self, statements: ClaimStatements) -> None:
        self._statements = statements
        #: The transactions that have not ended yet; None while the barrier is down.
        self._writers: set[str] | None = None
        #: Monotonic times; the next check is due at the second.
        self._raised_at = 0.0
        self._check_at = 0.0

    @property
    def is_up(self) -> bool:
        return self._writers is not None

    def raise_(self, connection: Connection, now: float) -> None:
        self._writers = self._read(connection)
        self._raised_at = self._check_at = now

    def lower(self) -> None:
        self._writers = None

    def seconds_to_check(self, now: float) -> float:
        """While it is up. Not sooner, however often this is asked."""
        return max(0.0, self._check_at - now)

    def check(self, connection: Connection, now: float) -> bool:
        """Whether any have ended since the last check; once none is left, the barrier is down."""
        before = self._writers
        left = before & self._read(connection) if before else set()
        self._writers = left or None
        pause = (now - self._raised_at) * _PAUSE_SHARE
        self._check_at = now + min(max(_MIN_PAUSE_SECONDS, pause), _MAX_PAUSE_SECONDS)
        return not left or left != before

    def _read(self, connection: Connection) -> set[str]:
        return set(self._statements.value(connection, "writers"))
