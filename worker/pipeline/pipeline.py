"""The way of one command through a worker process, from the claim to the settlement: the pattern
of leader and followers.

The threads draw from one queue. A thread that draws a command runs it. A thread that draws the
leadership settles what is finished, claims the next commands, puts them into the queue, and the
leadership behind them.

A command is settled in one of three ways, by functions of the schema:

    complete              it completed, and no reply was asked for: in the round trip that claims
    settle                any other outcome: before that round trip, or by housekeeping
    either with a marker  it used context.connection: by its thread, in the handler's transaction

    take_turn           an item of the queue, until the thread must end
    ├── _run            a command:  in flight -> Execution.run -> finished -> unsettled
    ├── _run_group      commands that one transaction can handle: GroupExecution.run -> settled
    └── Leader.lead     the leadership:  unsettled -> database -> in flight -> queue

If all threads are busy, the leadership waits in the queue: that is backpressure. Only an
empty claim makes the leader wait for a wake-up.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from uuid import UUID

import psycopg

from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.slots import Slot
from cmdbus.clock import time
from cmdbus.command_log import log_about
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Claim, Finished
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.execution.execution import Execution
from cmdbus.worker.execution.group_execution import GroupExecution
from cmdbus.worker.execution.surrounded_execution import SurroundedExecution
from cmdbus.worker.pipeline.batch_transitions import BatchTransitions
from cmdbus.worker.pipeline.handled_types import QUICK_SECONDS, HandledType, HandledTypes, RunTimes
from cmdbus.worker.pipeline.in_flight import Entry, InFlight
from cmdbus.worker.pipeline.leader import Leader
from cmdbus.worker.pipeline.local_queue import LEADERSHIP, STOP, LocalQueue
from cmdbus.worker.pipeline.setup import Setup
from cmdbus.worker.pipeline.unsettled import Unsettled
from cmdbus.worker.pipeline.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

#: Seconds that a group may take, by the means of its commands, and their number.
_GROUP_SECONDS, _MAX_GROUP = 0.2, 100


class Pipeline:
    """The stages, and the state that the threads share: each operation on that is atomic."""

    def __init__(
        self,
        setup: Setup,
        *,
        ends_as_surplus: Callable[[WorkerThread], bool],
        other_has_session: Callable[[WorkerThread], bool],
    ) -> None:
        """`ends_as_surplus`: whether a thread must end, as there are too many;
        `other_has_session`: whether a thread besides this one has."""
        self._statements, self._timeouts = setup.statements, setup.timeouts
        self._waiter, self._telemetry = setup.waiter, setup.telemetry
        self._board = setup.telemetry.board
        self._ends_as_surplus = ends_as_surplus
        self.in_flight = InFlight(setup.statements, setup.telemetry.seat)
        self.queue = LocalQueue(self.in_flight)
        self.unsettled = Unsettled(setup.statements, setup.telemetry, self.in_flight)
        self._handled_types = HandledTypes(setup.registry, setup.telemetry.seat, setup.timeouts)
        self.batches = BatchTransitions(setup.statements, self.in_flight)
        self.breakers = Breakers(setup.statements, setup.registry, self._board, setup.source)
        if self.breakers.states.types:
            self.unsettled.breakers = self.breakers
        self.leader = Leader(
            setup,
            handled_types=self._handled_types,
            in_flight=self.in_flight,
            queue=self.queue,
            unsettled=self.unsettled,
            batches=self.batches,
            breakers=self.breakers,
            other_has_session=other_has_session,
        )
        self.stopping = self.leader.stopping

    def stop_claiming(self) -> None:
        """Lets the threads end once their commands have finished; marks the others as released."""
        self.stopping.set()
        self._waiter.wake()
        self.queue.mark_released()
        self.queue.put(STOP)

    def settle_all(self, connection: ThreadConnection, slot: Slot) -> None:
        """At the end: settles every outcome and releases every claim that is left."""
        self.unsettled.settle_all(connection, slot)
        self.leader.adoption.mark_orphans_released(connection)
        self.in_flight.release(connection)
        with suppress(psycopg.Error):  # A steward sees to what is left.
            self.batches.attend(connection)

    @property
    def busy(self) -> bool:
        has_work = self.in_flight or self.unsettled or self.batches.due
        return bool(has_work or self.breakers.has_reports)

    def take_turn(self, thread: WorkerThread) -> bool:
        """Takes one item of the queue; False if the thread must end."""
        item = self.queue.draw()
        if item is None:
            self._rest(thread)
            item = self.queue.wait()
        if type(item) is Entry:
            if self.queue.domain_pauses >= self._board.domain_pauses:
                try:
                    return self._run(thread, item)
                except BaseException:
                    return self._survive(thread, item.claim)
            # A domain was paused since the claim. The next one takes commands of other domains.
            self.queue.mark_released(item)
        elif item is LEADERSHIP:
            return self.leader.lead(thread)
        elif item is STOP:
            self.queue.put(STOP)  # for the next one
            return False
        return not self._ends_as_surplus(thread)

    def _log(self, thread: WorkerThread) -> None:
        self._rest(thread)
        self.unsettled.log.write()

    def _rest(self, thread: WorkerThread) -> None:
        thread.slot.end(time.monotonic_ns())
        thread.rename("")

    def _survive(self, thread: WorkerThread, claim: Claim) -> bool:
        """Lets the thread go on after an error outside of the handler."""
        stays = thread.end()
        if stays:
            thread.slot.end(time.monotonic_ns())
            self._telemetry.lost(thread.slot, claim)
            self.unsettled.report_other_end(claim, OutcomeLabel.LOST)
            self.in_flight.free([claim])
            self.breakers.not_settled(claim)
        message = (
            "a thread met an error outside of its handler: its command runs again when its lease "
            "ends"
        )
        log_about(logger, logging.ERROR, claim.log_fields, message, exc_info=True)
        return stays

    def _run(self, thread: WorkerThread, entry: Entry) -> bool:
        claim = entry.claim
        handled = self._handled_types.find(claim.domain, claim.type)
        if handled.handler.group is not None and _may_join(entry):
            entries = self._draw_group(entry, handled)
            if len(entries) > 1:
                return self._run_group(thread, entries, handled)
        if handled.breaker is not None and not self.breakers.admits(handled.breaker, claim):
            thread.count_denied()
            return self._give_back(thread, entry)
        self._prepare(thread, claim.domain, handled.run_times)
        execution = self._begin(thread, entry, handled)
        try:
            finished = execution.run()
        finally:
            stays = thread.end()
        seconds = finished.seconds if finished else time.monotonic() - execution.began
        if seconds >= QUICK_SECONDS:
            # Waiting for a CPU does not make a type slow: on busy CPUs one no-op in 150 waits.
            seconds = max(0.0, seconds - thread.waited_for_cpu())
        handled.run_times.add(seconds)
        if not stays:
            return False  # It timed out: housekeeping settles its command.
        if handled.breaker is not None:
            self.breakers.give_back(handled.breaker, claim)
            if execution.was_kept:
                self.in_flight.restore(entry)
                return self._give_back(thread, entry)
        self.in_flight.finish(entry)
        self._hand_over(thread, execution, finished, seconds)
        return True

    def _hand_over(
        self, thread: WorkerThread, execution: Execution, finished: Finished | None, seconds: float
    ) -> None:
        """Leaves the outcome to the leader, unless it is settled or its claim is lost."""
        if finished is not None:
            # First append, then check whether the leader waits; it does the opposite.
            self.unsettled.add(finished)
        elif execution.committed is not None:
            self.unsettled.settled(thread.slot, [execution.committed])
        else:
            self.unsettled.not_settled(execution.claim, execution.max_attempts, seconds)
        self._waiter.wake_if_waiting()
        if self.unsettled.log:
            self._log(thread)

    def _give_back(self, thread: WorkerThread, entry: Entry) -> bool:
        """Releases a claim, of which nothing has happened: the breaker of its type has opened."""
        self.in_flight.mark_released([entry.claim])
        return not self._ends_as_surplus(thread)

    def _begin(self, thread: WorkerThread, entry: Entry, handled: HandledType) -> Execution:
        claim = entry.claim
        kind = Execution if handled.surroundings is None else SurroundedExecution
        execution = kind(claim, handled, thread, self._statements, self._timeouts)
        self.in_flight.start(entry)
        thread.slot.begin(
            handled.command_type,
            claim.priority,
            claim.id,
            claim.token,
            claim.command_id,
            claim.attempts + 1,
            execution.began_ns,
            execution.began_ns + handled.timeout_ns,
        )
        thread.work = execution
        return execution

    def _draw_group(self, first: Entry, handled: HandledType) -> list[Entry]:
        """Commands that one transaction can handle together, and soon."""
        correlation_ids = {first.claim.correlation_id}
        domain, group = first.claim.domain, handled.handler.group

        def joins(entry: Entry) -> bool:
            claim = entry.claim
            if (
                not _may_join(entry)
                or claim.domain != domain
                or claim.correlation_id in correlation_ids
                or self._handled_types.find(domain, claim.type).handler.group is not group
            ):
                return False
            correlation_ids.add(claim.correlation_id)
            return True

        most = min(_MAX_GROUP, handled.run_times.count_within(_GROUP_SECONDS))
        return self.queue.draw_group(first, joins, most)

    def _run_group(self, thread: WorkerThread, entries: list[Entry], handled: HandledType) -> bool:
        """Those that fail go back into the queue, and run singly."""
        domain_pauses = self.queue.domain_pauses
        by_id = {entry.claim.command_id: entry for entry in entries}
        self._prepare(thread, entries[0].claim.domain, handled.run_times)
        try:
            done, stays = self._handle_together(thread, by_id, handled)
            if not stays:
                return False
            for finished in done:
                self.in_flight.finish(by_id.pop(finished.claim.command_id))
            self.unsettled.settled(thread.slot, done)
            for entry in by_id.values():
                self.in_flight.restore(entry)
            self.queue.put_first([*by_id.values()], domain_pauses)
        except BaseException:
            if thread.end():
                self.in_flight.free([entry.claim for entry in entries])
            raise
        self._waiter.wake_if_waiting()
        if self.unsettled.log:
            self._log(thread)
        return True

    def _handle_together(
        self, thread: WorkerThread, entries: Mapping[UUID, Entry], handled: HandledType
    ) -> tuple[list[Finished], bool]:
        """What was settled, and whether no command has timed out: housekeeping has them then."""
        claims = [entry.claim for entry in entries.values()]

        def begin(claim: Claim) -> Execution | None:
            if not thread.end():
                return None
            handled = self._handled_types.find(claim.domain, claim.type)
            execution = self._begin(thread, entries[claim.command_id], handled)
            execution.group = claims
            return execution

        group = GroupExecution(handled, claims, thread, self._statements, begin)
        thread.waited_for_cpu()
        began = time.monotonic()
        try:
            done = group.run()
        finally:
            stays = thread.end()
        seconds = time.monotonic() - began - thread.waited_for_cpu()
        handled.run_times.add(max(0.0, seconds) / len(claims), len(claims))
        return done, stays

    def _prepare(self, thread: WorkerThread, domain: str, run_times: RunTimes) -> None:
        """Before a command that may be long: wakes a thread for the other commands, and settles the
        outcomes that wait."""
        if thread.domain != domain:
            thread.rename(domain)
        if not run_times.is_tiny and self.queue.needs_help:
            self.queue.wake()
        if not run_times.is_quick and self.unsettled:
            thread.slot.end(time.monotonic_ns())
            with suppress(psycopg.Error):
                self.unsettled.settle(thread.connection, thread.slot, self.unsettled.take())


def _may_join(entry: Entry) -> bool:
    """Not if it was claimed before: it may fail again, and with it the group."""
    return not entry.runs_singly and entry.claim.token == 1
