"""What a worker shows of itself: its seat on the board, its health, its latest failures.

Counts happen where the thing has happened: a command is counted when its settlement
has found its row, so that the counters equal the rows.
"""

import logging
from collections import deque
from typing import NamedTuple

from cmdbus.board.board import Board
from cmdbus.board.counters import Counter, HistogramView, OutcomeLabel
from cmdbus.board.records import Phase
from cmdbus.board.seats import Seat
from cmdbus.board.slots import Slot as Place
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Claim, Finished
from cmdbus.worker.claims.outcomes import OutcomeKind as Fate
from cmdbus.worker.process_health import ProcessHealth

logger = logging.getLogger(__name__)

#: Places on a board in memory; those that nobody uses take none.
SLOTS = 256
_LATEST = 100
_ENDS = {
    Fate.COMPLETED: OutcomeLabel.COMPLETED,
    Fate.FAILED: OutcomeLabel.FAILED,
    Fate.TROUBLE: OutcomeLabel.TROUBLE,
}


class FailedExecution(NamedTuple):
    command_id: str
    type: str
    error: str


class Telemetry:
    """Threads write to places of their own; whoever leaves gives its place back."""

    def __init__(self, board: Board, seat: Seat) -> None:
        self._board = board
        self.seat = seat
        self.health = ProcessHealth()
        self.latest: deque[FailedExecution] = deque(maxlen=_LATEST)
        self._free = deque(range(board.layout.slots))
        #: Steps of the lead; written by who has it.
        self._steps = 0
        self._step_seconds = 0.0

    def acquire_slot(self) -> tuple[int, Place]:
        """Called by the thread that will write to it, or before that begins."""
        index = self._free.popleft()
        return index, self.seat.slot(index)

    def release_slot(self, index: int, slot: Place) -> None:
        slot.release()
        self._free.append(index)

    def database_back(self) -> None:
        """Tells of the end of an outage, once in each process."""
        seconds = self.health.database_back(time.monotonic())
        if seconds is not None:
            logger.info("the database is back after %.1f s", seconds)

    def beat(self, due: float) -> None:
        self.seat.beat(_ns(due), self.health.levels(time.monotonic()))

    def begins(self, slot: Place, claim: Claim, began: float, due: float) -> None:
        command_type = self.seat.command_type(claim.domain, claim.type)
        slot.begin(
            command_type,
            priority=claim.priority,
            id=claim.id,
            token=claim.token,
            command_id=claim.command_id,
            attempt=claim.attempts + 1,
            started=_ns(began),
            due=_ns(due),
        )
        slot.counters.dequeue_latency.observe(command_type.index, claim.waited)

    def ended(self, slot: Place, claim: Claim, began: float) -> None:
        now = time.monotonic()
        command_type = self.seat.command_type(claim.domain, claim.type)
        slot.counters.handler_duration.observe(command_type.index, now - began)
        slot.end(_ns(now))

    def leads(self, slot: Place, due: float) -> None:
        slot.enter(Phase.LEADING, _now(), _ns(due))

    def waits(self, slot: Place, phase: Phase) -> None:
        slot.enter(phase, _now(), 0)

    def settled_and_claimed(self, slot: Place, claimed: int, seconds: float) -> None:
        counter = Counter.BATCHES_PROCESSED if claimed else Counter.EMPTY_RECEIVES
        slot.counters.add(counter)
        self._steps += 1
        self._step_seconds += seconds

    def claim_failed(self, slot: Place) -> None:
        slot.counters.add(Counter.CLAIM_FAILURES)
        self.health.failed(time.monotonic())

    def settled(self, slot: Place, finished: Finished) -> bool:
        """The claim's key is to be freed next; True if the end is to be logged after that."""
        claim, outcome, *_ = finished
        end = _ENDS.get(outcome.kind)
        if end is None:
            end = OutcomeLabel.RETRY if outcome.charged else OutcomeLabel.INTERRUPTED
        self._count(slot, claim, end)
        if end is OutcomeLabel.COMPLETED or end is OutcomeLabel.FAILED:
            self.health.succeeded(time.monotonic())
        elif outcome.charged:
            self.health.failed(time.monotonic())
            self.latest.append(
                FailedExecution(
                    str(claim.command_id), claim.type, f"{outcome.code}: {outcome.message}"
                )
            )
        return end is not OutcomeLabel.COMPLETED

    def _count(self, slot: Place, claim: Claim, end: OutcomeLabel) -> None:
        command_type = self.seat.command_type(claim.domain, claim.type)
        slot.counters.ended(command_type.index, end)

    def ended_elsewhere(self, slot: Place, claim: Claim, end: OutcomeLabel) -> None:
        """LOST or CANCELED. The claim's key is to be freed next, and this to be logged after."""
        self._count(slot, claim, end)
        if end is OutcomeLabel.LOST:
            slot.counters.add(Counter.LOST_LEASES)

    def lost(self, slot: Place, claim: Claim) -> None:
        """An error outside of the handler. The claim's key is to be freed next."""
        self._count(slot, claim, OutcomeLabel.LOST)
        self.health.failed(time.monotonic())

    def log_canceled(self, claim: Claim) -> None:
        logger.info(
            "command %s (%s/%s) was canceled while it ran: nothing that it wrote through its "
            "connection landed",
            claim.command_id,
            claim.domain,
            claim.type,
        )

    def log_lost(self, claim: Claim) -> None:
        logger.warning(
            "command %s (%s/%s) was lost before it was settled: nothing that it wrote through "
            "its connection landed, and it runs again elsewhere",
            claim.command_id,
            claim.domain,
            claim.type,
        )

    def metrics(self) -> dict[str, object]:
        """Names and labels as on the page of metrics, and three averages and sums."""
        counters = self._board.counters()
        durations = counters.handler_duration.values()
        runs = sum(view.count for view in durations)
        return {
            "cmdbus_commands_total": counters.commands,
            "cmdbus_batches_processed_total": counters.batches_processed,
            "cmdbus_empty_receives_total": counters.empty_receives,
            "cmdbus_notification_wakeups_total": counters.notification_wakeups,
            "cmdbus_wakeups_total": counters.wakeups,
            "cmdbus_claim_failures_total": counters.claim_failures,
            "cmdbus_lost_leases_total": counters.lost_leases,
            "cmdbus_dequeue_latency_seconds": _shown(counters.dequeue_latency),
            "cmdbus_handler_duration_seconds": _shown(counters.handler_duration),
            "avg_fetch_time": self._step_seconds / self._steps if self._steps else 0.0,
            "avg_process_time": sum(view.sum for view in durations) / runs if runs else 0.0,
            "claim_failures": counters.claim_failures,
        }


def _shown(
    histograms: dict[tuple[str, str], HistogramView],
) -> dict[tuple[str, str], dict[str, object]]:
    return {
        name: {"count": view.count, "sum": view.sum, "buckets": view.counts}
        for name, view in histograms.items()
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _now() -> int:
    return time.monotonic_ns()
