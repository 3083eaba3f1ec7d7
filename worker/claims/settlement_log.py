"""Messages about settled commands, to the log and to instruments.

A handler that hangs may hold the lock of a log, and an exporter may wait for its collector: neither
may stop a settlement, the leadership, or a thread that keeps leases.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread

from cmdbus.clock import time

#: Seconds between two checks whether all is written.
_POLL_SECONDS = 0.005


class SettlementLog:
    """Messages that are not written yet. Safe to share between threads."""

    def __init__(self) -> None:
        self._messages: deque[Callable[[], object]] = deque()
        #: Held by the thread that writes: of several, all would wait for the lock of the log.
        self._writing = Lock()
        #: That of the latest `write_beside`.
        self._thread: Thread | None = None

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: Callable[[], object]) -> None:
        """Leaves the message to the next one that writes."""
        self._messages.append(message)

    def write(self) -> None:
        """Called by any thread that has nothing else to do. Another one that writes goes on with
        what is there by then."""
        while self._messages and self._writing.acquire(blocking=False):
            try:
                with suppress(IndexError):
                    while True:
                        self._messages.popleft()()
            finally:
                self._writing.release()

    def write_beside(self) -> None:
        """The same in a thread of its own, for a thread that must wait for nothing."""
        begins = self._thread is not None and self._thread.is_alive()
        if self._messages and not (begins or self._writing.locked()):
            thread = Thread(target=self.write, name="log", daemon=True)
            thread.start()
            self._thread = thread

    def write_last(self, seconds: float) -> None:
        """What is left, within this time."""
        until = time.monotonic() + seconds
        try:
            while (self or self._writing.locked()) and time.monotonic() < until:
                self.write_beside()
                time.sleep(_POLL_SECONDS)
        except RuntimeError:  # No thread can start.
            self.write()
