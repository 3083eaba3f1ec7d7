"""Messages about settled commands, to the log and to instruments.

A handler that hangs may hold the lock of a log, and an exporter may wait for its collector: neither
may stop a settlement, the leadership, or a thread that keeps leases.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from cmdbus.clock import time


class SettlementLog:
    """Messages that are not written yet. Safe to share between threads."""

    def __init__(self) -> None:
        self._messages: deque[Callable[[], object]] = deque()
        #: That of the latest `write_beside`.
        self._thread: Thread | None = None

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: Callable[[], object]) -> None:
        """Leaves the message to the next one that writes."""
        self._messages.append(message)

    def write(self) -> None:
        """Called by any thread that has nothing else to do."""
        with suppress(IndexError):  # another thread has taken the last one
            while self._messages:
                self._messages.popleft()()

    def write_beside(self) -> None:
        """The same in a thread of its own, for a thread that must wait for nothing."""
        if self._messages and not (self._thread and self._thread.is_alive()):
            thread = Thread(target=self.write, name="log", daemon=True)
            thread.start()
            self._thread = thread

    def write_last(self, seconds: float) -> None:
        """What is left, within this time."""
        until = time.monotonic() + seconds
        try:
            self.write_beside()
            while self._thread and self._thread.is_alive() and time.monotonic() < until:
                self._thread.join(max(0.0, until - time.monotonic()))
                self.write_beside()
        except RuntimeError:  # No thread can start.
            self.write()
