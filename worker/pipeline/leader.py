"""The leader: settles finished commands, claims the next ones, and waits when there are none.

One thread leads at a time; which one, the queue decides.

    lead
    ├── _lead_once
    │   ├── _adopt                  what round trips have claimed whose replies were lost
    │   ├── _make_round_trip        unsettled -> database -> in flight -> queue
    │   │   ├── _settle_and_claim   the statement
    │   │   └── _claim_apart        after an outcome or a row has made it fail
    │   └── _wait_for_work          after an empty claim: until a wake-up or a timer
    └── Recovery.recover            after an error: until the database answers again
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import psycopg

from cmdbus.board.counters import Counter
from cmdbus.board.records import Phase
from cmdbus.clock import time
from cmdbus.failpoints import AFTER_CLAIM, failpoint
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import (
    Claim,
    ClaimRequest,
    ClaimResult,
    Connection,
    Finished,
    plain_and_others,
)
from cmdbus.worker.claims.rejections import Cause, cause_of, was_executed
from cmdbus.worker.pipeline.adoption import Adoption
from cmdbus.worker.pipeline.batch_transitions import BatchTransitions
from cmdbus.worker.pipeline.claim_planner import ClaimPlanner
from cmdbus.worker.pipeline.handled_types import HandledTypes
from cmdbus.worker.pipeline.in_flight import InFlight
from cmdbus.worker.pipeline.local_queue import LEADERSHIP, LocalQueue
from cmdbus.worker.pipeline.narrowing import Narrowing
from cmdbus.worker.pipeline.probing import Probing
from cmdbus.worker.pipeline.recovery import Recovery
from cmdbus.worker.pipeline.setup import Setup
from cmdbus.worker.pipeline.unsettled import Unsettled, first_part
from cmdbus.worker.pipeline.worker_thread import RoundTrip, WorkerThread

#: Seconds added to the statement timeout to get the deadline of a round trip.
_SPARE_SECONDS = 5.0
#: Seconds between round trips while the board has no place for another claim and there is nothing
#: to settle.
_FULL_SECONDS = 0.01


class Leader:
    def __init__(
        self,
        setup: Setup,
        *,
        handled_types: HandledTypes,
        in_flight: InFlight,
        queue: LocalQueue,
        unsettled: Unsettled,
        batches: BatchTransitions,
        breakers: Breakers,
        other_has_session: Callable[[WorkerThread], bool],
    ) -> None:
        """`other_has_session`: whether a thread besides this one has."""
        self._statements = setup.statements
        self._round_trip_seconds = setup.timeouts.statement + _SPARE_SECONDS
        self._planner = ClaimPlanner(
            setup.statements, setup.domains, handled_types, breakers, setup.age_share
        )
        self._limited_types = self._planner.limited_types
        self._narrowing = Narrowing(setup.statements)
        self._probing = Probing(
            setup.statements, breakers, self._planner, self._narrowing, handled_types, in_flight
        )
        self.adoption = Adoption(setup.statements, in_flight, setup.claim_bytes, unsettled.report)
        self._in_flight, self._queue, self._unsettled = in_flight, queue, unsettled
        self._batches, self._breakers = batches, breakers
        self._waiter, self._telemetry = setup.waiter, setup.telemetry
        self._claim_bytes = setup.claim_bytes
        self.stopping = threading.Event()
        self._recovery = Recovery(
            setup.waiter,
            setup.telemetry,
            queue,
            self.stopping,
            other_has_session,
            unsettled.report,
        )
        #: The latest claim may have left something that it could have taken.
        self._has_more = False
        #: A byte of the pipe ended the latest wait.
        self._was_woken = False
        #: Errors of the latest round trips, if all failed for a reason other than the database.
        self.faults: list[Exception] = []

    def prepare_session(self, thread: WorkerThread) -> bool:
        """Before the first turn of a thread; if it fails, the thread prepares when it leads."""
        thread.work = RoundTrip(time.monotonic() + self._round_trip_seconds, leads=False)
        with suppress(Exception):
            self._prepare(thread)
        return thread.end()

    def _prepare(self, thread: WorkerThread) -> None:
        """Registers the worker in each new session of a leader, and plans its statement."""
        connection = thread.connection.connection()
        if thread.connection.session != thread.registered:
            self._statements.register(connection)
            self._statements.plan(connection)
            thread.registered = thread.connection.session
        if self._limited_types.must_be_read:
            self._limited_types.read(connection)
        if self._breakers.is_due_before_claim:
            self._breakers.attend(connection)

    def lead(self, thread: WorkerThread) -> bool:
        """Settles and claims, and waits while there is nothing to claim; then puts the leadership
        back into the queue, whatever happens. False if the thread must end."""
        thread.rename("")
        if self._queue.needs_help:
            self._queue.wake()
        if thread.connection.lost() and self._recovery.pass_on(thread):
            return True
        stays = leads = True
        try:
            waited = True
            while stays and waited:
                waited = self._lead_once(thread)
                stays = thread.end()
        except Exception as error:
            stays = thread.end() and stays
            self._telemetry.claim_failed(thread.slot)
            if stays:
                if not isinstance(error, psycopg.Error):
                    self.faults.append(error)
                leads = self._recovery.recover(thread, error)
        finally:
            thread.slot.end(time.monotonic_ns())
            if stays and leads and not self.stopping.is_set():
                self._queue.put_back(LEADERSHIP)
        self._unsettled.log.write()
        return stays

    def _lead_once(self, thread: WorkerThread) -> bool:
        """True if there was nothing to claim: then the thread has waited for work."""
        due = time.monotonic() + self._round_trip_seconds
        thread.slot.enter(Phase.LEADING, time.monotonic_ns(), int(due * 1e9))
        thread.work = RoundTrip(due)
        if self.stopping.is_set():
            self._unsettled.settle(thread.connection, thread.slot, self._unsettled.take())
            return False
        thread.domain_pauses = self._waiter.domain_pauses
        probes_only = self._probing.has_ended_wait()
        self._prepare(thread)
        if self.adoption.sessions_in_doubt and self.adoption.is_due:
            self._adopt(thread)
        self._waiter.before_claim()
        was_woken, self._was_woken = self._was_woken, False
        try:
            found = bool(self._breakers.states.open) and self._probing.claim(
                thread.connection.connection(),
                self._queue.threads - self._in_flight.unfinished_count,
                partial(self._take_on, thread),
            )
            if not probes_only or self._planner.types_changed:
                found = self._make_round_trip(thread) or found
            self._batches.attend(thread.connection)
        except BaseException as error:
            if thread.connection.lost() or not isinstance(error, psycopg.Error):
                self.adoption.mark_in_doubt(thread.connection.session, error)
            raise
        # Adopted commands may wait for this very thread.
        if was_woken and not found:
            self._limited_types.doubt()
        found = found or self._limited_types.must_be_read
        waits = not (found or self._queue) and thread.end()
        if waits:
            self._wait_for_work(thread)
        self.faults.clear()
        return waits

    def _adopt(self, thread: WorkerThread) -> None:
        connection = thread.connection.connection()
        gone, known = self.adoption.end_sessions(connection)
        self._take_on(thread, self.adoption.adopt(connection, known))
        self._in_flight.release(thread.connection)
        if not thread.given_up:
            self.adoption.sessions_in_doubt -= gone

    def _make_round_trip(self, thread: WorkerThread) -> bool:
        """Settles everything finished and claims the next run; False if there was none."""
        connection, slot = thread.connection, thread.slot
        done = self._unsettled.take()
        plain, others = plain_and_others(done)
        plain, later = first_part(plain)
        self._unsettled.put_back(later)
        try:
            self._unsettled.settle(connection, slot, others)
            began = time.monotonic()
            request = self._planner.request(
                began,
                free=self._queue.threads - self._in_flight.unfinished_count,
                room=self._in_flight.free_count + len(plain),
                bytes_=self._claim_bytes - self._in_flight.prefetched_bytes,
            )
            if not (request.free or done):
                self.stopping.wait(_FULL_SECONDS)
            lost, claims = self._settle_and_claim(connection.connection(), plain, request)
        except BaseException as error:
            self._unsettled.put_back(plain)
            if cause_of(error) is Cause.ELSEWHERE:
                raise
            rejection = error
        else:
            self._recovery.succeeded()
            if self._telemetry.health.is_database_away:
                self._telemetry.database_back(self._unsettled.report)
            self._unsettled.settled(slot, plain, lost)
            self._note_claim(thread, claims, began)
            self._take_on(thread, claims, wake=False)
            return bool(claims or self._has_more or not request.free)
        return self._claim_apart(thread, request, rejection)

    def _settle_and_claim(
        self, connection: Connection, finished: Sequence[Finished], request: ClaimRequest
    ) -> tuple[list[Claim], list[Claim]]:
        """One round trip, which also moves the floors of the next one."""
        results: list[ClaimResult] = []
        lost, claims = self._statements.settle_and_claim(
            connection, finished, request, results.append
        )
        now = time.monotonic()
        self._has_more = self._planner.looked(request, results, len(claims), now)
        return lost, claims

    def _note_claim(self, thread: WorkerThread, claims: list[Claim], began: float) -> None:
        ended = time.monotonic()
        self._telemetry.settled_and_claimed(thread.slot, len(claims), ended - began)
        payload = sum([len(claim.data) for claim in claims])
        thread.waited_for_cpu()  # from here on
        self._waiter.after_claim(full=self._has_more)
        self._planner.prefetch.claimed(len(claims), began, ended, payload)
        if claims:
            failpoint(AFTER_CLAIM)

    def _take_on(self, thread: WorkerThread, claims: list[Claim], *, wake: bool = True) -> None:
        """`wake`: the thread does not draw next."""
        self._queue.fill(
            self._in_flight.take(claims, lambda: thread.given_up), thread.domain_pauses
        )
        self._telemetry.dequeued(thread.slot, claims)
        self._batches.claimed(claims)
        if claims and wake:
            self._queue.wake()
        if self.stopping.is_set():
            # The main thread has already released the commands that were not started.
            self._queue.mark_released()
            self._in_flight.release(thread.connection)

    def _claim_apart(
        self, thread: WorkerThread, request: ClaimRequest, error: BaseException
    ) -> bool:
        """After an outcome or a row has made a round trip fail: settles, then claims, on another
        session, as a handler may have changed this one. If the claim is what fails, rows are
        claimed one by one; the error is raised if that does not get on either."""
        thread.connection.drop()
        self._unsettled.settle(thread.connection, thread.slot, self._unsettled.take())
        connection = thread.connection.connection()
        try:
            if was_executed(error):
                self._take_on(thread, self.adoption.adopt(connection, self._in_flight.known()))
                self._in_flight.release(thread.connection)
            began = time.monotonic()
            _, claims = self._settle_and_claim(connection, [], request)
        except Exception as second:
            if cause_of(second) is Cause.ELSEWHERE:
                raise
            rejection = second
        else:
            self._note_claim(thread, claims, began)
            self._take_on(thread, claims, wake=False)
            return bool(claims or self._has_more or not request.free)
        if not self._narrowing.claim(connection, request, partial(self._take_on, thread)):
            raise rejection
        self._recovery.warn_once(rejection, "claiming row by row")
        self._telemetry.claim_failed(thread.slot)
        return True

    def _wait_for_work(self, thread: WorkerThread) -> None:
        """Outcomes of this worker that end the wait are settled, and the leader waits on."""
        waits = True
        while waits:
            timeout = self._waiter.poll_interval + self._round_trip_seconds
            thread.work = RoundTrip(time.monotonic() + timeout)
            with suppress(RuntimeError):  # no thread for it: the next one that rests writes
                self._unsettled.log.write_beside()
            thread.slot.enter(Phase.RESTING, time.monotonic_ns(), 0)
            source = self._waiter.wait_for_work(
                busy=self._is_busy,
                until=min(self._planner.look_again_at, self._probing.look_again_at),
            )
            if source is not None:
                thread.slot.counters.add(source)
            self._was_woken = source is Counter.WAKEUPS_PIPE
            self._probing.wait_ended(source, others_at=self._planner.look_again_at)
            # What has ended may have held places that others wait for.
            claims = self._limited_types.any or not self._waiter.only_own()
            if source is not None or self.stopping.is_set() or claims:
                return
            self._unsettled.settle(thread.connection, thread.slot, self._unsettled.take())
            self._batches.attend(thread.connection)
            if self._breakers.is_due:
                self._breakers.attend(thread.connection.connection())
                return  # Its state may let this worker claim.
            waits = thread.end()

    def _is_busy(self) -> bool:
        due = self._unsettled or self._batches.due or self._breakers.is_due
        return bool(due) or self.stopping.is_set()
