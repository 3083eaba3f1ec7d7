"""The ladder of timeouts, and every interval that derives from it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from cmdbus.checks import check_seconds

#: Seconds that a process may take to import the application and to open its connections; also
#: those of the preflight, with its checks.
BOOT_SECONDS = 120.0
#: Seconds for the steward to release the claims of processes killed at the stop deadline.
RESCUE_SECONDS = 3.0
#: Seconds until an idle session notices that the database is away: the listener's ping and its
#: answer.
OUTAGE_NOTICE_SECONDS = 15.0
#: A session's timeouts are 2**31 - 1 milliseconds at most.
_MAX_THREAD_SECONDS = 24 * 86400.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; `statement < lease < thread < watchdog`, `pool <= lease` and `thread` at most 24
    days, or a ValueError.

    The ladder binds the defaults: a handler's own `timeout` is any positive number. Each of them is
    an option, as `--thread-timeout`; that of `lease` is `--visibility-timeout`.
    """

    #: One SQL statement; the server ends it.
    statement: float = 25.0
    #: A wait for a connection, before anything is claimed.
    pool: float = 30.0
    #: The claims of a lost worker, which others can claim when it ends.
    lease: float = 30.0
    #: One execution of a handler, whose `timeout` replaces it; and an idle transaction of a session
    #: that serves no handler.
    thread: float = 35.0
    #: A whole process.
    watchdog: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_seconds(f"{field.name} timeout", getattr(self, field.name))
        if wrong := list(self._wrong()):
            raise ValueError("; ".join(wrong))

    @property
    def renewal(self) -> float:
        """Seconds between two renewals of a lease: two may fail before it ends."""
        return self.lease / 3

    @property
    def max_lock_wait(self) -> float:
        """Seconds that a worker's statement may wait for a lock: the lease must survive it."""
        return self.lease / 2

    @property
    def stuck_grace(self) -> float:
        """Seconds that a slot may be overdue before its process is replaced."""
        return self.watchdog - self.thread

    def statement_for(self, allowed: float) -> float:
        """The statement timeout of a handler that is allowed these seconds: as far below them as in
        the ladder, and never less than the ladder's own."""
        return max(self.statement, allowed - (self.thread - self.statement))

    def idle_for(self, allowed: float) -> float:
        """The limit on an idle transaction of a handler that is allowed these seconds. The session
        of one that times out must last until housekeeping has read its activity."""
        return allowed + self.stuck_grace

    def _wrong(self) -> Iterator[str]:
        for lower, upper in (("statement", "lease"), ("lease", "thread"), ("thread", "watchdog")):
            if not getattr(self, lower) < getattr(self, upper):
                yield (
                    f"{lower} timeout ({getattr(self, lower):g} s) must be less than "
                    f"{upper} timeout ({getattr(self, upper):g} s)"
                )
        if self.thread > _MAX_THREAD_SECONDS:
            yield (
                f"thread timeout ({self.thread:g} s) must not be more than 24 days, which is about "
                f"the longest timeout that PostgreSQL has"
            )
        if self.pool > self.lease:
            yield (
                f"pool timeout ({self.pool:g} s) must not be more than "
                f"lease timeout ({self.lease:g} s)"
            )
