"""The way of one command through a worker process, from the claim to the settlement.

The threads draw from one backlog. Whoever draws a command runs it. Whoever draws the lead
settles what is finished and claims the next run in one round trip, puts the run into the
backlog, and the lead behind it.

    _run_slot        a thread: draws, until there is nothing more to draw
    ├── _run         a command:  Execution.run -> finished
    └── _lead        the lead:   Lead.step (settle + claim) -> backlog
        └── _rest    nothing to claim: the leader waits for a wake-up, the lead in hand

If all threads are busy, the lead waits in the backlog: that is backpressure. Only an
empty claim makes the leader wait for a wake-up.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import psycopg

from cmdbus.board.slots import Slot as Place
from cmdbus.clock import time
from cmdbus.registry import HandlerRegistry
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.connections import PooledConnections, ThreadConnection
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.execution.execution import Execution, too_late
from cmdbus.worker.in_flight import InFlight
from cmdbus.worker.leader import Leader
from cmdbus.worker.local_queue import LEAD, LEAVE, NUDGE, LocalQueue
from cmdbus.worker.prefetch_policy import PrefetchPolicy
from cmdbus.worker.telemetry import Telemetry
from cmdbus.worker.unsettled import Unsettled
from cmdbus.worker.waiting.wake import Waiter
from cmdbus.worker.worker_thread import CurrentWork, WorkerThread

logger = logging.getLogger(__name__)


#: A step promises to be back within the statement timeout and so many seconds more.
_STEP_SPARE = 5.0
#: Steps in a row that have failed for a reason other than the database, one second apart.
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
        waiter: Waiter,
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
        #: Set when something was claimed; cleared by the keeper when it finds nothing to do.
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
        #: By number. Main and relief add, a thread that leaves removes itself.
        self._threads: dict[int, WorkerThread] = {}
        #: What ended a thread that should have gone on.
        self._ended_by: BaseException | None = None
        #: Of the latest steps, those that have failed in a row for a reason other than the
        #: database; written by the leader.
        self._faults: list[Exception] = []

    # For the worker's main thread.

    def start(self) -> None:
        self.set_concurrency(self._concurrency)

    def claim(self) -> None:
        """From now on; after the process has shown that it is ready, as its exit codes mean
        something else before."""
        self._queue.put(LEAD)

    def set_concurrency(self, threads: int) -> None:
        self._concurrency = threads
        for number in range(threads):
            if number not in self._threads:
                self.fill(number)
        for _ in range(len(self._threads) - threads):
            self._queue.put(NUDGE)

    def fill(self, number: int) -> None:
        """A fresh thread for a slot."""
        index, slot = self._telemetry.acquire_slot()
        connection = ThreadConnection(self._source, slot.session)
        before = self._threads.get(number)
        thread = self._threads[number] = WorkerThread(number, connection, index, slot)
        thread.thread = threading.Thread(
            target=self._run_thread, args=(thread,), name=f"worker-{number}", daemon=True
        )
        try:
            thread.thread.start()
        except RuntimeError:  # The system has no room for another one.
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
            return f"{len(self._faults)} steps in a row have failed: {reason(self._faults[-1])}"
        error = self._ended_by
        return "" if error is None else f"a thread was ended by {type(error).__name__}"

    def next_due(self) -> float | None:
        return min(
            (due for thread in self._alive() if (due := thread.due) is not None), default=None
        )

    def put_off(self, seconds: float) -> None:
        """What was promised before the process stood still for so long."""
        for thread in self._alive():
            thread.put_off(seconds)

    def give_up_late(self, now: float) -> list[tuple[WorkerThread, CurrentWork]]:
        """The verdict on every slot that is past its due; carried out by relief."""
        late = [(slot, work) for slot in self._alive() if (work := slot.give_up_if_late(now))]
        for thread, work in late:
            if work.execution is None:
                thread.hand.abort_io()  # and its outcomes are free, whatever relief waits for
        return late

    def cut_all(self) -> None:
        for thread in self._alive():
            thread.hand.abort_io()

    def replace(self, thread: WorkerThread, *, with_lead: bool = False) -> None:
        """A fresh thread for a slot that was given up, and a new lead if it had that; the old
        one leaves when it comes back, and puts none."""
        if self._threads.get(thread.number) is thread and not self._stopping.is_set():
            self.fill(thread.number)
            if with_lead:
                self._queue.put(LEAD)

    def _alive(self) -> list[WorkerThread]:
        return list(self._threads.values())

    def stop_claiming(self) -> None:
        """Lets the threads leave once they have finished what they run; what nobody has
        started is to be given back."""
        self._stopping.set()
        self._waiter.wake()
        self._queue.release_all()
        self._queue.put(LEAVE)

    def join(self, deadline: float) -> list[WorkerThread]:
        """Waits until the deadline; returns the slots whose threads have not left, and are not
        given up."""
        for thread in self._alive():
            if not thread.given_up:
                thread.join(deadline - time.monotonic())
        return [slot for slot in self.left() if not slot.given_up]

    def left(self) -> list[WorkerThread]:
        """Whose threads have not left."""
        return [thread for thread in self._alive() if thread.running]

    def settle_all(self, connection: ThreadConnection, slot: Place) -> None:
        """For the last time: nothing that is the database's to know stays here."""
        self.unsettled.settle_all(connection, slot)
        if self.leader.sessions_in_doubt:
            orphans = self.leader.orphans(connection.connection(), self.leader.sessions_in_doubt)
            self.in_flight.mark_released(orphans)
        if self.in_flight.any_released:
            self.in_flight.release(connection.connection())

    @property
    def busy(self) -> bool:
        return bool(self.in_flight.any_unsettled or self.unsettled or self.unsettled.any_left)

    def release_stale(self, connection: ThreadConnection) -> None:
        self._queue.release_stale()
        if self.in_flight.any_released:
            self.in_flight.release(connection.connection())

    # What a thread does.

    def _run_thread(self, thread: WorkerThread) -> None:
        thread.place.occupy(thread.number, time.monotonic_ns())
        try:
            while (item := self._queue.draw()) is not LEAVE:
                if isinstance(item, Claim):
                    stays = True
                    if self._queue.is_older(self._waiter.pauses):
                        # A domain was paused since. Housekeeping releases what has not started,
                        # and the next claim takes what may go on again.
                        self._queue.release_of_thread(item)
                    else:
                        stays = self._survive(thread, item)
                elif item is LEAD:
                    stays = self._settle_and_claim(thread)
                else:
                    stays = len(self._threads) <= self._concurrency
                if not stays:
                    break
            else:
                self._queue.put(LEAVE)  # for the next one
        except BaseException as error:
            if not thread.given_up:
                self._ended_by = error
            if self._stopping.is_set():
                self._queue.put(LEAVE)  # It may have been drawn.
        finally:
            # One that was given up is replaced by relief.
            if self._threads.get(thread.number) is thread and not thread.given_up:
                del self._threads[thread.number]
            thread.hand.close()
            self._telemetry.release_slot(thread.index, thread.place)

    def _survive(self, thread: WorkerThread, claim: Claim) -> bool:
        """Whatever a handler left behind, its thread goes on."""
        try:
            return self._run(thread, claim)
        except BaseException:
            stays = thread.end()
            if stays:
                thread.place.end(time.monotonic_ns())
                self._telemetry.lost(thread.place, claim)
                self.in_flight.free(claim)
            logger.exception(
                "the thread of command %s (%s/%s) met an error outside of its handler: the "
                "command runs again when its lease ends",
                claim.command_id,
                claim.domain,
                claim.type,
            )
            return stays

    def _run(self, slot: WorkerThread, claim: Claim) -> bool:
        if self.unsettled and not self._prefetch.is_quick(claim.domain, claim.type):
            # What is finished waits for nothing that may be long.
            with suppress(psycopg.Error):
                self.unsettled.settle(slot.hand, slot.place, self.unsettled.take())
        execution = self._execution(slot, claim)
        thread = threading.current_thread()
        thread.name = f"worker-{claim.domain}-{slot.number}"
        began = time.monotonic()
        work = CurrentWork(execution, began + execution.timeout)
        self.in_flight.start(claim)
        slot.begin(work)
        self._telemetry.begins(slot.place, claim, began, work.due)
        execution.extended = partial(slot.extend, work)
        try:
            finished = execution.run()
        finally:
            stays = slot.end()
            execution.extended = too_late
            self._telemetry.ended(slot.place, claim, began)
            thread.name = f"worker-{slot.number}"
        self._prefetch.ran(claim.domain, claim.type, time.monotonic() - began)
        if not stays:
            pass  # Whoever gave it up finds out what became of it.
        elif execution.committed is not None:
            self.unsettled.settled(slot.place, [execution.committed])
        elif finished is None:
            self.unsettled.not_settled(claim, execution.max_attempts)
        else:
            self.in_flight.finish(claim)
            # First append, then look whether the leader rests; it does the opposite.
            self.unsettled.add(finished)
        self._waiter.wake_if_waiting()
        self.unsettled.log()
        return stays

    def _execution(self, thread: WorkerThread, claim: Claim) -> Execution:
        handler = self._registry.find(claim.domain, claim.type)
        assert handler is not None, "only types with a handler are claimed"
        return Execution(
            claim,
            handler,
            claims=self._claims,
            connect=lambda: thread.hand.connection(self._stopping),
            timeouts=self._timeouts,
        )

    def _settle_and_claim(self, thread: WorkerThread) -> bool:
        """With the lead in hand; it goes back into the queue whatever happens."""
        due = time.monotonic() + self._timeouts.statement + _STEP_SPARE
        thread.begin(CurrentWork(None, due))
        self._telemetry.leads(thread.place, due)
        stays = True
        try:
            if self._stopping.is_set():
                self.unsettled.settle(thread.hand, thread.place, self.unsettled.take())
                stays = thread.end()
            else:
                thread.pauses = self._waiter.pauses
                found = self.leader.settle_and_claim(thread, self._concurrency)
                self._faults.clear()
                stays = thread.end()
                # What it has adopted may wait for this very thread.
                if not found and stays and not self._queue:
                    self._wait_for_work(thread)
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
                self._queue.put(LEAD)
        self.unsettled.log()
        return stays

    def _wait_for_work(self, thread: WorkerThread) -> None:
        rests = True
        while rests:
            timeout = self._waiter.poll_interval + self._timeouts.statement + _STEP_SPARE
            thread.begin(CurrentWork(None, time.monotonic() + timeout))
            self.unsettled.log()
            rests = self.leader.wait_for_work(thread) and thread.end()

    def _take_on(self, thread: WorkerThread, claims: list[Claim]) -> None:
        self._queue.fill(self.in_flight.take(claims, lambda: thread.given_up), thread.pauses)
        if claims:
            self.working.set()
        if self._stopping.is_set():
            # Too late: whoever stops has already looked for what was not started.
            self._queue.release_all()
            self.in_flight.release(thread.hand.connection())
