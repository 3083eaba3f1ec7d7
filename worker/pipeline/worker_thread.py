"""A worker thread, its current work, and the deadline of that."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cmdbus.board.counters import Counter
from cmdbus.board.slots import Slot
from cmdbus.named_lines import name_lines
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Claim, Connection
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.execution.execution import Execution

#: Nanoseconds in which the reading thread had a CPU, and in which it waited for one.
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(slots=True, eq=False)
class RoundTrip:
    """A leader's work: to settle and claim, or to wait."""

    #: Monotonic time.
    due: float
    #: False while a thread prepares its session.
    leads: bool = True


Work = Execution | RoundTrip


class WorkerThread:
    """Written by its thread, which executes `run`; checked by the worker's main thread.

    The lock decides a race at the deadline: either the thread ends its work first, or it finds that
    the work has timed out, and ends itself.
    """

    def __init__(
        self,
        number: int,
        connection: ThreadConnection,
        slot: Slot,
        stopping: threading.Event,
        run: Callable[["WorkerThread"], None],
        breakers: Breakers,
        is_lost: Callable[[Claim], bool],
    ) -> None:
        self.number = number
        self.pid = os.getpid()
        self.connection = connection
        self.slot = slot
        self.breakers = breakers
        self._run = run
        self.thread = threading.Thread(target=self._begin, name=f"worker-{number}", daemon=True)
        #: The session in which this thread last led, and registered its worker.
        self.registered: tuple[int, int] | None = None
        #: Number of pauses of domains that were known when it last led.
        self.domain_pauses = 0
        #: The domain in its name; empty between two domains' commands.
        self.domain = ""
        self._stopping = stopping
        self._is_lost = is_lost
        self._lock = threading.Lock()
        #: Set by its thread alone, once the slot shows it: other threads may extend it from then
        #: on. Ended by `end`.
        self.work: Work | None = None
        self.given_up = False
        self._frames: list[traceback.FrameSummary] = []
        #: It ends, as there are too many threads.
        self.is_surplus = False
        #: It takes part only if it gets a session at its start.
        self.needs_session = False
        #: The system's figure at the latest call of waited_for_cpu.
        self._waited_ns = 0

    def _begin(self) -> None:
        name_lines(self._log_fields)
        self._run(self)

    def _log_fields(self) -> dict[str, object] | None:
        """Of the command that it executes."""
        work = self.work
        return work.claim.log_fields if isinstance(work, Execution) else None

    def end(self) -> bool:
        """False if the work has timed out: other threads have its command and the slot."""
        with self._lock:
            self.work = None
            return not self.given_up

    def extend(self, work: Work, seconds: float) -> None:
        """Called by any thread of the handler; has no effect once the work is over."""
        with self._lock:
            if self.work is work and not self.given_up:
                work.due += seconds
                self.slot.extend(int(work.due * 1e9))

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def has_lost(self, work: Execution) -> bool:
        """Whether nothing of this execution counts any longer: its claim is lost, or its time was
        over. Called by any thread of the handler."""
        return self.given_up or self._is_lost(work.claim)

    def connect(self) -> Connection:
        """However long that takes, unless the worker stops."""
        return self.connection.connection(self._stopping)

    def connect_once(self) -> Connection:
        return self.connection.connection()

    def count_denied(self) -> None:
        self.slot.counters.add(Counter.BREAKER_DENIED)

    def rename(self, domain: str) -> None:
        """Names the thread after the domain whose commands it runs, for readers of stacks."""
        self.domain = domain
        with suppress(Exception):  # A handler may have changed the object.
            threading.current_thread().name = (
                f"worker-{domain}-{self.number}" if domain else f"worker-{self.number}"
            )

    def waited_for_cpu(self) -> float:
        """Seconds since the last call in which the thread waited for a CPU; 0 if unknown."""
        before = self._waited_ns
        with suppress(OSError, ValueError):
            self._waited_ns = int(_SCHEDSTAT.read_bytes().split()[1])
        return (self._waited_ns - before) / 1e9

    @property
    def due(self) -> float:
        """Infinite without work."""
        work = self.work
        return float("inf") if work is None or self.given_up else work.due

    def put_off(self, seconds: float) -> None:
        """Moves the deadline by the seconds for which the whole process stalled."""
        if (work := self.work) is not None:
            self.extend(work, seconds)

    def give_up_if_late(self, now: float) -> Work | None:
        """Returns the work if it is overdue: then it has timed out, and only the caller settles
        its command."""
        with self._lock:
            if self.work is None or self.given_up or self.work.due > now:
                return None
            # First: a handler that asks for it finds out that it was given up, and ends.
            self._frames = self._current_frames()
            self.given_up = True
            return self.work

    def stack(self) -> str:
        """That of the moment at which it was given up, with source lines."""
        return "".join(traceback.StackSummary.from_list(self._frames).format())

    def _current_frames(self) -> list[traceback.FrameSummary]:
        """The innermost last; no file is read."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if frame is None:
            return []
        found = [
            traceback.FrameSummary(f.f_code.co_filename, line, f.f_code.co_name, lookup_line=False)
            for f, line in traceback.walk_stack(frame)
        ]
        return found[::-1]
