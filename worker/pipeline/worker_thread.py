"""A worker thread: what it works on, and by when it is due."""

import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cmdbus.board.slots import Slot
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.execution.execution import Execution

#: Nanoseconds for which the reading thread has had a CPU, and has waited for one.
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(slots=True, eq=False)
class RoundTrip:
    """A leader's work: it settles, claims, or waits."""

    #: Monotonic time.
    due: float
    #: False while a thread prepares its session.
    leads: bool = True


Work = Execution | RoundTrip


class WorkerThread:
    """Written by its thread; judged by the worker's main thread.

    The lock makes the verdict one about the very work that is late: either the thread has ended
    it before, or the thread finds at its end that the work has timed out, and ends.
    """

    def __init__(
        self,
        number: int,
        connection: ThreadConnection,
        slot: Slot,
        stopping: threading.Event,
    ) -> None:
        self.number = number
        self.connection = connection
        self.slot = slot
        self.thread: threading.Thread | None = None
        #: The session in which this slot last led, and registered its worker.
        self.registered: tuple[int, int] | None = None
        #: Pauses of domains that were heard of before it led last.
        self.pauses = 0
        #: The domain in its name; empty between two domains' commands.
        self.domain = ""
        self._stopping = stopping
        self._lock = threading.Lock()
        #: Begun by its thread alone; ended by `end`.
        self.work: Work | None = None
        self.given_up = False
        #: The system's figure at the latest call of waited_for_cpu.
        self._waited_ns = 0

    def end(self) -> bool:
        """False if the work has timed out: other threads have its command and the slot."""
        with self._lock:
            self.work = None
            return not self.given_up

    def extend(self, work: Work, due: float) -> None:
        """Any thread of the handler may call this; it has no effect once the work is over."""
        with self._lock:
            if self.work is work and not self.given_up:
                work.due = due
                self.slot.extend(int(due * 1e9))

    def connect(self) -> Connection:
        return self.connection.connection(self._stopping)

    def rename(self, domain: str) -> None:
        """Names the thread after the domain whose commands it runs, for readers of stacks."""
        self.domain = domain
        with suppress(Exception):  # A handler may have changed the object.
            threading.current_thread().name = (
                f"worker-{domain}-{self.number}" if domain else f"worker-{self.number}"
            )

    def waited_for_cpu(self) -> float:
        """Seconds since the last call for which the thread could run and had no CPU; 0 where the
        system does not say."""
        before = self._waited_ns
        with suppress(OSError, ValueError):
            self._waited_ns = int(_SCHEDSTAT.read_bytes().split()[1])
        return (self._waited_ns - before) / 1e9

    @property
    def due(self) -> float | None:
        work = self.work
        return None if work is None or self.given_up else work.due

    def put_off(self, seconds: float) -> None:
        """Moves the deadline by the seconds for which the whole process stalled."""
        if (work := self.work) is not None:
            self.extend(work, work.due + seconds)

    def give_up_if_late(self, now: float) -> Work | None:
        """The work, if it is past its due: then it times out, and only the caller may settle it."""
        with self._lock:
            if self.work is None or self.given_up or self.work.due > now:
                return None
            self.given_up = True
            return self.work

    @property
    def running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def join(self, seconds: float) -> None:
        if self.thread is not None and self.running:
            self.thread.join(max(0.0, seconds))

    def stack(self) -> str:
        """Where the thread is, with source lines; empty if it has ended."""
        ident = None if self.thread is None else self.thread.ident
        frame = sys._current_frames().get(ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))
