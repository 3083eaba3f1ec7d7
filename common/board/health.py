"""How one process is doing, from what happened to it in the last five minutes. The time
is passed in, in seconds of one monotonic clock.

    HEALTHY         none of the below
    DEGRADED        more than 10 failures in a row; the next success ends it
    CRITICAL        more than 3 stuck threads, or more than 5 pool exhaustions, in the window;
                    ends when enough of them have left the window
    DATABASE_AWAY   wins over all: nobody is judged, and nothing that happens meanwhile counts
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

WINDOW = 300.0
#: "More than" these.
MAX_FAILURES = 10
MAX_STUCK = 3
MAX_EXHAUSTIONS = 5
#: So many events of a sort are remembered: two hundred times what is critical.
_MAX_KNOWN = 1_000


class Health(StrEnum):
    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    CRITICAL = "CRITICAL"
    DATABASE_AWAY = "DATABASE_AWAY"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """What was measured, and what it means."""

    last_success: float | None = None
    consecutive_failures: int = 0
    stuck_threads: int = 0
    pool_exhaustions: int = 0
    database_away: bool = False

    @property
    def health(self) -> Health:
        if self.database_away:
            return Health.DATABASE_AWAY
        if self.stuck_threads > MAX_STUCK or self.pool_exhaustions > MAX_EXHAUSTIONS:
            return Health.CRITICAL
        if self.consecutive_failures > MAX_FAILURES:
            return Health.DEGRADED
        return Health.HEALTHY

    @property
    def reasons(self) -> list[str]:
        """A sentence for each thing that is wrong, the gravest first."""
        if self.database_away:
            return ["the database is away"]
        minutes = f"{WINDOW / 60:g} minutes"
        return [
            f"{count} {what}, and more than {limit} are too many"
            for count, limit, what in (
                (self.stuck_threads, MAX_STUCK, f"stuck threads within {minutes}"),
                (self.pool_exhaustions, MAX_EXHAUSTIONS, f"pool exhaustions within {minutes}"),
                (self.consecutive_failures, MAX_FAILURES, "failures in a row"),
            )
            if count > limit
        ]

    def to_dict(self) -> dict[str, object]:
        return {
            "health": self.health.value,
            "reasons": self.reasons,
            "last_success": self.last_success,
            "consecutive_failures": self.consecutive_failures,
            "stuck_threads": self.stuck_threads,
            "pool_exhaustions": self.pool_exhaustions,
        }


class ProcessHealth:
    """Any thread tells what happened to it, any thread asks; exact under its lock.

    The lock is taken for the time of a few assignments and never while something blocks.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: The latest time that anybody came with: threads arrive in any order.
        self._now = float("-inf")
        self._last_success: float | None = None
        self._failures = 0
        self._stuck: deque[float] = deque(maxlen=_MAX_KNOWN)
        #: Executions that were counted as stuck, and when they were last said to be.
        self._known: dict[Hashable, float] = {}
        self._exhaustions: deque[float] = deque(maxlen=_MAX_KNOWN)
        #: Since when the database is away.
        self._away_since: float | None = None

    def succeeded(self, now: float) -> None:
        with self._lock:
            self._last_success = self._at(now)
            self._failures = 0

    def failed(self, now: float) -> None:
        with self._lock:
            self._at(now)
            if self._away_since is None:
                self._failures += 1

    def stuck(self, execution: Hashable, now: float) -> bool:
        """True if this execution (its slot and token, say) was not known to be stuck: it is
        counted once, however often and for however long it is seen."""
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
        """How long it was away; None if it was not, or another thread has ended the outage.
        Failures in a row begin anew: the last ones before the outage was noticed were its."""
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
        """Moves the window; an event leaves it when it is exactly as old as the window is long."""
        self._now = max(self._now, now)
        left = self._now - WINDOW
        for events in (self._stuck, self._exhaustions):
            while events and events[0] <= left:
                events.popleft()
        if self._known:
            self._known = {key: at for key, at in self._known.items() if at > left}
        return self._now
