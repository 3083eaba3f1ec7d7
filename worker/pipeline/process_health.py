"""Counts what happens to one process, for its health. Monotonic times are passed in."""

from collections import deque
from threading import Lock

from cmdbus.board.health import WINDOW, HealthReport

#: Events of one sort that are kept: two hundred times the critical number.
_MAX_EVENTS = 1_000


class ProcessHealth:
    """Used by every thread: the lock is held for a few assignments."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: The latest time of an event: threads report in any order.
        self._now = float("-inf")
        self._last_success: float | None = None
        self._failures = 0
        self._stuck: deque[float] = deque(maxlen=_MAX_EVENTS)
        self._exhaustions: deque[float] = deque(maxlen=_MAX_EVENTS)
        #: Pool exhaustions since the start, also during outages.
        self.exhaustions = 0
        #: The beginning of the database's outage.
        self._away_since: float | None = None

    def ended(self, now: float, *, succeeded: bool = False, failures: int = 0) -> None:
        """Executions in order: whether any has succeeded, and the failures since the last one
        that has, or since the last call."""
        with self._lock:
            at = self._at(now)
            if succeeded:
                self._last_success, self._failures = at, 0
            if self._away_since is None:
                self._failures += failures

    def stuck(self, now: float) -> None:
        """Once for each execution that hangs."""
        self._add(self._stuck, now)

    def pool_exhausted(self, now: float) -> None:
        self._add(self._exhaustions, now)
        self.exhaustions += 1

    def database_away(self, now: float) -> None:
        with self._lock:
            at = self._at(now)
            if self._away_since is None:
                self._away_since = at

    @property
    def is_database_away(self) -> bool:
        return self._away_since is not None

    def database_back(self, now: float) -> float | None:
        """Seconds of the outage; None if there was none, or another thread has ended it. Failures
        in a row start from 0: those just before the outage were probably caused by it."""
        with self._lock:
            at, since = self._at(now), self._away_since
            if since is None:
                return None
            self._away_since, self._failures = None, 0
            return at - since

    def levels(self, now: float) -> HealthReport:
        with self._lock:
            self._at(now)
            return HealthReport(
                last_success=self._last_success,
                consecutive_failures=self._failures,
                stuck_threads=len(self._stuck),
                pool_exhaustions=len(self._exhaustions),
                database_away=self._away_since is not None,
            )

    def _add(self, events: deque[float], now: float) -> None:
        with self._lock:
            at = self._at(now)
            if self._away_since is None:
                events.append(at)

    def _at(self, now: float) -> float:
        """Moves the window, whose oldest events are a little younger than WINDOW."""
        self._now = max(self._now, now)
        left = self._now - WINDOW
        for events in (self._stuck, self._exhaustions):
            while events and events[0] <= left:
                events.popleft()
        return self._now
