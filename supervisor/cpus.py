"""How many CPUs this process may use: fewer than the machine has, in a container."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cpus(cgroups: Path = _CGROUPS) -> int:
    """What the scheduler's affinity and the quotas of our control groups leave, at least 1."""
    return max(1, min(len(os.sched_getaffinity(0)), *_quotas(cgroups)))


def _quotas(cgroups: Path) -> Iterator[int]:
    """A group's quota holds for those below it; `max` is none. Version 2 alone."""
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
