"""Promotes due commands, cancels expired ones, and reads when the next timer is due."""

from collections.abc import Callable, Collection, Sequence
from math import inf

import psycopg

from cmdbus.arrays import numbers
from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.failpoints import PROMOTED, failpoint
from cmdbus.retry import SUSPECT_LOSSES
from cmdbus.worker.claims.claim import Connection, TimerReading
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.floors import pause_after
from cmdbus.worker.waiting.due_commands import EXPIRE, PROMOTE, DueCommands

#: Seconds between two readings while due rows are locked by other sessions.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.002, 5.0
#: Seconds until leases are read again after a statement timeout.
_RETRY_LEASES_SECONDS = 60.0
#: Seconds before the earliest due time at which the timers are read again: by then the
#: database's clock may have gained on the one by which a process sleeps.
GRACE_SECONDS = 0.05
#: Seconds for which a backlog of due commands may keep the timers from being read: others expire.
MAX_UNREAD_SECONDS = 0.5


def seconds_to_reading(due: float, fallback: float) -> float:
    """Seconds to sleep before the timers are read again, if the earliest is due in `due`
    seconds (infinity: there is none). Within the grace it is the rest: each timer is read ahead of
    its time only once."""
    ahead = due - GRACE_SECONDS if due > GRACE_SECONDS else due
    return max(0.0, min(ahead, fallback))


class Timers:
    def __init__(
        self,
        statements: ClaimStatements,
        domains: Sequence[str],
        types: Sequence[str],
        timeout: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`timeout`: see DueCommands."""
        self._statements = statements
        self._promotion = DueCommands(statements, PROMOTE, timeout)
        self._expiry = DueCommands(statements, EXPIRE, timeout)
        self._domains, self._types = list(domains), list(types)
        self._locked_pauses = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        #: Monotonic time of the next reading of leases, which walks over all rows.
        self._leases_at = float("-inf")
        self._moved = False
        #: Monotonic time from which on the timers are read although commands were promoted.
        self._read_at = float("-inf")
        #: Monotonic time at which a schedule needs a steward; see ScheduleRound.
        self.ticks_at = inf
        #: Monotonic time until which a worker was woken for each rate that had let a command start
        #: and each breaker that had let a suspect: the readings look for those after it.
        self.opened_until = time.monotonic()
        #: TimerReading.bridges of the latest reading; see BridgeRound.
        self.bridges = inf
        #: The latest reading.
        self.seen = TimerReading(inf, inf, inf, suspects=False, queue_usage=0.0, pages=0)

    def promote_and_read(
        self, connection: Connection, *, leases: bool, own: Collection[int] = ()
    ) -> float:
        """Seconds until the next command is due or expires or, with `leases`, until a lease ends
        that is of none of the `own` incarnations; 0 if some were due or had expired. Renews the
        node before it waits for the end of a lease."""
        self._moved = self._promotion.step(connection)
        if self._moved:
            failpoint(PROMOTED)
            if time.monotonic() < self._read_at:
                return 0.0
        began = time.monotonic()
        seen = self._read(connection, leases, own)
        now = time.monotonic()
        self._read_at, self.ticks_at = now + MAX_UNREAD_SECONDS, now + seen.ticks
        self.bridges = seen.bridges
        # No statement for it while nothing has expired.
        if seen.expires <= 0 and self._expiry.step(connection):
            self._moved = True
        if self._moved:
            return 0.0
        if seen.lease_ends < inf:
            # Leases end only while a node can renew, as this shows.
            self._statements.renew(connection, {})
            renewed = min(seen.lease_ends, self._statements.renewal_seconds)
            seen = seen._replace(lease_ends=renewed)
        self.seen, self.opened_until = seen, began
        timers = seen.due, seen.expires, seen.lease_ends, seen.opens
        if min(timers) > 0:
            self._locked_pauses.reset()
            return min(timers)
        # Due, and neither moved nor claimed: other sessions have locked the rows. Or a rate let a
        # command start before this reading.
        pause = self._locked_pauses.pause()
        return min(*(max(seconds, pause) for seconds in timers), seen.next_due, seen.next_expires)

    def wakes_no_worker_within(self, seconds: float) -> bool:
        """By the latest reading: commands are due or expire within this time, but no lease ends and
        no rate lets a command start."""
        if self._moved:
            return True
        wakes = min(self.seen.lease_ends, self.seen.opens)
        return min(self.seen.due, self.seen.expires) <= seconds < wakes

    def _read(self, connection: Connection, leases: bool, own: Collection[int]) -> TimerReading:
        """Leaves pauses between readings of leases that take many pages."""
        values = {
            "domains": self._domains,
            "types": self._types,
            "priorities": self._statements.band,
            "own": numbers(own),
        }

        def read(leases: bool) -> TimerReading:
            row = self._statements.row(
                connection,
                "read_timers",
                **values,
                leases=leases,
                losses=SUSPECT_LOSSES,
                node=self._statements.node,
                unseen=time.monotonic() - self.opened_until,
            )
            assert row is not None
            return TimerReading._make(inf if value is None else value for value in row)

        now = time.monotonic()
        walks = leases and now >= self._leases_at
        try:
            reading = read(walks)
        except psycopg.errors.QueryCanceled:
            if not walks:
                raise
            # Too many rows: a lease that ends is found by the claim of a worker that polls.
            self._leases_at = time.monotonic() + _RETRY_LEASES_SECONDS
            return read(False)
        if walks:
            pause = min(pause_after(reading.pages), reading.lease_ends)
            self._leases_at = time.monotonic() + pause
        elif leases:
            # Others may have claimed since then: they are read again after the pause.
            return reading._replace(lease_ends=self._leases_at - now)
        return reading
