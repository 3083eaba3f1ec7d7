"""The way of one command through a worker process, from the claim to the settlement: the pattern
of leader and followers.

The threads draw from one queue. A thread that draws a command runs it. A thread that draws the
leadership settles what is finished and claims the next commands in one round trip, puts them into
the queue, and the leadership behind them.

    _take_turn          an item of the queue, until the thread must end
    ├── _run            a command:  in flight -> Execution.run -> finished -> unsettled
    └── _lead           the leadership
        ├── _settle_and_claim   Leader.settle_and_claim -> in flight -> queue
        └── _wait_for_work      nothing to claim: the leader waits, with the leadership

If all threads are busy, the leadership waits in the queue: that is backpressure. Only an
empty claim makes the leader wait for a wake-up.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import psycopg

from cmdbus.board.slots import Slot as Place
from cmdbus.clock import time
from cmdbus.registry import HandlerRegistry
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.connections import PooledConnections, ThreadConnection
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.execution.execution import Execution
from cmdbus.worker.in_flight import Entry, InFlight
from cmdbus.worker.leader import Leader
from cmdbus.worker.local_queue import LEADERSHIP, RECHECK, STOP, LocalQueue
from cmdbus.worker.prefetch_policy import QUICK_SECONDS, PrefetchPolicy
from cmdbus.worker.telemetry import Telemetry
from cmdbus.worker.unsettled import Unsettled
from cmdbus.worker.waiting.node_waiter import NodeWaiter
from cmdbus.worker.worker_thread import RoundTrip, Work, WorkerThread

logger = logging.getLogger(__name__)


#: Seconds added to the statement timeout to get the deadline of a leader's round trip.
_STEP_SPARE = 5.0
#: Seconds until the process takes part, although threads are still preparing their sessions.
_PREPARES_SECONDS = 2.0
#: A thread that began a command within these seconds will draw the next one soon.
_PROGRESS_SECONDS = 0.005
#: Round trips in a row that fail for a reason other than the database, one second apart, before
#: the process is replaced.
_MAX_FAULTS = 5


class ThreadPool:
    """The threads of one process and what they share: each operation on that is atomic."""

    def __init__(
        self,
        *,
        claims: Claims,
        registry: HandlerRegistry,
        domains: Sequence[str],
        types: Sequence[str],
        concurrency: int,
        claim_bytes: int,
        timeouts: Timeouts,
        source: PooledConnections,
        waiter: NodeWaiter,
        telemetry: Telemetry,
    ) -> None:
        self._claims = claims
        self._registry = registry
        self._concurrency = concurrency
        self._timeouts = timeouts
        self._source = source
        self._waiter = waiter
        self._telemetry = telemetry
        self._prefetch = PrefetchPolicy()
        self.in_flight = InFlight(claims, telemetry.seat)
        self._queue = LocalQueue(self.in_flight)
        self.unsettled = Unsettled(claims, telemetry, self.in_flight)
        self._stopping = threading.Event()
        #: Set when something was claimed; cleared by housekeeping when nothing is in flight.
        self.working = threading.Event()
        self.leader = Leader(
            claims=claims,
            in_flight=self.in_flight,
            unsettled=self.unsettled,
            prefetch=self._prefetch,
            waiter=waiter,
            telemetry=telemetry,
            domains=domains,
            types=types,
            claim_bytes=claim_bytes,
            take_on=self._take_on,
            stopping=self._stopping,
        )
        #: One element for each thread that may have a turn.
        self._prepared: SimpleQueue[None] = SimpleQueue()
        #: By number. The main thread and housekeeping add; a thread that ends removes itself.
        self._threads: dict[int, WorkerThread] = {}
        #: The exception that ended a thread unexpectedly.
        self._ended_by: BaseException | None = None
        #: Errors of the latest round trips in a row that failed for a reason other than the
        #: database; written by the leader.
        self._faults: list[Exception] = []

    # For the worker's main thread.

    def start(self) -> None:
        """Returns once each thread has prepared its session, or soon if some cannot."""
        self.set_concurrency(self._concurrency)
        deadline = time.monotonic() + _PREPARES_SECONDS
        with suppress(Empty):
            for _ in range(self._concurrency):
                self._prepared.get(timeout=max(0.0, deadline - time.monotonic()))

    def claim(self) -> None:
        """Starts claiming; after the process has shown that it is ready, as its exit codes mean
        something else before."""
        self._queue.put(LEADERSHIP)

    def set_concurrency(self, threads: int) -> None:
        self._concurrency = threads
        for number in range(threads):
            if number not in self._threads:
                self.fill(number)
        for _ in range(len(self._threads) - threads):
            self._queue.put(RECHECK)

    def fill(self, number: int) -> None:
        """A fresh thread for a slot."""
        index, slot = self._telemetry.acquire_slot()
        connection = ThreadConnection(self._source, slot.session)
        before = self._threads.get(number)
        thread = self._threads[number] = WorkerThread(
            number, connection, index, slot, self._stopping
        )
        thread.thread = threading.Thread(
            target=self._run_thread, args=(thread,), name=f"worker-{number}", daemon=True
        )
        try:
            thread.thread.start()
        except RuntimeError:  # The system is out of threads.
            self._telemetry.release_slot(index, slot)
            if before is None:
                del self._threads[number]
            else:
                self._threads[number] = before
            raise

    @property
    def fault(self) -> str:
        """Why this process cannot go on, which only a new process cures; empty if it can."""
        if len(self._faults) >= _MAX_FAULTS:
            return (
                f"{len(self._faults)} round trips in a row have failed: {reason(self._faults[-1])}"
            )
        error = self._ended_by
        return "" if error is None else f"a thread was ended by {type(error).__name__}"

    def next_due(self) -> float | None:
        return min(
            (due for thread in self._alive() if (due := thread.due) is not None), default=None
        )

    def put_off(self, seconds: float) -> None:
        """Moves all deadlines by the time for which the process stalled."""
        for thread in self._alive():
            thread.put_off(seconds)

    def give_up_late(self, now: float) -> list[tuple[WorkerThread, Work]]:
        """The verdict on every slot that is past its due; carried out by housekeeping."""
        late = [(slot, work) for slot in self._alive() if (work := slot.give_up_if_late(now))]
        for thread, work in late:
            if isinstance(work, RoundTrip):
                thread.hand.abort_io()  # so that it puts its outcomes back
        return late

    def cut_all(self) -> None:
        for thread in self._alive():
            thread.hand.abort_io()

    def replace(self, thread: WorkerThread, *, with_lead: bool = False) -> None:
        """A fresh thread for one that has timed out, and a new leadership if it led; the old
        thread ends once it returns, and puts back none."""
        if self._threads.get(thread.number) is thread and not self._stopping.is_set():
            self.fill(thread.number)
            if with_lead:
                self._queue.put(LEADERSHIP)

    def _alive(self) -> list[WorkerThread]:
        return list(self._threads.values())

    def stop_claiming(self) -> None:
        """Lets the threads end once their commands have finished; marks commands that were not
        started as released."""
        self._stopping.set()
        self._waiter.wake()
        self._queue.release_all()
        self._queue.put(STOP)

    def join(self, deadline: float) -> list[WorkerThread]:
        """Waits until the deadline; returns the threads that have neither ended nor timed out."""
        for thread in self._alive():
            if not thread.given_up:
                thread.join(deadline - time.monotonic())
        return [slot for slot in self.left() if not slot.given_up]

    def left(self) -> list[WorkerThread]:
        """Threads that have not ended."""
        return [thread for thread in self._alive() if thread.running]

    def settle_all(self, connection: ThreadConnection, slot: Place) -> None:
        """For the last time: settles every outcome and releases every claim that is left."""
        self.unsettled.settle_all(connection, slot)
        if self.leader.sessions_in_doubt:
            orphans = self.leader.orphans(connection.connection(), self.leader.sessions_in_doubt)
            self.in_flight.mark_released(orphans)
        if self.in_flight.any_released:
            self.in_flight.release(connection.connection())

    @property
    def busy(self) -> bool:
        return bool(self.in_flight or self.unsettled)

    def help_queued(self) -> None:
        """Wakes a thread for commands that wait behind one that takes longer than its type did."""
        if self._queue.needs_help:
            since = time.monotonic() - _PROGRESS_SECONDS
            works = [thread.work for thread in self._alive()]
            if not any(isinstance(work, Execution) and work.began > since for work in works):
                self._queue.wake()

    def release_stale(self, connection: ThreadConnection) -> None:
        self._queue.release_stale()
        if self.in_flight.any_released:
            self.in_flight.release(connection.connection())

    # What a thread does.

    def _run_thread(self, thread: WorkerThread) -> None:
        thread.place.occupy(thread.number, time.monotonic_ns())
        try:
            stays = self._prepare_session(thread)
            while stays:
                stays = self._take_turn(thread)
        except BaseException as error:
            if not thread.given_up:
                self._ended_by = error
            if self._stopping.is_set():
                self._queue.put(STOP)  # It may have been drawn.
        finally:
            # Housekeeping replaces a thread that has timed out.
            if self._threads.get(thread.number) is thread and not thread.given_up:
                del self._threads[thread.number]
            thread.hand.close()
            self._telemetry.release_slot(thread.index, thread.place)

    def _prepare_session(self, thread: WorkerThread) -> bool:
        """Before its first turn; without a database it takes part nevertheless, and prepares when
        it leads."""
        due = time.monotonic() + self._timeouts.statement + _STEP_SPARE
        thread.begin(RoundTrip(due, leads=False))
        with suppress(Exception):
            self.leader.prepare(thread)
        self._prepared.put(None)
        return thread.end()

    def _take_turn(self, thread: WorkerThread) -> bool:
        """One item of the queue; False if the thread must end."""
        item = self._queue.draw()
        if item is None:
            self._rest(thread)
            item = self._queue.wait()
        if type(item) is Entry:
            if not self._queue.is_older(self._waiter.pauses):
                return self._survive(thread, item)
            # A domain was paused since. Housekeeping releases what has not started, and the
            # next claim takes what may go on again.
            self._queue.release_drawn(item)
        elif item is LEADERSHIP:
            return self._lead(thread)
        elif item is STOP:
            self._queue.put(STOP)  # for the next one
            return False
        return len(self._threads) <= self._concurrency

    def _rest(self, thread: WorkerThread) -> None:
        """Shows no command any longer."""
        thread.place.end(time.monotonic_ns())
        thread.rename("")

    def _survive(self, thread: WorkerThread, entry: Entry) -> bool:
        """The thread goes on after any error, also one outside of the handler."""
        try:
            return self._run(thread, entry)
        except BaseException:
            claim, stays = entry.claim, thread.end()
            if stays:
                thread.place.end(time.monotonic_ns())
                self._telemetry.lost(thread.place, claim)
                self.in_flight.free([claim])
            logger.exception(
                "the thread of command %s (%s/%s) met an error outside of its handler: the "
                "command runs again when its lease ends",
                claim.command_id,
                claim.domain,
                claim.type,
            )
            return stays

    def _run(self, thread: WorkerThread, entry: Entry) -> bool:
        claim = entry.claim
        self._prepare(thread, claim)
        handler = self._registry.find(claim.domain, claim.type)
        assert handler is not None, "only types with a handler are claimed"
        execution = Execution(claim, handler, thread, self._claims, self._timeouts)
        self.in_flight.start(entry)
        thread.begin(execution)
        self._telemetry.begins(thread.place, entry, execution.began, execution.due)
        try:
            finished = execution.run()
        finally:
            stays = thread.end()
        seconds = time.monotonic() - execution.began
        self._telemetry.ended(thread.place, entry, seconds)
        if seconds >= QUICK_SECONDS:
            # Only time for which it had a CPU makes a type slow: on busy CPUs one no-op in 150
            # takes longer.
            seconds = max(0.0, seconds - thread.waited_for_cpu())
        self._prefetch.ran(claim.domain, claim.type, seconds)
        if not stays:
            return False  # It timed out: housekeeping settles its command.
        self.in_flight.finish(entry)
        if finished is not None:
            # First append, then look whether the leader waits; it does the opposite.
            self.unsettled.add(finished)
        elif execution.committed is not None:
            self.unsettled.settled(thread.place, [execution.committed])
        else:
            self.unsettled.not_settled(claim, execution.max_attempts)
        self._waiter.wake_if_waiting()
        if self.unsettled.any_unlogged:
            self._rest(thread)
            self.unsettled.log()
        return True

    def _prepare(self, thread: WorkerThread, claim: Claim) -> None:
        """Before a command that may be long: wakes a thread for the other commands, and settles the
        outcomes that wait."""
        if thread.domain != claim.domain:
            thread.rename(claim.domain)
        if self._queue.needs_help and not self._prefetch.is_tiny(claim.domain, claim.type):
            self._queue.wake()
        if self.unsettled and not self._prefetch.is_quick(claim.domain, claim.type):
            thread.place.end(time.monotonic_ns())
            with suppress(psycopg.Error):
                self.unsettled.settle(thread.hand, thread.place, self.unsettled.take())

    def _lead(self, thread: WorkerThread) -> bool:
        """With the leadership, which goes back into the queue whatever happens."""
        thread.rename("")
        if self._queue.needs_help:
            self._queue.wake()
        stays = True
        try:
            waited = True
            while stays and waited:
                waited = self._settle_and_claim(thread)
                stays = thread.end()
        except Exception as error:
            stays = thread.end() and stays
            self._telemetry.claim_failed(thread.place)
            if stays:
                if not isinstance(error, psycopg.Error):
                    self._faults.append(error)
                self.leader.recover(thread, error)
        finally:
            thread.place.end(time.monotonic_ns())
            if stays and not self._stopping.is_set():
                self._queue.put_back(LEADERSHIP)
        self.unsettled.log()
        return stays

    def _settle_and_claim(self, thread: WorkerThread) -> bool:
        """True if there was nothing to claim, and the thread has waited for work."""
        due = time.monotonic() + self._timeouts.statement + _STEP_SPARE
        thread.begin(RoundTrip(due))
        self._telemetry.leads(thread.place, due)
        if self._stopping.is_set():
            self.unsettled.settle(thread.hand, thread.place, self.unsettled.take())
            return False
        thread.pauses = self._waiter.pauses
        found = self.leader.settle_and_claim(thread, self._concurrency)
        self._faults.clear()
        # What it has adopted may wait for this very thread.
        if found or self._queue or not thread.end():
            return False
        self._wait_for_work(thread)
        return True

    def _wait_for_work(self, thread: WorkerThread) -> None:
        waits = True
        while waits:
            timeout = self._waiter.poll_interval + self._timeouts.statement + _STEP_SPARE
            thread.begin(RoundTrip(time.monotonic() + timeout))
            self.unsettled.log()
            waits = self.leader.wait_for_work(thread) and thread.end()

    def _take_on(self, thread: WorkerThread, claims: list[Claim], *, wake: bool = True) -> None:
        """`wake`: the thread does not draw next."""
        self._queue.fill(self.in_flight.take(claims, lambda: thread.given_up), thread.pauses)
        if claims:
            self.working.set()
            if wake:
                self._queue.wake()
        if self._stopping.is_set():
            # The main thread has already released the commands that were not started.
            self._queue.release_all()
            self.in_flight.release(thread.hand.connection())
