"""The number of threads of a worker: fixed, changed by the program, or found within a range.

Connections follow the threads: those of a pool of the worker's own. A pool of the caller's must
have them all.
"""

import logging
from functools import partial
from threading import RLock

from cmdbus.board.board import Board
from cmdbus.board.seats import Seat
from cmdbus.board.threads import StepReason, ThreadsView
from cmdbus.checks import check_whole, shown
from cmdbus.counting import count_of
from cmdbus.database.pool import SessionPool
from cmdbus.exits import cannot_start_thread
from cmdbus.settings import ThreadRange
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.pools import HEADROOM, Pool, check_pool
from cmdbus.worker.load_meter import LoadMeter
from cmdbus.worker.pipeline.telemetry import SLOTS, NoSlotError, Telemetry
from cmdbus.worker.thread_policy import ThreadPolicy
from cmdbus.worker.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

#: Half of the slots: hung threads keep theirs until they return.
MAX_THREADS = SLOTS // 2
#: Seconds between two readings after which the process has stalled: they say nothing.
_STALL_SECONDS = 5.0

#: A number of threads, or the least and the most.
Threads = int | tuple[int, int] | ThreadRange


class Concurrency:
    """`adapt` is called by the main thread, `set` by any."""

    def __init__(self, threads: Threads, telemetry: Telemetry, timeouts: Timeouts) -> None:
        self._bounds = check_concurrency(threads)
        self.number = self._bounds.least
        self._telemetry, self._timeouts = telemetry, timeouts
        #: For a change of the number. Reentrant: a signal handler may change it.
        self._lock = RLock()
        #: While the worker runs.
        self.threads: ThreadPool | None = None
        self.pool: Pool | SessionPool | None = None
        #: None if the number is fixed.
        self._policy: ThreadPolicy | None = None
        self._meter: LoadMeter | None = None
        #: Pool exhaustions, and threads without a session, that the policy knows of.
        self._shortages = 0

    def __str__(self) -> str:
        bounds = self._bounds
        if bounds.least == bounds.most:
            return count_of(self.number, "thread")
        return f"{count_of(self.number, 'thread')} of {bounds}"

    def succeed(self, board: Board, seat: Seat) -> None:
        """Begins with the number of the process that the one of this seat replaces."""
        own = board.seat_view(seat.index, claims=False)
        earlier = [
            other
            for other in board.snapshot(claims=False).seats
            if other.for_worker and other.number == own.number and other.index != own.index
        ]
        latest = max(earlier, key=lambda other: other.generation, default=own)
        if latest.threads is not None:
            self.number = self._clamp(latest.threads.now)

    def check(self, pool: Pool | SessionPool, bounds: ThreadRange | None = None) -> None:
        """Refuses a pool of the caller's that is too small for the most threads."""
        if not isinstance(pool, SessionPool):
            check_pool(pool, (bounds or self._bounds).most, self._timeouts)

    def begin(self, threads: ThreadPool, pool: Pool | SessionPool) -> None:
        """Starts the threads: as many as are due by now."""
        with self._lock:
            self.check(pool)  # The number may have changed since it was opened.
            self.threads, self.pool = threads, pool
            self._begin(self._bounds)

    def end(self) -> None:
        with self._lock:
            self.threads = self.pool = self._policy = self._meter = None

    def set(self, threads: Threads) -> None:
        bounds = check_concurrency(threads)
        if self.pool is not None:
            self.check(self.pool, bounds)
        with self._lock:
            self._begin(bounds)

    def _begin(self, bounds: ThreadRange) -> None:
        self._bounds, self.number = bounds, self._clamp(self.number, bounds)
        self._policy = self._meter = None
        if self.threads is None:
            return
        if bounds.least < bounds.most:
            self._policy = ThreadPolicy(bounds, self.number)
            self._meter = LoadMeter(self.threads, self._telemetry)
            self._shortages = self._count_shortages(self.threads)
        self._resize(self.number, self._policy.reason if self._policy else StepReason.FIXED)

    def _clamp(self, number: int, bounds: ThreadRange | None = None) -> int:
        bounds = bounds or self._bounds
        return min(max(number, bounds.least), bounds.most)

    def adapt(self) -> None:
        """Called often; takes a sample about once a second, and no session."""
        if self._policy is None:
            return
        with self._lock:
            if self._policy is not None and self._meter is not None:
                self._observe(self._policy, self._meter)

    def _observe(self, policy: ThreadPolicy, meter: LoadMeter) -> None:
        sample, threads = meter.sample(), self.threads
        if sample is None or threads is None:
            return
        shortages = self._count_shortages(threads)
        if self._telemetry.health.is_database_away or sample.seconds > _STALL_SECONDS:
            policy.forget()
        elif threads.is_waiting_for_sessions:
            return  # The sample is not one of the number that is due.
        elif shortages > self._shortages:
            self._shortages = shortages
            policy.refuse(threads.count)
        else:
            policy.observe(sample)
        if policy is self._policy and policy.threads != self.number:
            self._take_step(policy, threads)

    def _count_shortages(self, threads: ThreadPool) -> int:
        return self._telemetry.health.exhaustions + threads.refused

    def _take_step(self, policy: ThreadPolicy, threads: ThreadPool) -> None:
        try:
            self._resize(policy.threads, policy.reason)
        except (RuntimeError, NoSlotError) as error:
            if not (isinstance(error, NoSlotError) or cannot_start_thread(error)):
                raise
            message = "cannot start more threads (%s): going on with fewer"
            threads.unsettled.report(partial(logger.warning, message, error))
            policy.refuse(threads.count)
            self._resize(policy.threads, policy.reason)

    def _resize(self, number: int, reason: StepReason) -> None:
        threads, bounds = self.threads, self._bounds
        assert threads is not None
        if isinstance(self.pool, SessionPool):
            # Surplus threads keep their sessions until they end.
            self.pool.resize(number, max(number, threads.count) + HEADROOM)
        # A step that a range takes is not worth an outage: without a session for it, it is refused.
        is_step = self._policy is not None and number > self.number
        threads.set_concurrency(number, need_sessions=is_step)
        view = ThreadsView(number, bounds.least, bounds.most, reason)
        self.number, self._telemetry.seat.threads = number, view.to_cell()
        logger.debug("%s: %s", self, view.sentence)


def check_concurrency(threads: Threads) -> ThreadRange:
    """Of equal bounds if the number is fixed."""
    if isinstance(threads, ThreadRange):
        threads = (threads.least, threads.most)
    if not isinstance(threads, tuple):
        number = check_whole("concurrency", threads, 1, MAX_THREADS)
        return ThreadRange(number, number)
    if len(threads) != 2:
        raise ValueError(f"concurrency must be a number, or two like (2, 32), not {shown(threads)}")
    least = check_whole("the least concurrency", threads[0], 1, MAX_THREADS)
    most = check_whole("the most concurrency", threads[1], 1, MAX_THREADS)
    if least > most:
        raise ValueError(
            f"the least concurrency, {least}, is above the most, {most}: write ({most}, {least})"
        )
    return ThreadRange(least, most)
