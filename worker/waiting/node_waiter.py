"""When a worker of a fleet that found nothing looks again: a byte on the wire that all of the
node's workers share, or its own bell.

The steward listens, and writes one byte when there is something to do. Leader and steward
shake hands over the board, so that no arming is missed: the leader shows that it is parked,
and then looks whether the node is armed; the steward says that it is not armed any more,
disarms, and then looks who is parked.

While the board shows a listening steward nobody polls. While it does not, everybody does.
"""

import random
import threading
from collections.abc import Callable

from cmdbus.board.board import Node
from cmdbus.board.counters import Counter
from cmdbus.board.wake_pipe import WakePipe, wait_for
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.waiting.wake import check_poll_interval

#: A leader looks so often, in seconds, whether there still is a listening steward.
_LOOK_SECONDS = 5.0


class NodeWaiter:
    """Only who has the lead calls `rest`, `working` and `stepped`."""

    def __init__(
        self, node: Node, poll_interval: float, jitter_ms: int, look: float = _LOOK_SECONDS
    ) -> None:
        self._board = node.board
        self._seat = node.seat
        self._worker_pipe = node.worker_pipe
        self._steward_pipe = node.steward_pipe
        self._bell = WakePipe(1)
        self.poll_interval = check_poll_interval(poll_interval)
        self._jitter_ms = jitter_ms
        self._look = look
        self._waiting = False
        #: A byte was taken, and the claim that it asked for was not made yet.
        self._woken = False
        self._stopped = threading.Event()

    @property
    def pauses(self) -> int:
        return self._board.pauses

    def start(self) -> None:
        """Nothing: the steward listens."""

    def stop(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._woken:
            self._worker_pipe.put()
        self._bell.close()

    def wake(self) -> None:
        if not self._stopped.is_set():
            self._bell.put()

    def wake_if_waiting(self) -> None:
        if self._waiting:
            self.wake()

    def before_claim(self, connection: Connection) -> None:
        """Before each claim: whoever rings after it has looked ends the rest that follows."""
        self._bell.drain()

    def after_claim(self, *, full: bool) -> None:
        """After each claim. One that was woken and got all that it asked for sends another
        one to look: there may be more. In a tight loop nobody was woken."""
        if self._woken and full:
            self._worker_pipe.put()
        self._woken = False

    def wait_for_work(
        self, connection: Connection, busy: Callable[[], bool], until: float = float("inf")
    ) -> Counter | None:
        self._waiting = True
        # A worker that must claim again soon does not count as idle: --drain would end the fleet.
        since = time.monotonic_ns() if until == float("inf") else int(until * 1e9)
        self._seat.park(since)
        try:
            if busy():
                return None
            self._call_if_unarmed()
            return self._wait(busy, since, until)
        finally:
            self._seat.unpark()
            self._waiting = False

    def only_own(self) -> bool:
        """While the node is armed, whatever comes is a byte."""
        self._bell.drain()
        return self._board.armed != 0 and not self._woken

    def _call_if_unarmed(self) -> None:
        if not self._board.armed:
            self._steward_pipe.put()

    def _wait(self, busy: Callable[[], bool], since: int, until: float) -> Counter | None:
        began = time.monotonic()
        polls_at, ends_at = began + self.poll_interval, began + max(self.poll_interval, self._look)
        while True:
            now = time.monotonic()
            if now >= polls_at and not self._board.listening:
                return Counter.WAKEUPS_POLL
            if now >= until:
                return Counter.WAKEUPS_TIMER
            if now >= ends_at:
                return None  # It has not hung, and rests on.
            pause = self._look if now >= polls_at else min(polls_at - now, self._look)
            wait_for([self._worker_pipe, self._bell], min(pause, ends_at - now, until - now))
            if self._bell.pending:
                return None
            if self._worker_pipe.take():
                return self._taken(busy)
            # If something else was written there, nobody knew that we wait.
            self._seat.park(since)
            self._call_if_unarmed()

    def _taken(self, busy: Callable[[], bool]) -> Counter | None:
        if busy():
            self._worker_pipe.put()
            return None
        self._woken = True
        if self._jitter_ms:
            time.sleep(random.uniform(0, self._jitter_ms / 1000))
        return Counter.WAKEUPS_PIPE


class QuarantineWaiter:
    """For a process that runs suspects, and leaves when there are no more."""

    poll_interval = 60.0
    #: It claims one command at a time, so that none waits for a thread.
    pauses = 0

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._bell = threading.Event()

    def start(self) -> None:
        """Nothing is listened to."""

    def stop(self) -> None:
        self._bell.set()

    def wake(self) -> None:
        self._bell.set()

    def wake_if_waiting(self) -> None:
        self._bell.set()

    def before_claim(self, connection: Connection) -> None:
        self._bell.clear()

    def after_claim(self, *, full: bool) -> None:
        """Nobody else is to be woken."""

    def wait_for_work(
        self, connection: Connection, busy: Callable[[], bool], until: float = float("inf")
    ) -> Counter | None:
        if not busy():
            self._leave()
            self._bell.wait()
        return None

    def only_own(self) -> bool:
        return False
