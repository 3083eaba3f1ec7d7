"""Counts what happens to one process, for its health. Times are seconds of one monotonic clock,
and are passed in."""

from collections import deque
from collections.abc import Hashable
from threading import Lock

from cmdbus.board.health import WINDOW, HealthReport

#: Events of one sort that are kept: two hundred times the critical number.
_MAX_EVENTS = 1_000


class ProcessHealth:
    """Every thread of the process reports its events, and any may read; exact under its lock,
    which is held for a few assignments and never while a thread blocks."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: The latest time of an event: threads report in any order.
        self._now = float("-inf")
        self._last_success: float | None = None
        self._failures = 0
        self._stuck: deque[float] = deque(maxlen=_MAX_EVENTS)
        #: Executions that were counted as stuck, and the time at which each was reported last.
        self._known: dict[Hashable, float] = {}
        self._exhaustions: deque[float] = deque(maxlen=_MAX_EVENTS)
        #: The beginning of the outage of the database, if there is one.
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

    def stuck(self, execution: Hashable, now: float) -> bool:
        """True if this execution was not known to be stuck. It is counted once, as its thread is
        reported again and again."""
        with self._lock:
            at = self._at(now)
            if self._away_since is not None:
                return False
            new = execution not in self._known
            self._known[execution] = at
            if new:
                self._stuck.append(at)
            return new

    def pool_exhausted(self, now: float) -> None:
        with self._lock:
            at = self._at(now)
            if self._away_since is None:
                self._exhaustions.append(at)

    def database_away(self, now: float) -> None:
        with self._lock:
            at = self._at(now)
            if self._away_since is None:
                self._away_since = at

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

    def _at(self, now: float) -> float:
        """Moves the window, whose oldest events are a little younger than WINDOW."""
        self._now = max(self._now, now)
        left = self._now - WINDOW
        for events in (self._stuck, self._exhaustions):
            while events and events[0] <= left:
                events.popleft()
        if self._known:
            self._known = {key: at for key, at in self._known.items() if at > left}
        return self._now
