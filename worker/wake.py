"""When a worker that found nothing looks again: a notification, a timer, or the poll.

Arming says to the database that this worker waits; senders then notify. A sender that
looked before the flag was up notifies nobody, so whoever has armed afresh waits for the
transactions that were writing at that moment, claiming meanwhile, and once more when
they have ended. Only then is waiting safe:

    empty claim -> arm ── fresh ─> claim -> writers gone? ── no ─> claim, again ...
                    │                            └── yes ─> claim, the last one
                    └─ armed before ─> wait for the bell

`rest` does one such move each time it is called; between two of them the caller claims.
"""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import psycopg

from cmdbus.checks import check_seconds
from cmdbus.counters import Counter
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.worker.claims import Claims, Connection

logger = logging.getLogger(__name__)

MIN_POLL_SECONDS = 0.1
#: An arming outlives the longest rest by so much.
_ARMED_LONGER = 60.0
#: A worker that is busy for so long disarms.
_BUSY_SECONDS = 1.0
#: Between two looks at writers: growing, at least and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1
_PROMOTED_AT_ONCE = 1000
_SHORTEST_WAIT, _LONGEST_WAIT = 0.002, 5.0
_RELISTEN_FIRST, _RELISTEN_LONGEST = 0.1, 1.0
#: The listener asks its own session so often whether it is still there.
_PING_SECONDS = 10.0


def check_poll_interval(seconds: float) -> float:
    if check_seconds("poll_interval", seconds) < MIN_POLL_SECONDS:
        raise ValueError(f"poll_interval must be at least {MIN_POLL_SECONDS} s, not {seconds!r}")
    return float(seconds)


class Waking(Protocol):
    """What a crew needs to know when to look; see Wake here, and wired.py."""

    poll_interval: float

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def ring(self) -> None: ...
    def ring_if_resting(self) -> None: ...
    def working(self, connection: Connection) -> None: ...
    def stepped(self, *, full: bool) -> None: ...
    def rest(self, connection: Connection, busy: Callable[[], bool]) -> Counter | None: ...


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
        self._listener = Listener(listen, claims, self.ring)
        self._bell = threading.Event()
        #: Written by the leader: it waits for the bell, or is about to.
        self._resting = False
        #: The listener's session for which we are armed; 0 is none.
        self._armed_for = 0
        #: Transactions that may hold a send which notified nobody; None once they are gone.
        self._writers: set[str] | None = None
        self._pause = _FIRST_PAUSE
        self._busy_since: float | None = None
        self._locked_wait = _SHORTEST_WAIT
        #: When to look for due commands, also while busy.
        self._look_at = 0.0

    def start(self) -> None:
        self._listener.start()

    def stop(self) -> None:
        self._listener.stop()

    def ring(self) -> None:
        self._bell.set()

    def ring_if_resting(self) -> None:
        if self._resting:
            self._bell.set()

    def working(self, connection: Connection) -> None:
        """Before each claim: what cannot wait until the next rest. The bell is cleared here,
        so that whoever rings after the claim has looked ends the rest that follows."""
        self._bell.clear()
        now = time.monotonic()
        if now >= self._look_at:
            self._look(connection, leases=False)
        if self._busy_since is None:
            self._busy_since = now
        elif self._armed_for and now - self._busy_since > _BUSY_SECONDS:
            self._armed_for = 0
            self._claims.disarm(connection)

    def stepped(self, *, full: bool) -> None:
        """Nobody else is to be woken."""

    def rest(self, connection: Connection, busy: Callable[[], bool]) -> Counter | None:
        """One move towards waiting safely, or the wait. `busy` says that there is something
        else to do; it is asked only after `_resting` is set, as others look at that after
        they have made it true. Returns who ended it, if it was a wait for work."""
        self._resting = True
        try:
            return None if busy() else self._move(connection)
        finally:
            self._resting = False
            self._busy_since = None

    def _move(self, connection: Connection) -> Counter | None:
        seconds = self._look(connection, leases=True)
        if seconds <= 0:
            return Counter.WAKEUPS_TIMER
        session = self._listener.session
        fresh = self._claims.arm(connection, self._domains, seconds, seconds + _ARMED_LONGER)
        if fresh or session != self._armed_for:
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
        if self._bell.wait(seconds):
            return Counter.WAKEUPS_NOTIFY if self._listener.heard() else None
        return Counter.WAKEUPS_TIMER if seconds < self.poll_interval else Counter.WAKEUPS_POLL

    def _look(self, connection: Connection, *, leases: bool) -> float:
        """Promotes what is due; seconds until the next look is due, 0 if there is work."""
        if self._claims.promote(connection, _PROMOTED_AT_ONCE):
            self._look_at = 0.0
            return 0.0
        timers = self._claims.timers(connection, self._domains, self._types, leases=leases)
        waits = [seconds for seconds in timers if seconds is not None]
        if min(waits, default=1.0) > 0:
            self._locked_wait = _SHORTEST_WAIT
        else:
            # Due, and neither promoted nor claimed: in somebody else's hands just now.
            waits = [max(seconds, self._locked_wait) for seconds in waits]
            self._locked_wait = min(self._locked_wait * 2, _LONGEST_WAIT)
        wait = min([self.poll_interval, *waits])
        self._look_at = time.monotonic() + wait
        return wait


class Listener:
    """A thread with a LISTEN session of its own, which rings at each notification and
    whenever a new session begins: what was sent in the gap notified nobody."""

    def __init__(
        self, connect: Callable[[], Connection], claims: Claims, ring: Callable[[], None]
    ) -> None:
        self._connect = connect
        self._claims = claims
        self._ring = ring
        self._stopping = threading.Event()
        #: Its end interrupts the wait for notifications.
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="worker-listener", daemon=True)
        self._heard = False
        #: Counts sessions; written by the listener, read by the leader.
        self.session = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._waker.close()
        self._thread.join(_PING_SECONDS)
        self._woken.close()

    def heard(self) -> bool:
        """Whether there was a notification since this was last asked."""
        heard, self._heard = self._heard, False
        return heard

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            session = self.session
            try:
                with self._connect() as connection:
                    self._listen(connection)
            except (psycopg.Error, DatabaseUnavailableError) as error:
                if self.session > session:
                    # At once: what is sent in the gap is found only by the next session's ring.
                    pause = 0.0
                    logger.warning(
                        "the listening session is lost: %s; listening again as soon as it can",
                        " ".join(str(error).split()),
                    )
                else:
                    pause = min(max(pause * 2, _RELISTEN_FIRST), _RELISTEN_LONGEST)

    def _listen(self, connection: Connection) -> None:
        self._claims.listen(connection)
        self.session += 1
        self._ring()
        while not self._stopping.is_set():
            readable, _, _ = select.select(
                [connection.fileno(), self._woken.fileno()], [], [], _PING_SECONDS
            )
            if not readable:
                self._claims.ping(connection)
            if list(connection.notifies(timeout=0)):
                self._heard = True
                self._ring()
