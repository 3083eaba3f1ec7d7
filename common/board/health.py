"""The health of one process, from the events of the last five minutes. Pure.

HEALTHY         none of the below
DEGRADED        more than 10 failures in a row; the next success ends it
CRITICAL        more than 3 stuck threads, or more than 5 pool exhaustions, in the window;
                ends when enough of them have left the window
DATABASE_AWAY   wins over the others; events are not counted meanwhile
"""

from dataclasses import dataclass
from enum import StrEnum

#: Seconds for which a stuck thread and a pool exhaustion count.
WINDOW = 300.0
#: Counts that are still healthy.
MAX_FAILURES = 10
MAX_STUCK = 3
MAX_EXHAUSTIONS = 5


class Health(StrEnum):
    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    CRITICAL = "CRITICAL"
    DATABASE_AWAY = "DATABASE_AWAY"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """Times are seconds of the monotonic clock."""

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
        """A sentence for each limit that is exceeded, the worst first."""
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
