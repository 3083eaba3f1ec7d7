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
from cmdbus.worker.claims.connections import Hand, Source
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.execution.execution import Execution
from cmdbus.worker.in_flight import Holding
from cmdbus.worker.leader import Lead
from cmdbus.worker.local_queue import LEAD, LEAVE, NUDGE, Backlog
from cmdbus.worker.prefetch_policy import Pace
from cmdbus.worker.telemetry import Record
from cmdbus.worker.unsettled import Done
from cmdbus.worker.waiting.wake import Waking
from cmdbus.worker.worker_thread import Slot, Work

logger = logging.getLogger(__name__)


#: A step promises to be back within the statement timeout and so many seconds more.
_STEP_SPARE = 5.0
#: Steps in a row that have failed for a reason other than the database, one second apart.
_MAX_FAULTS = 5


class Crew:
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
        source: Source,
        wake: Waking,
        record: Record,
    ) -> None:
        self._claims = claims
        self._registry = registry
        self._concurrency = concurrency
        self._timeouts = timeouts
        self._source = source
        self._wake = wake
        self._record = record
        self._pace = Pace()
        self.held = Holding(claims, record.seat)
        self._backlog = Backlog(self.held)
        self.done = Done(claims, record, self.held)
        self._stopping = threading.Event()
        #: Set when something was claimed; cleared by the keeper when it finds nothing to do.
        self.working = threading.Event()
        self.lead = Lead(
            claims=claims,
            held=self.held,
            done=self.done,
            pace=self._pace,
            wake=wake,
            record=record,
            domains=domains,
            types=types,
            claim_bytes=claim_bytes,
            take_on=self._take_on,
            stopping=self._stopping,
        )
        #: By number. Main and relief add, a thread that leaves removes itself.
        self._slots: dict[int, Slot] = {}
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
        self._backlog.put(LEAD)

    def set_concurrency(self, threads: int) -> None:
        self._concurrency = threads
        for number in range(threads):
            if number not in self._slots:
                self.fill(number)
        for _ in range(len(self._slots) - threads):
            self._backlog.put(NUDGE)

    def fill(self, number: int) -> None:
        """A fresh thread for a slot."""
        index, place = self._record.take_place()
        hand = Hand(self._source, place.session)
        before = self._slots.get(number)
        slot = self._slots[number] = Slot(number, hand, index, place)
        slot.thread = threading.Thread(
            target=self._run_slot, args=(slot,), name=f"worker-{number}", daemon=True
        )
        try:
            slot.thread.start()
        except RuntimeError:  # The system has no room for another one.
            self._record.give_place(index, place)
            if before is None:
                del self._slots[number]
            else:
                self._slots[number] = before
            raise

    @property
    def fault(self) -> str:
        """Why this process cannot go on, which only a new process cures; empty if it can."""
        if len(self._faults) >= _MAX_FAULTS:
            return f"{len(self._faults)} steps in a row have failed: {reason(self._faults[-1])}"
        error = self._ended_by
        return "" if error is None else f"a thread was ended by {type(error).__name__}"

    def next_due(self) -> float | None:
        return min((due for slot in self._alive() if (due := slot.due) is not None), default=None)

    def put_off(self, seconds: float) -> None:
        """What was promised before the process stood still for so long."""
        for slot in self._alive():
            slot.put_off(seconds)

    def give_up_late(self, now: float) -> list[tuple[Slot, Work]]:
        """The verdict on every slot that is past its due; carried out by relief."""
        late = [(slot, work) for slot in self._alive() if (work := slot.give_up_if_late(now))]
        for slot, work in late:
            if work.execution is None:
                slot.hand.cut()  # and its outcomes are free, whatever relief waits for
        return late

    def cut_all(self) -> None:
        for slot in self._alive():
            slot.hand.cut()

    def replace(self, slot: Slot, *, with_lead: bool = False) -> None:
        """A fresh thread for a slot that was given up, and a new lead if it had that; the old
        one leaves when it comes back, and puts none."""
        if self._slots.get(slot.number) is slot and not self._stopping.is_set():
            self.fill(slot.number)
            if with_lead:
                self._backlog.put(LEAD)

    def _alive(self) -> list[Slot]:
        return list(self._slots.values())

    def stop_claiming(self) -> None:
        """Lets the threads leave once they have finished what they run; what nobody has
        started is to be given back."""
        self._stopping.set()
        self._wake.ring()
        self._backlog.turn_back_all()
        self._backlog.put(LEAVE)

    def join(self, deadline: float) -> list[Slot]:
        """Waits until the deadline; returns the slots whose threads have not left, and are not
        given up."""
        for slot in self._alive():
            if not slot.given_up:
                slot.join(deadline - time.monotonic())
        return [slot for slot in self.left() if not slot.given_up]

    def left(self) -> list[Slot]:
        """Whose threads have not left."""
        return [slot for slot in self._alive() if slot.running]

    def settle_accounts(self, hand: Hand, place: Place) -> None:
        """For the last time: nothing that is the database's to know stays here."""
        self.done.settle_all(hand, place)
        if self.lead.doubts:
            orphans = self.lead.orphans(hand.connection(), self.lead.doubts)
            self.held.turn_back(orphans)
        if self.held.anything_back:
            self.held.give_back(hand.connection())

    @property
    def busy(self) -> bool:
        return bool(self.held.any_unsettled or self.done or self.done.any_left)

    def give_back_stale(self, hand: Hand) -> None:
        self._backlog.turn_back_stale()
        if self.held.anything_back:
            self.held.give_back(hand.connection())

    # What a thread does.

    def _run_slot(self, slot: Slot) -> None:
        slot.place.occupy(slot.number, time.monotonic_ns())
        try:
            while (item := self._backlog.draw()) is not LEAVE:
                if isinstance(item, Claim):
                    stays = True
                    if self._backlog.is_older(self._wake.pauses):
                        # A domain was paused since. Housekeeping releases what has not started,
                        # and the next claim takes what may go on again.
                        self._backlog.turn_back_with(item)
                    else:
                        stays = self._survive(slot, item)
                elif item is LEAD:
                    stays = self._lead(slot)
                else:
                    stays = len(self._slots) <= self._concurrency
                if not stays:
                    break
            else:
                self._backlog.put(LEAVE)  # for the next one
        except BaseException as error:
            if not slot.given_up:
                self._ended_by = error
            if self._stopping.is_set():
                self._backlog.put(LEAVE)  # It may have been drawn.
        finally:
            # One that was given up is replaced by relief.
            if self._slots.get(slot.number) is slot and not slot.given_up:
                del self._slots[slot.number]
            slot.hand.close()
            self._record.give_place(slot.index, slot.place)

    def _survive(self, slot: Slot, claim: Claim) -> bool:
        """Whatever a handler left behind, its thread goes on."""
        try:
            return self._run(slot, claim)
        except BaseException:
            stays = slot.end()
            if stays:
                slot.place.end(time.monotonic_ns())
                self._record.lost(slot.place, claim)
                self.held.free(claim)
            logger.exception(
                "the thread of command %s (%s/%s) met an error outside of its handler: the "
                "command runs again when its lease ends",
                claim.command_id,
                claim.domain,
                claim.type,
            )
            return stays

    def _run(self, slot: Slot, claim: Claim) -> bool:
        if self.done and not self._pace.is_quick(claim.domain, claim.type):
            # What is finished waits for nothing that may be long.
            with suppress(psycopg.Error):
                self.done.settle(slot.hand, slot.place, self.done.take())
        execution = self._execution(slot, claim)
        thread = threading.current_thread()
        thread.name = f"worker-{claim.domain}-{slot.number}"
        began = time.monotonic()
        work = Work(execution, began + execution.timeout)
        self.held.start(claim)
        slot.begin(work)
        self._record.begins(slot.place, claim, began, work.due)
        execution.extended = partial(slot.extend, work)
        try:
            finished = execution.run()
        finally:
            stays = slot.end()
            self._record.ended(slot.place, claim, began)
            thread.name = f"worker-{slot.number}"
        self._pace.ran(claim.domain, claim.type, time.monotonic() - began)
        if not stays:
            pass  # Whoever gave it up finds out what became of it.
        elif execution.committed is not None:
            self.done.settled(slot.place, [execution.committed])
        elif finished is None:
            self.done.not_settled(claim, execution.max_attempts)
        else:
            self.held.finish(claim)
            # First append, then look whether the leader rests; it does the opposite.
            self.done.add(finished)
        self._wake.ring_if_resting()
        self.done.log()
        return stays

    def _execution(self, slot: Slot, claim: Claim) -> Execution:
        handler = self._registry.find(claim.domain, claim.type)
        assert handler is not None, "only types with a handler are claimed"
        return Execution(
            claim,
            handler,
            claims=self._claims,
            connect=lambda: slot.hand.connection(self._stopping),
            timeouts=self._timeouts,
        )

    def _lead(self, slot: Slot) -> bool:
        """With the lead in hand; it goes back into the queue whatever happens."""
        due = time.monotonic() + self._timeouts.statement + _STEP_SPARE
        slot.begin(Work(None, due))
        self._record.leads(slot.place, due)
        stays = True
        try:
            if self._stopping.is_set():
                self.done.settle(slot.hand, slot.place, self.done.take())
                stays = slot.end()
            else:
                slot.pauses = self._wake.pauses
                found = self.lead.step(slot, self._concurrency)
                self._faults.clear()
                stays = slot.end()
                # What it has adopted may wait for this very thread.
                if not found and stays and not self._backlog:
                    self._rest(slot)
                    stays = slot.end()
        except Exception as error:
            stays = slot.end() and stays
            self._record.claim_failed(slot.place)
            if stays:
                if not isinstance(error, psycopg.Error):
                    self._faults.append(error)
                self.lead.recover(slot, error)
        finally:
            slot.place.end(time.monotonic_ns())
            if stays and not self._stopping.is_set():
                self._backlog.put(LEAD)
        self.done.log()
        return stays

    def _rest(self, slot: Slot) -> None:
        rests = True
        while rests:
            patience = self._wake.poll_interval + self._timeouts.statement + _STEP_SPARE
            slot.begin(Work(None, time.monotonic() + patience))
            self.done.log()
            rests = self.lead.rest(slot) and slot.end()

    def _take_on(self, slot: Slot, claims: list[Claim]) -> None:
        self._backlog.fill(self.held.take(claims, lambda: slot.given_up), slot.pauses)
        if claims:
            self.working.set()
        if self._stopping.is_set():
            # Too late: whoever stops has already looked for what was not started.
            self._backlog.turn_back_all()
            self.held.give_back(slot.hand.connection())
