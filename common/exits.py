"""Exit codes: the supervisor's, and those by which a child names the reason of its exit. Pure."""

from dataclasses import dataclass
from enum import IntEnum
from signal import Signals


class Exit(IntEnum):
    #: Stopped, all drained.
    DONE = 0
    ERROR = 1
    USAGE = 2
    #: For a reason that a restart cannot cure; the log names it.
    CANNOT_START = 3
    #: Too many early exits.
    CRASH_LOOP = 4
    #: Stopped, but commands are left without an outcome, or claims could not be released: of
    #: processes that were killed, or of a round trip whose reply was lost.
    UNFINISHED = 5
    #: Only of children: the system has no thread left for them, but may have one later.
    NO_RESOURCES = 6
    #: Only of children: stopped gracefully after a SIGTERM that the supervisor did not send. As
    #: a shell shows it; a small number could be a handler's own, in os._exit().
    TERMINATED = 143


def cannot_start_thread(error: BaseException | None) -> bool:
    """Such an error has no class of its own."""
    return isinstance(error, RuntimeError) and "start new thread" in str(error)


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """`signal` is what killed the process; 0 if it exited with `code`. As text a predicate."""

    signal: int
    code: int

    def __str__(self) -> str:
        if not self.signal:
            return f"exited with code {self.code}"
        try:
            return f"was killed by {Signals(self.signal).name}"
        except ValueError:
            return f"was killed by signal {self.signal}"
