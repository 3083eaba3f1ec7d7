"""Whether the process that wrote a pid is still there, as far as its number can tell."""

import os
from enum import Enum
from pathlib import Path

from cmdbus.clock import time

_TICKS = os.sysconf("SC_CLK_TCK")
#: Fields of /proc/PID/stat behind the name: the state, and the start in ticks since boot.
_STATE, _START = 0, 19


class PidState(Enum):
    RUNNING = "here"
    #: Stopped by a signal, until another one lets it go on.
    STOPPED = "frozen"
    GONE = "gone"


def pid_state(pid: int, since: int | None) -> PidState:
    """`since`: when it said that it was there, in monotonic nanoseconds; who has begun after
    that is somebody else with its number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return PidState.GONE
    fields = stat.rpartition(b")")[2].split()
    if fields[_STATE] in (b"Z", b"X") or _began_after(int(fields[_START]), since):
        return PidState.GONE
    return PidState.STOPPED if fields[_STATE] in (b"T", b"t") else PidState.RUNNING


def _began_after(start_ticks: int, since: int | None) -> bool:
    # The monotonic clock stands still while the machine sleeps: this is at most its start.
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return since is not None and start_ticks / _TICKS - asleep > since / 1e9 + 1
