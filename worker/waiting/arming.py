"""Says to the database whether anybody of this node waits, so that senders notify or do not.

    down ── somebody is parked ──> barrier ── the writers of that moment are gone ──> armed
     ^                                                                                 │
     └──────────────── nobody was parked for a second, or no session listens ──────────┘

A sender that looked before the flag was up notifies nobody: during the barrier workers are
woken again and again, and once more when those senders have ended. Every completed arming
ends with one byte on the wire. The board's number of the arming is what leaders trust: it
is cleared before the flag is taken down, and then it is looked again who is parked.

The time of the next look at the timers is published the same way, also while nobody waits:
whoever schedules something for earlier notifies. When it is put off, those that were writing
then have compared with the earlier time, or with none; after they have ended it is looked
once more.
"""

from collections.abc import Callable, Sequence

from cmdbus.board.board import Board
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.clock import time
from cmdbus.failpoints import ARMED, failpoint
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claims import Claims

#: An arming outlives the longest time until it is renewed by so much.
_LASTS_LONGER = 60.0
_BUSY_SECONDS = 1.0
#: Between two looks at the writers: growing.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1
#: While somebody is parked, seconds until it is looked whether he still is.
_LOOK_SECONDS = 0.5
#: Instead of a session: a statement failed half-way, so it is armed anew, or taken down again.
_UNSURE = -1


class Arming:
    """Used by one thread of the steward."""

    def __init__(
        self,
        claims: Claims,
        board: Board,
        worker_pipe: WakePipe,
        domains: Sequence[str],
        look: Callable[[], None],
    ) -> None:
        """`look` asks for a look at the timers, in the next round."""
        self._claims = claims
        self._board = board
        self._wake = worker_pipe
        self._domains = domains
        self._look = look
        #: The listening session that the flag is up for; 0 while it is down.
        self._session = 0
        self._number = 0
        #: None while there is no barrier.
        self._writers: set[str] | None = None
        self._pause = _FIRST_PAUSE
        self._parked_at = 0.0
        #: The time that is published as the one at which this node looks anyway.
        self._published = 0.0
        #: Those that were writing when it was put off; None once they are gone.
        self._unseen: set[str] | None = None
        self._unseen_pause = _FIRST_PAUSE

    def update(
        self,
        connection: Connection,
        *,
        parked: bool,
        session: int,
        looks_at: float,
        now: float | None = None,
    ) -> float:
        """One move; seconds until the next. `session` numbers the one that listens, 0 is none;
        `looks_at` is when this node looks at its timers. Times are monotonic."""
        now = time.monotonic() if now is None else now
        wait = self._move(connection, parked, session, looks_at, now)
        return min(wait, self._see(connection))

    def _move(
        self, connection: Connection, parked: bool, session: int, looks_at: float, now: float
    ) -> float:
        if parked:
            self._parked_at = now
        if not session:
            return self._lower(connection, looks_at, now, listening=False)
        if now - self._parked_at > _BUSY_SECONDS:
            return self._lower(connection, looks_at, now, listening=True)
        if session != self._session or looks_at != self._published:
            self._raise(connection, session, looks_at, now)
        if self._writers is not None:
            return self._barrier(connection)
        return _LOOK_SECONDS

    @property
    def is_up(self) -> bool:
        """The flag; perhaps not for all senders yet."""
        return self._session > 0

    def forget(self) -> None:
        """Whatever was said to the database, nobody knows whether it still holds."""
        self._board.set_armed(0)
        self._session, self._published, self._writers, self._unseen = 0, 0.0, None, None

    def _raise(self, connection: Connection, session: int, looks_at: float, now: float) -> None:
        before, self._session = self._session, _UNSURE
        fresh = self._publish(connection, self._domains, looks_at, now)
        if fresh or session != before:
            failpoint(ARMED)
            self._board.set_armed(0)
            self._writers = self._claims.writers(connection)
            self._pause = _FIRST_PAUSE
            self._wake.put()
        self._session = session

    def _barrier(self, connection: Connection) -> float:
        assert self._writers is not None
        self._writers &= self._claims.writers(connection)
        if self._writers:
            self._wake.put()
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            return self._pause
        self._writers = None
        self._number += 1
        self._board.set_armed(self._number)
        self._wake.put()
        return _LOOK_SECONDS

    def _lower(
        self, connection: Connection, looks_at: float, now: float, *, listening: bool
    ) -> float:
        """The number first; whoever parks from now on calls. The time of the next look stays
        published while somebody listens."""
        if self._session:
            self._board.set_armed(0)
            self._session, self._writers = _UNSURE, None
            self._publish(connection, [], looks_at, now)
            self._session = 0
            return 0.0  # Who parked before the number was cleared has not called.
        if listening and looks_at != self._published:
            self._publish(connection, [], looks_at, now)
        return float("inf")

    def _publish(
        self, connection: Connection, domains: Sequence[str], looks_at: float, now: float
    ) -> bool:
        looks_in = max(0.0, looks_at - now)
        fresh = self._claims.arm(connection, domains, looks_in, looks_in + _LASTS_LONGER)
        if looks_at > self._published:
            self._unseen = self._claims.writers(connection)
            self._unseen_pause = _FIRST_PAUSE
        self._published = looks_at
        return fresh

    def _see(self, connection: Connection) -> float:
        if self._unseen is None:
            return float("inf")
        if self._unseen:
            self._unseen &= self._claims.writers(connection)
        if self._unseen:
            self._unseen_pause = min(self._unseen_pause * 2, _LONGEST_PAUSE)
            return self._unseen_pause
        self._unseen = None
        self._look()
        return 0.0
