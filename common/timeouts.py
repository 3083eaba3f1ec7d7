"""The ladder of timeouts: each rung bounds what the one below could not. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from cmdbus.checks import check_seconds

#: Seconds that a process may take to import the application and to open its connections.
BOOT_SECONDS = 120.0
#: Seconds for the steward to release the claims of processes killed at the stop deadline.
RESCUE_SECONDS = 3.0
#: Seconds until an idle session notices that the database is away: the listener's ping and its
#: answer.
OUTAGE_NOTICE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; `statement < lease < thread < watchdog` and `pool <= lease`, or a ValueError.

    The ladder binds the defaults: a handler's own `timeout` is any positive number.
    """

    #: One SQL statement; the server ends it.
    statement: float = 25.0
    #: Waiting for a connection, before anything is claimed.
    pool: float = 30.0
    #: A worker that is gone: its commands are claimable again after this.
    lease: float = 30.0
    #: One execution of a handler.
    thread: float = 35.0
    #: A whole process.
    watchdog: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_seconds(f"{field.name} timeout", getattr(self, field.name))
        if wrong := list(self._wrong()):
            raise ValueError("; ".join(wrong))

    def statement_for(self, thread: float) -> float:
        """Of a handler with this timeout: as far below it as in the ladder, and never less than
        the ladder's own."""
        return max(self.statement, thread - (self.thread - self.statement))

    def idle_for(self, thread: float) -> float:
        """Idle in an open transaction: longer than the verdict takes, which reads the session
        first."""
        return thread + self.watchdog - self.thread

    def _wrong(self) -> Iterator[str]:
        for lower, upper in (("statement", "lease"), ("lease", "thread"), ("thread", "watchdog")):
            if not getattr(self, lower) < getattr(self, upper):
                yield (
                    f"{lower} timeout ({getattr(self, lower):g} s) must be less than "
                    f"{upper} timeout ({getattr(self, upper):g} s)"
                )
        if self.pool > self.lease:
            yield (
                f"pool timeout ({self.pool:g} s) must not be more than "
                f"lease timeout ({self.lease:g} s)"
            )
