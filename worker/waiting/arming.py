"""Asks senders for notifications while a worker of this node waits: arms and disarms.

    down ── a leader is parked ──> barrier ── the writers of that moment have ended ──> armed
     ^                                                                                   │
     └────── no leader was parked for a second, or no session listens ───────────────────┘

A sender that read the flag before it was up notifies no node: during the barrier workers are
woken at each check, and once more when those senders have ended. Every completed arming puts
one byte into the pipe. Leaders trust the number of the arming on the board: it is cleared before
the flag is taken down, and then it is read again whether a leader is parked.

The time at which this node reads its timers is published the same way, also while no worker
waits: a sender that schedules something for earlier notifies. When that time is put off, the
senders that are writing have compared theirs with the earlier one, or have found none; whenever
some of them have ended, the timers are read once more.
"""

from collections.abc import Callable, Sequence

from cmdbus.board.board import Board
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.failpoints import ARMED, failpoint
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.writers_barrier import WritersBarrier

#: Seconds by which an arming outlives the time of its renewal.
_SPARE_SECONDS = 60.0
#: Seconds without a parked leader after which the node is disarmed.
_BUSY_SECONDS = 1.0
#: Seconds between checks for a parked leader.
_CHECK_SECONDS = 0.5
#: In place of a session's number: a statement failed half-way, so it is repeated.
_UNSURE = -1


class Arming:
    """Used by one thread of the steward."""

    def __init__(
        self,
        statements: ClaimStatements,
        board: Board,
        worker_pipe: WakePipe,
        domains: Sequence[str],
        reread_timers: Callable[[], None],
    ) -> None:
        """`reread_timers` has the next round read the timers."""
        self._statements = statements
        self._board = board
        self._wake = worker_pipe
        self._domains = domains
        self._reread_timers = reread_timers
        #: The listening session that the flag is up for; 0 while it is down.
        self._session = 0
        self._number = 0
        #: Up from the raising of the flag to the completed arming.
        self._barrier = WritersBarrier(statements)
        self._parked_at = 0.0
        #: The published time at which this node reads its timers anyway.
        self._published = 0.0
        #: Up from the delay of that time until its writers have ended.
        self._put_off = WritersBarrier(statements)

    def update(
        self,
        connection: Connection,
        *,
        parked: bool,
        session: int,
        reads_at: float,
        now: float,
    ) -> float:
        """Makes one move; returns the seconds until the next. `session` is the number of the
        listening session, 0 is none; `reads_at` is when this node reads its timers. Times are
        monotonic."""
        wait = self._move(connection, parked, session, reads_at, now)
        return min(wait, self._check_put_off(connection, now))

    def _move(
        self, connection: Connection, parked: bool, session: int, reads_at: float, now: float
    ) -> float:
        if parked:
            self._parked_at = now
        if not session:
            return self._lower(connection, reads_at, now, listening=False)
        if now - self._parked_at > _BUSY_SECONDS:
            return self._lower(connection, reads_at, now, listening=True)
        if session != self._session or reads_at != self._published:
            self._raise(connection, session, reads_at, now)
        if self._barrier.is_up:
            return self._complete(connection, now)
        return _CHECK_SECONDS

    @property
    def is_up(self) -> bool:
        """Whether the flag is up, perhaps not for all senders yet."""
        return self._session > 0

    def forget(self) -> None:
        """Called when the session is lost: the server may have forgotten what was published."""
        self._board.armed = 0
        self._session, self._published = 0, 0.0
        self._barrier.lower()
        self._put_off.lower()

    def _raise(self, connection: Connection, session: int, reads_at: float, now: float) -> None:
        before, self._session = self._session, _UNSURE
        fresh = self._publish(connection, self._domains, reads_at, now)
        if fresh or session != before:
            failpoint(ARMED)
            self._board.armed = 0
            self._barrier.raise_(connection, now)
            self._wake.put()
        self._session = session

    def _complete(self, connection: Connection, now: float) -> float:
        """Arms once the writers have ended; each check wakes a worker."""
        if pause := self._barrier.seconds_to_check(now):
            return pause  # A leader that parks calls more often.
        self._barrier.check(connection, now)
        self._wake.put()
        if self._barrier.is_up:
            return self._barrier.seconds_to_check(now)
        self._number += 1
        self._board.armed = self._number
        return _CHECK_SECONDS

    def _lower(
        self, connection: Connection, reads_at: float, now: float, *, listening: bool
    ) -> float:
        """Clears the number first: a leader that parks from now on calls the steward. The time
        of the next reading stays published while a session listens."""
        if self._session:
            self._board.armed = 0
            self._session = _UNSURE
            self._barrier.lower()
            self._publish(connection, [], reads_at, now)
            self._session = 0
            return 0.0  # A leader that parked before the number was cleared has not called.
        if listening and reads_at != self._published:
            self._publish(connection, [], reads_at, now)
        return float("inf")

    def _publish(
        self, connection: Connection, domains: Sequence[str], reads_at: float, now: float
    ) -> bool:
        reads_in = max(0.0, reads_at - now)
        fresh = self._statements.value(
            connection,
            "arm",
            node=self._statements.incarnation,
            domains=list(domains),
            reads_in=reads_in,
            lasts=reads_in + _SPARE_SECONDS,
        )
        if reads_at > self._published:
            self._put_off.raise_(connection, now)
        self._published = reads_at
        return bool(fresh)

    def _check_put_off(self, connection: Connection, now: float) -> float:
        if not self._put_off.is_up:
            return float("inf")
        if pause := self._put_off.seconds_to_check(now):
            return pause
        if self._put_off.check(connection, now):
            self._reread_timers()
            return 0.0
        return self._put_off.seconds_to_check(now)
