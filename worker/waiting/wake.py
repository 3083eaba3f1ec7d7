"""When a worker that found nothing looks again: a notification, a timer, or the poll.

Arming says to the database that this worker waits; senders then notify. A sender that
looked before the flag was up notifies nobody, so whoever has armed afresh waits for the
transactions that were writing at that moment, claiming meanwhile, and once more when
they have ended. Only then is waiting safe:

    empty claim -> arm ── fresh ─> claim -> writers gone? ── no ─> claim, again ...
                    │                            └── yes ─> claim, the last one
                    └─ armed before ─> wait for the bell

The same holds for when it looks for due commands, which is published with the arming: whoever
schedules something for later than that notifies nobody. So the time is put off only once it
has come, and then those that were writing at that moment are waited for.

`rest` does one such move each time it is called; between two of them the caller claims.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from cmdbus.board.counters import Counter
from cmdbus.checks import check_seconds
from cmdbus.clock import time
from cmdbus.failpoints import ARMED, failpoint
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.waiting.listener import Listener
from cmdbus.worker.waiting.timers import Timers

MIN_POLL_SECONDS = 0.1
#: An arming outlives the longest rest by so much.
_ARMED_LONGER = 60.0
#: A worker that is busy for so long disarms, and one that is looks so often for due commands.
_BUSY_SECONDS = 1.0
#: Between two looks at writers: growing, at least and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1


def check_poll_interval(seconds: float) -> float:
    if check_seconds("poll_interval", seconds) < MIN_POLL_SECONDS:
        raise ValueError(f"poll_interval must be at least {MIN_POLL_SECONDS} s, not {seconds!r}")
    return float(seconds)


class Waiter(Protocol):
    """What a crew needs to know when to look; see Wake here, and wired.py."""

    poll_interval: float

    @property
    def pauses(self) -> int:
        """How often it was heard that a domain is paused."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def wake(self) -> None: ...
    def wake_if_waiting(self) -> None: ...
    def before_claim(self, connection: Connection) -> None: ...
    def after_claim(self, *, full: bool) -> None: ...
    def wait_for_work(
        self, connection: Connection, busy: Callable[[], bool], until: float = ...
    ) -> Counter | None: ...
    def only_own(self) -> bool: ...


class Wake:
    """The bell of one worker. Only who has the lead calls `rest` and `working`."""

    def __init__(
        self,
        claims: Claims,
        domains: Sequence[str],
        types: Sequence[str],
        poll_interval: float,
        listen: Callable[[], Connection],
    ) -> None:
        self._claims = claims
        self._domains = domains
        self._types = types
        self.poll_interval = check_poll_interval(poll_interval)
        self._timers = Timers(claims, domains, types)
        #: Written by the listener; see Waking.
        self.pauses = 0
        #: Set by the listener: there was a notification since this was last asked.
        self._notified = False
        self._listener = Listener(listen, claims, began=self._began, heard=self._hear)
        self._bell = threading.Event()
        #: Written by the leader: it waits for the bell, or is about to.
        self._resting = False
        #: The listener's session for which we are armed; 0 is none.
        self._armed_for = 0
        #: Transactions that may hold a send which notified nobody; None once they are gone.
        self._writers: set[str] | None = None
        self._pause = _FIRST_PAUSE
        self._busy_since: float | None = None
        #: When to look for due commands, also while busy.
        self._look_at = 0.0
        #: Set by the listener: something is due earlier than was known.
        self._due_earlier = False
        #: The time that senders were told.
        self._published = 0.0

    def start(self) -> None:
        self._listener.start()

    def stop(self) -> None:
        self._listener.stop()

    def wake(self) -> None:
        self._bell.set()

    def wake_if_waiting(self) -> None:
        if self._resting:
            self._bell.set()

    def before_claim(self, connection: Connection) -> None:
        """Before each claim: what cannot wait until the next rest. The bell is cleared here,
        so that whoever rings after the claim has looked ends the rest that follows."""
        self._bell.clear()
        now = time.monotonic()
        if self._due_earlier or now >= self._look_at:
            self._due_earlier = False
            seconds = self._timers.read(connection, leases=False)
            self._look_at = now + min(seconds, _BUSY_SECONDS)
        if self._busy_since is None:
            self._busy_since = now
        elif self._armed_for and now - self._busy_since > _BUSY_SECONDS:
            self._armed_for = 0
            self._claims.disarm(connection)

    def after_claim(self, *, full: bool) -> None:
        """Nobody else is to be woken."""

    def wait_for_work(
        self, connection: Connection, busy: Callable[[], bool], until: float = float("inf")
    ) -> Counter | None:
        """One move towards waiting safely, or the wait. `busy` says that there is something
        else to do; it is asked only after `_resting` is set, as others look at that after
        they have made it true. Returns who ended it, if it was a wait for work; that is over at
        the monotonic time `until`."""
        self._resting = True
        try:
            return None if busy() else self._move(connection, until)
        finally:
            self._resting = False
            self._busy_since = None

    def only_own(self) -> bool:
        """After a rest that nobody ended: whether only our own outcomes can have rung, so that
        settling them is enough, and there is nothing new to claim. Clears the bell."""
        self._bell.clear()
        armed = self._armed_for != 0 and self._armed_for == self._listener.session
        return armed and self._writers is None and not self._notified

    def _move(self, connection: Connection, until: float) -> Counter | None:
        self._due_earlier = False
        seconds = min(self.poll_interval, self._timers.read(connection, leases=True))
        if seconds <= 0:
            self._look_at = 0.0
            return Counter.WAKEUPS_TIMER
        otherwise = Counter.WAKEUPS_TIMER if seconds < self.poll_interval else Counter.WAKEUPS_POLL
        now = time.monotonic()
        put_off = self._published <= now
        looks_at = now + seconds if put_off else min(now + seconds, self._published)
        seconds = looks_at - now
        session = self._listener.session
        fresh = self._claims.arm(connection, self._domains, seconds, seconds + _ARMED_LONGER)
        self._look_at = self._published = looks_at
        if fresh or put_off or session != self._armed_for:
            failpoint(ARMED)
            self._armed_for = session
            self._writers = self._claims.writers(connection)
            self._pause = _FIRST_PAUSE
            return Counter.WAKEUPS_BARRIER
        if self._writers is not None:
            self._writers &= self._claims.writers(connection)
            if self._writers:
                self._bell.wait(min(self._pause, seconds))
                self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            else:
                self._writers = None
            return Counter.WAKEUPS_BARRIER
        if until - time.monotonic() < seconds:
            seconds, otherwise = max(0.0, until - time.monotonic()), Counter.WAKEUPS_TIMER
        if self._bell.wait(seconds):
            notified, self._notified = self._notified, False
            return Counter.WAKEUPS_NOTIFY if notified else None
        return otherwise

    def _began(self) -> None:
        if self._listener.session > 1:  # Notifications sent in the gap reached no session.
            self.pauses += 1
        self.wake()

    def _hear(self, channels: set[str]) -> None:
        if any(channel.endswith("_pause") for channel in channels):
            self.pauses += 1
        if any(channel.endswith("_due") for channel in channels):
            self._due_earlier = True
        self._notified = True
        self.wake()
