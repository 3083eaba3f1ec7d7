"""Processes as /proc and the control groups show them."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

from cmdbus.clock import time

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Fields of a stat file behind the name: state, CPU time in user and system mode, start; in ticks.
_STATE, _USER, _SYSTEM, _START = 0, 11, 12, 19
_CGROUPS = Path("/sys/fs/cgroup")
_STAT = Path("/proc/stat")
#: Columns of a CPU in /proc/stat: all but those of guests, whose time is also that of users; and
#: those in which it was idle, or waited for a disk.
_TICK_COLUMNS, _IDLE_COLUMNS = slice(0, 8), slice(3, 5)


class PidState(Enum):
    RUNNING = "here"
    #: Stopped by a signal or a tracer.
    STOPPED = "frozen"
    GONE = "gone"


def pid_state(pid: int, since: int | None = None) -> PidState:
    """`since`: monotonic nanoseconds at which the process was seen; one that started later only
    has its number."""
    try:
        fields = _stat(Path(f"/proc/{pid}"))
    except OSError:  # No descriptor is left, say: it may live.
        return PidState.RUNNING
    if not fields or fields[_STATE] in (b"Z", b"X") or _began_after(int(fields[_START]), since):
        return PidState.GONE
    return PidState.STOPPED if fields[_STATE] in (b"T", b"t") else PidState.RUNNING


def cpu_seconds(pid: int) -> dict[int, float]:
    """By native thread; empty if the process is gone."""
    try:
        tasks = {int(task.name): _stat(task) for task in Path(f"/proc/{pid}/task").iterdir()}
    except OSError:
        return {}
    return {
        thread: (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_SECOND
        for thread, fields in tasks.items()
        if fields
    }


def rss_bytes(pid: int) -> int:
    """Resident memory; 0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def usable_cpus(cgroups: Path = _CGROUPS) -> int:
    """The CPUs that the scheduler's affinity and the quotas of our control groups leave, at least
    1: fewer than the machine has, in a container."""
    return max(1, min(len(os.sched_getaffinity(0)), *_quotas(cgroups)))


def _stat(folder: Path) -> list[bytes]:
    """The fields behind the name, which may contain anything; none if the process is gone."""
    try:
        return (folder / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _began_after(start_ticks: int, since: int | None) -> bool:
    # The monotonic clock stands still while the machine sleeps: this is at most its start.
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return since is not None and start_ticks / _TICKS_PER_SECOND - asleep > since / 1e9 + 1


def _quotas(cgroups: Path) -> Iterator[int]:
    """A group's quota binds those below it; `max` is none. Version 2 only."""
    yield 2**31
    for group in _groups(cgroups):
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            yield math.ceil(int(quota) / int(period))


def _groups(cgroups: Path) -> Iterator[Path]:
    yield cgroups
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    own = next((line[3:] for line in lines if line.startswith("0::/")), "/")
    for depth in range(1, len(Path(own).parts)):
        yield cgroups.joinpath(*Path(own).parts[1 : depth + 1])


class CpuLoad:
    """How busy the CPUs are that this process may use."""

    def __init__(self, cgroups: Path = _CGROUPS, stat: Path = _STAT) -> None:
        self._cgroups, self._stat = cgroups, stat
        self._before = self._read()

    def share(self) -> float:
        """Since the last call: of the CPUs' time, or of a quota if more of that was used; from 0
        to 1."""
        before, self._before = self._before, self._read()
        shares = [
            (used - before[name][0]) / (available - before[name][1])
            for name, (used, available) in self._before.items()
            if name in before and available > before[name][1]
        ]
        return min(1.0, max(shares, default=0.0))

    def _read(self) -> dict[str, tuple[float, float]]:
        """The used and the available CPU seconds of the machine, and of each group with a quota."""
        found = {}
        with suppress(OSError, ValueError):
            found["machine"] = _machine_seconds(self._stat)
        for group in _groups(self._cgroups):
            with suppress(OSError, ValueError):
                quota, period = (group / "cpu.max").read_text().split()
                usage = (group / "cpu.stat").read_text().split()
                used = int(usage[usage.index("usage_usec") + 1]) / 1e6
                if quota != "max":
                    found[str(group)] = used, time.monotonic() * int(quota) / int(period)
        return found


def _machine_seconds(stat: Path) -> tuple[float, float]:
    """Of the CPUs that the scheduler's affinity leaves: the seconds in use, and all."""
    own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    used = total = 0
    for name, *ticks in map(str.split, stat.read_text().splitlines()):
        if name in own:
            counts = [int(each) for each in ticks[_TICK_COLUMNS]]
            total += sum(counts)
            used += sum(counts) - sum(counts[_IDLE_COLUMNS])
    return used / _TICKS_PER_SECOND, total / _TICKS_PER_SECOND
