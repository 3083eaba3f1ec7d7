"""CPU time of processes, from /proc: of those that are on this machine."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

#: Seconds of CPU by pid.
Reading = Mapping[int, float]
Figure = TypeVar("Figure")

_NANOSECOND = 1e-9


def read(pids: Iterable[int]) -> Reading:
    return {pid: sum(map(_seconds, Path(f"/proc/{pid}/task").glob("*/schedstat"))) for pid in pids}


def spent(before: Reading, after: Reading) -> float:
    """Seconds between two readings; a process that started in between counts from its start."""
    return sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in after.items())


def of(work: Callable[[], Figure], pids: Iterable[int]) -> tuple[Figure, float]:
    """What `work` returns, and the seconds that these processes spend meanwhile."""
    before = read(pids)
    found = work()
    return found, spent(before, read(before))


def tree(pid: int) -> list[int]:
    """The process and all that descend from it."""
    with suppress(psutil.NoSuchProcess):
        return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]
    return []


def _seconds(schedstat: Path) -> float:
    with suppress(OSError):  # the thread has exited
        return int(schedstat.read_text().split()[0]) * _NANOSECOND
    return 0.0
