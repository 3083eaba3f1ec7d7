"""What the threads of a process draw from: claimed commands, and signs, of which one is the
lead. The queue's order says who does what next; there is no dispatcher.
"""

from contextlib import suppress
from queue import Empty, SimpleQueue

from cmdbus.clock import time
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.in_flight import InFlight

#: What was claimed and is not started within so many seconds goes back.
_STARTED_WITHIN = 1.0


class ControlItem:
    def __init__(self, name: str) -> None:
        self.name = name


#: A nudge lets a thread see that there are too many.
LEAD, LEAVE, NUDGE = ControlItem("lead"), ControlItem("leave"), ControlItem("nudge")


class LocalQueue:
    """Used by every thread; each operation is atomic."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._queue: SimpleQueue[Claim | ControlItem] = SimpleQueue()
        self._filled_at = 0.0
        #: Number of pauses that were known when the claim of these commands began.
        self._pauses = 0
        #: Waits for the next.
        self.draw = self._queue.get
        self.put = self._queue.put

    def fill(self, claims: list[Claim], pauses: int) -> None:
        """`pauses`: their number when the claim began."""
        self._filled_at = time.monotonic()
        # Claims that join older ones count as equally old.
        self._pauses = pauses if self._queue.empty() else min(self._pauses, pauses)
        for claim in claims:
            self._queue.put(claim)

    def __bool__(self) -> bool:
        """Whether something is to be drawn now."""
        return not self._queue.empty()

    def release_stale(self) -> None:
        """What was claimed ahead of the threads and not started in time, because a type that
        was quick is not any more."""
        late = time.monotonic() - self._filled_at >= _STARTED_WITHIN
        if late and self._queue.qsize() >= 2:
            self._release_claims()

    def is_older(self, pauses: int) -> bool:
        """Whether what was drawn was claimed before the latest of these pauses."""
        return self._pauses < pauses

    def release_of_thread(self, claim: Claim) -> None:
        """All commands that no thread has started, and the one that was just drawn."""
        self._release_claims()
        self._in_flight.mark_released([claim])

    def release_all(self) -> None:
        """Only once the worker stops, as the lead goes, too."""
        if LEAVE in self._release():
            self._queue.put(LEAVE)

    def _release_claims(self) -> None:
        for sign in self._release():
            self._queue.put(sign)

    def _release(self) -> list[ControlItem]:
        claims: list[Claim] = []
        signs: list[ControlItem] = []
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, Claim):
                    claims.append(item)
                else:
                    signs.append(item)
        self._in_flight.mark_released(claims)
        return signs
