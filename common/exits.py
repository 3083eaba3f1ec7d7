"""Exit codes: the supervisor's, and those by which its children tell it why they left."""

from enum import IntEnum


class Exit(IntEnum):
    #: Stopped, all drained.
    DONE = 0
    ERROR = 1
    USAGE = 2
    #: For a reason that a restart cannot cure; what it is was said.
    CANNOT_START = 3
    #: Too many early deaths.
    CRASH_LOOP = 4
    #: Stopped, but commands had to be killed or given back while they ran.
    UNFINISHED = 5
    #: Only of children: the system has no room for their threads, but may have it later.
    NO_RESOURCES = 6
    #: Only of children: stopped gracefully after a SIGTERM that the supervisor did not send.
    TERMINATED = 7


def cannot_start_thread(error: RuntimeError) -> bool:
    """Whether it says that no thread could be started: it has no class of its own."""
    return "start new thread" in str(error)
