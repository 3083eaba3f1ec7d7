"""Waits for commands after an empty claim: for a byte in the pipe that all workers of the node
share, or in this worker's own.

The steward listens, and writes one byte when there is something to claim. Leader and steward
shake hands over the board, so that no arming is missed: the leader shows that it is parked, and
then reads whether the node is armed; the steward clears the arming's number on the board, takes
the flag down, and then reads whether a leader is parked.

While the board shows a listening steward no worker polls; while it does not, all do: each second
if it should listen.
"""

import random
import threading
from collections.abc import Callable
from contextlib import suppress

from cmdbus.board.board import Node
from cmdbus.board.counters import Counter
from cmdbus.board.wake_pipe import WakePipe, wait_for
from cmdbus.checks import check_seconds
from cmdbus.clock import time
from cmdbus.settings import MIN_POLL_SECONDS

#: Seconds between a leader's checks whether a steward listens.
_CHECK_SECONDS = 5.0
#: Seconds between two polls while no steward listens that should: it reconnects, or its successor
#: imports the application.
_UNHEARD_SECONDS = 1.0


def check_poll_interval(seconds: float) -> float:
    if check_seconds("poll_interval", seconds) < MIN_POLL_SECONDS:
        raise ValueError(f"poll_interval must be at least {MIN_POLL_SECONDS} s, not {seconds!r}")
    return float(seconds)


class NodeWaiter:
    """Only the leader calls `before_claim`, `after_claim`, `claim_failed` and `wait_for_work`."""

    def __init__(
        self,
        node: Node,
        poll_interval: float,
        jitter_ms: int,
        leave: Callable[[], None] | None = None,
        check_seconds: float = _CHECK_SECONDS,
    ) -> None:
        """`leave` stops a quarantine process, which ends once it has nothing more to run."""
        self._board = node.board
        self._listens = node.listens
        self._leave = leave
        self._has_neighbours = node.parent is not None
        self._seat = node.seat
        self._worker_pipe = node.worker_pipe
        self._steward_pipe = node.steward_pipe
        self._bell = WakePipe(1)
        self.poll_interval = check_poll_interval(poll_interval)
        self._jitter_ms = jitter_ms
        self._check_seconds = check_seconds
        self._waiting = False
        #: A byte was taken, and the claim that it asks for is not made yet.
        self._woken = False
        self._stopped = threading.Event()

    @property
    def domain_pauses(self) -> int:
        return self._board.domain_pauses

    def set_poll_interval(self, seconds: float) -> None:
        self.poll_interval = seconds
        self.wake()

    def stop(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._woken:
            self._worker_pipe.put()
        self._bell.close()

    def wake(self) -> None:
        if not self._stopped.is_set():
            with suppress(OSError):  # its descriptors were closed, as the leader finds out
                self._bell.put()

    def wake_if_waiting(self) -> None:
        if self._waiting:
            self.wake()

    def before_claim(self) -> None:
        """A wake-up after this point ends the wait that follows the claim."""
        self._bell.drain()

    def after_claim(self, *, full: bool) -> None:
        """A worker that was woken and got all that it asked for wakes another one, as there may be
        more. One that has not waited wakes none."""
        if self._woken and full and self._has_neighbours:
            self._worker_pipe.put()
        self._woken = False

    def claim_failed(self) -> None:
        """A byte goes back: this worker may be the only one that cannot claim."""
        if self._woken:
            self._woken = False
            self._worker_pipe.put()

    def wait_for_work(
        self, busy: Callable[[], bool], until: float = float("inf")
    ) -> Counter | None:
        """Returns the source of the wake-up; None if it was this worker's own. `busy`: whether the
        worker has something else to do; other threads check `_waiting` after they have made it
        true. The wait ends at the monotonic time `until`."""
        self._waiting = True
        if self._leave is not None:
            self._wait_to_leave(busy, self._leave)
            return None
        # A worker that must claim again soon does not count as idle: --drain would end the fleet.
        since = time.monotonic_ns() if until == float("inf") else int(until * 1e9)
        self._seat.parked = since
        try:
            if busy():
                return None
            return self._wait(busy, since, until)
        finally:
            self._seat.parked = 0
            self._waiting = False

    def _wait_to_leave(self, busy: Callable[[], bool], leave: Callable[[], None]) -> None:
        if not busy():
            leave()
            wait_for([self._bell], float("inf"))
        self._waiting = False

    def only_own(self) -> bool:
        """Whether a wait without a source was ended by this worker's own outcomes alone, so that
        there is nothing to claim: while the node is armed, anything else sends a byte."""
        self._bell.drain()
        return self._board.armed != 0 and not self._woken

    def _wait(self, busy: Callable[[], bool], since: int, until: float) -> Counter | None:
        began = time.monotonic()
        ends_at = began + max(self.poll_interval, self._check_seconds)
        while True:
            if not self._board.armed:
                self._steward_pipe.put()
            now, listening = time.monotonic(), self._board.listening
            polls_at = began + self.poll_interval
            if self._listens and not listening:
                polls_at = min(polls_at, began + _UNHEARD_SECONDS)
            if now >= polls_at and not listening:
                return Counter.WAKEUPS_POLL
            if now >= until:
                return Counter.WAKEUPS_TIMER
            if now >= ends_at:
                return None  # The leader shows that it has not hung, and waits on.
            pause = self._check_seconds
            if now < polls_at:
                pause = min(pause, polls_at - now)
            wait_for([self._worker_pipe, self._bell], min(pause, ends_at - now, until - now))
            if self._bell.pending:
                return None
            if self._worker_pipe.take():
                return self._taken(busy)
            # Another write may have replaced the parked state, unknown to the steward.
            self._seat.parked = since

    def _taken(self, busy: Callable[[], bool]) -> Counter | None:
        if busy():
            self._worker_pipe.put()
            return None
        self._woken = True
        if self._jitter_ms:
            time.sleep(random.uniform(0, self._jitter_ms / 1000))
        return Counter.WAKEUPS_PIPE
