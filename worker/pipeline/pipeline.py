"""The way of one command through a worker process, from the claim to the settlement: the pattern
of leader and followers.

The threads draw from one queue. A thread that draws a command runs it. A thread that draws the
leadership settles what is finished, claims the next commands, puts them into the queue, and the
leadership behind them.

A command is settled in one of three ways, by functions of the schema:

    complete              it completed, and no reply was asked for: in the round trip that claims
    settle                any other outcome: before that round trip, or by housekeeping
    settle with a marker  it used context.connection: by its thread, in the handler's transaction

    take_turn           an item of the queue, until the thread must end
    ├── _run            a command:  in flight -> Execution.run -> finished -> unsettled
    └── Leader.lead     the leadership:  unsettled -> database -> in flight -> queue

If all threads are busy, the leadership waits in the queue: that is backpressure. Only an
empty claim makes the leader wait for a wake-up.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

import psycopg

from cmdbus.board.slots import Slot
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.execution.execution import Execution
from cmdbus.worker.pipeline.in_flight import Entry, InFlight
from cmdbus.worker.pipeline.leader import Leader
from cmdbus.worker.pipeline.local_queue import LEADERSHIP, STOP, LocalQueue
from cmdbus.worker.pipeline.prefetch_policy import QUICK_SECONDS
from cmdbus.worker.pipeline.setup import Setup
from cmdbus.worker.pipeline.unsettled import Unsettled
from cmdbus.worker.pipeline.worker_thread import WorkerThread

logger = logging.getLogger(__name__)


class Pipeline:
    """The stages, and the state that the threads share: each operation on that is atomic."""

    def __init__(self, setup: Setup, ends_as_surplus: Callable[[WorkerThread], bool]) -> None:
        """`ends_as_surplus`: whether a thread must end, as there are too many."""
        self._setup = setup
        self._waiter, self._telemetry = setup.waiter, setup.telemetry
        self._ends_as_surplus = ends_as_surplus
        self.in_flight = InFlight(setup.statements, setup.telemetry.seat)
        self.queue = LocalQueue(self.in_flight)
        self.unsettled = Unsettled(setup.statements, setup.telemetry, self.in_flight)
        self.leader = Leader(setup, self.in_flight, self.queue, self.unsettled)
        self._prefetch, self.stopping = self.leader.prefetch, self.leader.stopping

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

    @property
    def busy(self) -> bool:
        return bool(self.in_flight or self.unsettled)

    def take_turn(self, thread: WorkerThread) -> bool:
        """Takes one item of the queue; False if the thread must end."""
        item = self.queue.draw()
        if item is None:
            self._rest(thread)
            item = self.queue.wait()
        if type(item) is Entry:
            if not self.queue.is_older(self._waiter.domain_pauses):
                return self._survive(thread, item)
            # A domain was paused since then. The next claim takes the commands of other domains.
            self.queue.mark_released(item)
        elif item is LEADERSHIP:
            return self.leader.lead(thread)
        elif item is STOP:
            self.queue.put(STOP)  # for the next one
            return False
        return not self._ends_as_surplus(thread)

    def _rest(self, thread: WorkerThread) -> None:
        thread.slot.end(time.monotonic_ns())
        thread.rename("")

    def _survive(self, thread: WorkerThread, entry: Entry) -> bool:
        """Lets the thread go on after an error outside of the handler."""
        try:
            return self._run(thread, entry)
        except BaseException:
            claim, stays = entry.claim, thread.end()
            if stays:
                thread.slot.end(time.monotonic_ns())
                self._telemetry.lost(thread.slot, claim)
                self.in_flight.free([claim])
            logger.exception(
                "the thread of %s met an error outside of its handler: the command runs again "
                "when its lease ends",
                claim.label,
            )
            return stays

    def _run(self, thread: WorkerThread, entry: Entry) -> bool:
        claim = entry.claim
        self._prepare(thread, claim)
        handler = self._setup.registry.find(claim.domain, claim.type)
        assert handler is not None, "only types with a handler are claimed"
        execution = Execution(claim, handler, thread, self._setup.statements, self._setup.timeouts)
        self.in_flight.start(entry)
        self._telemetry.begins(
            thread.slot, entry.command_type, claim, execution.began, execution.due
        )
        thread.work = execution
        try:
            finished = execution.run()
        finally:
            stays = thread.end()
        seconds = time.monotonic() - execution.began
        thread.slot.counters.handler_duration.observe(entry.command_type.index, seconds)
        if seconds >= QUICK_SECONDS:
            # Waiting for a CPU does not make a type slow: on busy CPUs one no-op in 150 waits.
            seconds = max(0.0, seconds - thread.waited_for_cpu())
        self._prefetch.ran(claim.domain, claim.type, seconds)
        if not stays:
            return False  # It timed out: housekeeping settles its command.
        self.in_flight.finish(entry)
        if finished is not None:
            # First append, then check whether the leader waits; it does the opposite.
            self.unsettled.add(finished)
        elif execution.committed is not None:
            self.unsettled.settled(thread.slot, [execution.committed])
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
        if self.queue.needs_help and not self._prefetch.is_tiny(claim.domain, claim.type):
            self.queue.wake()
        if self.unsettled and not self._prefetch.is_quick(claim.domain, claim.type):
            thread.slot.end(time.monotonic_ns())
            with suppress(psycopg.Error):
                self.unsettled.settle(thread.connection, thread.slot, self.unsettled.take())
