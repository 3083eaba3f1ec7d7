"""What a worker shows of itself: its seat on the board, its health, its latest failures.

A command is counted once its settlement has found its row, so that the counters equal the rows.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from cmdbus.board.board import Board
from cmdbus.board.counters import Counter, HistogramView, OutcomeLabel
from cmdbus.board.seats import Seat
from cmdbus.board.slots import Slot
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Claim, Finished
from cmdbus.worker.claims.ends import label_of, logs_completions
from cmdbus.worker.claims.outcomes import OutcomeKind
from cmdbus.worker.pipeline.process_health import ProcessHealth

logger = logging.getLogger(__name__)

#: Slots of a board in memory; an unused slot takes no memory.
SLOTS = 256
_LATEST = 100
# Looking a member up in its class takes 0.1 microseconds.
_COMPLETED, _KIND_COMPLETED = OutcomeLabel.COMPLETED, OutcomeKind.COMPLETED


class NoSlotError(Exception):
    """All slots are taken, by threads that hang."""


class FailedExecution(NamedTuple):
    command_id: str
    type: str
    error: str


class Telemetry:
    """Each thread writes to a slot of its own, which it releases when it ends."""

    def __init__(self, board: Board, seat: Seat) -> None:
        self.board = board
        self.seat = seat
        self.health = ProcessHealth()
        self.latest: deque[FailedExecution] = deque(maxlen=_LATEST)
        self._free = deque(range(board.layout.slots))
        #: Round trips that settle and claim; written by the leader.
        self._round_trips = 0
        self._round_trip_seconds = 0.0

    def acquire_slot(self) -> Slot:
        """Called by the thread that will write to it, or before that starts."""
        try:
            return self.seat.slot(self._free.popleft())
        except IndexError:
            raise NoSlotError(
                "no slot of the board is left for another thread: too many threads hang"
            ) from None

    def release_slot(self, slot: Slot) -> None:
        slot.release()
        self._free.append(slot.index)

    def database_back(self, log: Callable[[Callable[[], object]], object]) -> None:
        """Gives `log` the message about the end of an outage, once in each process."""
        seconds = self.health.database_back(time.monotonic())
        if seconds is not None:
            log(partial(logger.info, "the database is back after %.1f s", seconds))

    def beat(self, due: float) -> None:
        self.seat.beat(int(due * 1e9), self.health.levels(time.monotonic()))

    def dequeued(self, slot: Slot, claims: Sequence[Claim]) -> None:
        waits = defaultdict[tuple[str, str], list[float]](list)
        for claim in claims:
            waits[claim.domain, claim.type].append(claim.waited)
        for (domain, type), waited in waits.items():
            index = self.seat.command_type(domain, type).index
            slot.counters.dequeue_latency.observe(index, waited)

    def settled_and_claimed(self, slot: Slot, claimed: int, seconds: float) -> None:
        slot.counters.add(Counter.BATCHES_PROCESSED if claimed else Counter.EMPTY_RECEIVES)
        self._round_trips += 1
        self._round_trip_seconds += seconds

    def claim_failed(self, slot: Slot) -> None:
        slot.counters.add(Counter.CLAIM_FAILURES)
        self.health.ended(time.monotonic(), failures=1)

    def settled(self, slot: Slot, done: Sequence[Finished]) -> list[Finished]:
        """Counts executions, and returns those whose ends are to be logged."""
        times = defaultdict[tuple[str, str, OutcomeLabel], list[float]](list)
        succeeded, failures, to_log = False, 0, []
        for finished in done:
            claim, outcome = finished.claim, finished.outcome
            end = _COMPLETED
            if outcome.kind is not _KIND_COMPLETED:
                to_log.append(finished)
                end = label_of(outcome)
            times[claim.domain, claim.type, end].append(finished.seconds)
            if end is _COMPLETED or end is OutcomeLabel.FAILED:
                succeeded, failures = True, 0
            elif outcome.charged:
                failures += 1
                error = f"{outcome.code}: {outcome.message}"
                self.latest.append(FailedExecution(str(claim.command_id), claim.type, error))
        for (domain, type, end), seconds in times.items():
            index = self.seat.command_type(domain, type).index
            slot.counters.ended(index, end, len(seconds))
            slot.counters.handler_duration.observe(index, seconds)
        self.health.ended(time.monotonic(), succeeded=succeeded, failures=failures)
        return list(done) if logs_completions() else to_log

    def _count(self, slot: Slot, claim: Claim, end: OutcomeLabel) -> None:
        command_type = self.seat.command_type(claim.domain, claim.type)
        slot.counters.ended(command_type.index, end)

    def ended_elsewhere(self, slot: Slot, claim: Claim, end: OutcomeLabel) -> None:
        """LOST or CANCELED."""
        self._count(slot, claim, end)
        if end is OutcomeLabel.LOST:
            slot.counters.add(Counter.LOST_LEASES)

    def lost(self, slot: Slot, claim: Claim) -> None:
        """A thread met an error outside of the handler."""
        self._count(slot, claim, OutcomeLabel.LOST)
        self.health.ended(time.monotonic(), failures=1)

    def metrics(self) -> dict[str, object]:
        """Names and labels as on the page of metrics, two averages, and a second name of
        one counter."""
        counters = self.board.counters()
        durations = counters.handler_duration.values()
        runs = sum(view.count for view in durations)
        return {
            "cmdbus_commands_total": counters.commands,
            **{f"cmdbus_{name}_total": count for name, count in counters.counts.items()},
            "cmdbus_wakeups_total": counters.wakeups,
            "cmdbus_dequeue_latency_seconds": _shown(counters.dequeue_latency),
            "cmdbus_handler_duration_seconds": _shown(counters.handler_duration),
            "avg_fetch_time": self._round_trip_seconds / max(1, self._round_trips),
            "avg_process_time": sum(view.sum for view in durations) / max(1, runs),
            "claim_failures": counters.counts["claim_failures"],
        }


def _shown(
    histograms: dict[tuple[str, str], HistogramView],
) -> dict[tuple[str, str], dict[str, object]]:
    return {
        name: {"count": view.count, "sum": view.sum, "buckets": view.counts}
        for name, view in histograms.items()
    }
