"""Whether the process that wrote a pid is still there, as far as its number can tell."""

import os
from enum import Enum
from pathlib import Path

from cmdbus.clock import time

_TICKS = os.sysconf("SC_CLK_TCK")
#: Fields of /proc/PID/stat behind the name: the state, and the start in ticks since boot.
_STATE, _START = 0, 19


class Presence(Enum):
    HERE = "here"
    #: Stopped by a signal, until another one lets it go on.
    FROZEN = "frozen"
    GONE = "gone"


def presence(pid: int, since: int | None) -> Presence:
    """`since`: when it said that it was there, in monotonic nanoseconds; who has begun after
    that is somebody else with its number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return Presence.GONE
    fields = stat.rpartition(b")")[2].split()
    if fields[_STATE] in (b"Z", b"X") or _began_after(int(fields[_START]), since):
        return Presence.GONE
    return Presence.FROZEN if fields[_STATE] in (b"T", b"t") else Presence.HERE


def _began_after(start_ticks: int, since: int | None) -> bool:
    # The monotonic clock stands still while the machine sleeps: this is at most its start.
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return since is not None and start_ticks / _TICKS - asleep > since / 1e9 + 1
