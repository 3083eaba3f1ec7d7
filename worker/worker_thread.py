"""A slot: the place for one thread, what it is doing, and by when it has promised to be back."""

import sys
import threading
import traceback
from dataclasses import dataclass

from cmdbus.board.slots import Slot as Place
from cmdbus.worker.claims.claim import Finished
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.execution.execution import Execution


@dataclass(slots=True, eq=False)
class CurrentWork:
    """What a thread does and may get stuck in."""

    #: None for a step of the lead.
    execution: Execution | None
    #: Monotonic time; moved by the thread itself (context.extend).
    due: float
    #: Once it was given up: what becomes of its command, and whether the database knows.
    finished: Finished | None = None
    settled: bool = False


class WorkerThread:
    """Written by its thread; judged by the worker's main thread.

    The lock makes the verdict one about the very work that is late: either the thread
    has ended it before, or it will find at its end that it was given up, and leave.
    """

    def __init__(self, number: int, connection: ThreadConnection, index: int, slot: Place) -> None:
        self.number = number
        self.hand = connection
        #: Where it shows what it does on the board.
        self.index = index
        self.place = slot
        self.thread: threading.Thread | None = None
        #: The session in which this slot last led, and registered its worker.
        self.registered: tuple[int, int] | None = None
        #: Pauses of domains that were heard of before it led last.
        self.pauses = 0
        self._lock = threading.Lock()
        self._work: CurrentWork | None = None
        self._given_up = False

    def begin(self, work: CurrentWork) -> None:
        self._work = work

    def end(self) -> bool:
        """False if the work was given up meanwhile: others have its command, and this
        thread's place."""
        with self._lock:
            self._work = None
            return not self._given_up

    def extend(self, work: CurrentWork, due: float) -> None:
        """Whoever asks for the handler: also a thread that it left behind, which is too late."""
        with self._lock:
            if self._work is work and not self._given_up:
                work.due = due
                self.place.extend(int(due * 1e9))

    @property
    def due(self) -> float | None:
        work = self._work
        return None if work is None or self._given_up else work.due

    @property
    def given_up(self) -> bool:
        return self._given_up

    def put_off(self, seconds: float) -> None:
        """The whole process stood still for so long: nobody can have been back meanwhile."""
        if (work := self._work) is not None:
            self.extend(work, work.due + seconds)

    def give_up_if_late(self, now: float) -> CurrentWork | None:
        """The work, if it is past its due; then it is nobody's but the caller's."""
        with self._lock:
            if self._work is None or self._given_up or self._work.due > now:
                return None
            self._given_up = True
            return self._work

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
