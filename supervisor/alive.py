"""Whether the process that wrote a pid is still there, as far as its number can tell."""

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
#: Fields of /proc/PID/stat behind the name: the state, and the start in ticks since boot.
_STATE, _START = 0, 19


def is_alive(pid: int, since: int | None) -> bool:
    """`since`: when it said that it was there, in monotonic nanoseconds; who has begun after
    that is somebody else with its number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False if Path("/proc/self").exists() else _answers(pid)
    except OSError:
        return True
    fields = stat.rpartition(b")")[2].split()
    if fields[_STATE] in (b"Z", b"X"):
        return False
    # The monotonic clock stands still while the machine sleeps: this is at most its start.
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    started = int(fields[_START]) / _TICKS - asleep
    return since is None or started <= since / 1e9 + 1


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
