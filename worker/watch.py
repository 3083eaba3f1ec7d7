"""A worker's main thread while its threads run: beats, gives up overdue threads, and adapts their
number. It never touches the database."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from cmdbus.board.board import Node
from cmdbus.clock import time
from cmdbus.exits import Exit
from cmdbus.timeouts import Timeouts
from cmdbus.worker.housekeeping import Housekeeping
from cmdbus.worker.pipeline.setup import Setup
from cmdbus.worker.pipeline.telemetry import Telemetry
from cmdbus.worker.steward.steward import Steward
from cmdbus.worker.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats at most, and so between two checks for overdue threads.
_BEAT_SECONDS = 1.0
#: Seconds by which a heartbeat may be late. If it is later, the process was stopped or a handler
#: held the GIL, and all deadlines are extended.
_STALL_SECONDS = 1.0


def beat(node: Node, telemetry: Telemetry, timeouts: Timeouts) -> None:
    """Sends a heartbeat with the time after which this process counts as hung."""
    if node.parent not in (None, os.getppid()):
        logger.error("the supervisor is gone: this process exits immediately")
        os._exit(Exit.ERROR)
    telemetry.beat(time.monotonic() + timeouts.watchdog)


@dataclass(frozen=True, slots=True)
class Watch:
    node: Node
    setup: Setup
    threads: ThreadPool
    housekeeping: Housekeeping
    #: Only in a standalone worker.
    steward: Steward | None
    #: Changes the number of threads, where that may change.
    adapt: Callable[[], None]

    @property
    def beat_seconds(self) -> float:
        return min(_BEAT_SECONDS, self.setup.timeouts.thread / 4)

    def run(self, orders: SimpleQueue[float]) -> float:
        """Runs until the order to stop; returns its deadline."""
        while True:
            began = time.monotonic()
            pause = min(self.beat_seconds, max(self.threads.next_due() - began, 0.0))
            with suppress(Empty):
                return orders.get(timeout=pause)
            self._check_faults()
            self.look(began + pause)
            self.adapt()

    def look(self, expected: float) -> None:
        """Called about once in `beat_seconds`, at the monotonic time `expected` or later."""
        late = time.monotonic() - expected
        if late > _STALL_SECONDS:
            self.threads.put_off(late)
        beat(self.node, self.setup.telemetry, self.setup.timeouts)
        self._check_due()
        if late > _STALL_SECONDS:
            message = "the process stalled for %.1f s: extending all deadlines by that time"
            self.threads.unsettled.report(partial(logger.warning, message, late))

    def _check_due(self) -> None:
        for thread, work in self.threads.give_up_late(time.monotonic()):
            self.setup.telemetry.seat.mark_stuck(thread.slot.index, thread.slot.sequence)
            self.housekeeping.take_over(thread, work, thread.stack())
        self.housekeeping.cut_if_late(time.monotonic())

    def _check_faults(self) -> None:
        """An exception that was sent to a thread may have ended it anywhere, and a closed
        descriptor may have been reused: nothing in this process can be relied on."""
        fault = self.threads.fault or self.housekeeping.fault
        if self.steward is not None:
            self.steward.abort_if_late(time.monotonic())
            fault = fault or self.steward.fault
        if not fault:
            return
        if self.node.parent is not None:
            logger.error("this process cannot go on, and exits to be replaced: %s", fault)
            os._exit(Exit.ERROR)
        raise RuntimeError(f"the worker cannot go on: {fault}")
