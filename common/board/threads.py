"""The number of a worker's threads as the board shows it, in one cell. Pure."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

_BITS = 15
_MASK = (1 << _BITS) - 1


class StepReason(IntEnum):
    """Why a worker has the number of threads that it has."""

    #: The number is fixed, or was set by the program.
    FIXED = 0
    #: Its range has just begun: the least, or the number of its predecessor.
    STARTED = 1
    #: Work waited, and throughput grew with the last step if there was one.
    WORK_WAITS = 2
    #: A larger number was tried, and left again.
    NO_GAIN = 3
    #: Fewer threads are tried, or kept as they do as much.
    CPU_BUSY = 4
    HANDLERS_SLOWER = 5
    FEWER_MAY_DO = 6
    #: A smaller number was tried, and left again.
    FEWER_DID_LESS = 7
    THREADS_IDLE = 8
    #: There was no connection, slot or thread of the system for more.
    NO_RESOURCES = 9


SENTENCES = {
    StepReason.FIXED: "the number is fixed",
    StepReason.STARTED: "nothing to change since the start",
    StepReason.WORK_WAITS: "work waits, and more threads may help",
    StepReason.NO_GAIN: "more threads did not help",
    StepReason.CPU_BUSY: "the CPU is busy, and fewer threads may do as much",
    StepReason.HANDLERS_SLOWER: "handlers are slower than before",
    StepReason.FEWER_MAY_DO: "fewer threads may do as much",
    StepReason.FEWER_DID_LESS: "fewer threads did less",
    StepReason.THREADS_IDLE: "threads were idle",
    StepReason.NO_RESOURCES: "nothing was left for more threads or connections",
}


@dataclass(frozen=True, slots=True)
class ThreadsView:
    """`least` and `most` are equal if the number is fixed."""

    now: int
    least: int
    most: int
    reason: StepReason = StepReason.FIXED

    @property
    def is_range(self) -> bool:
        return self.least < self.most

    @property
    def sentence(self) -> str:
        return SENTENCES[self.reason]

    def to_dict(self) -> dict[str, object]:
        return {
            "now": self.now,
            "least": self.least,
            "most": self.most,
            "reason": self.reason.name.lower(),
        }

    def to_cell(self) -> int:
        parts = (self.now, self.least, self.most, self.reason)
        return sum(part << _BITS * index for index, part in enumerate(parts))

    @classmethod
    def from_cell(cls, cell: int) -> Self | None:
        """None of an empty cell, and of garbage."""
        now, least, most, reason = (cell >> _BITS * index & _MASK for index in range(4))
        if not 1 <= least <= now <= most or reason not in SENTENCES:
            return None
        return cls(now, least, most, StepReason(reason))
