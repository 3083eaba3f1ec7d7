"""Who holds the GIL: the thread that burns the processor while all others stand still."""

import os
from collections.abc import Mapping
from pathlib import Path

#: Of the time between two looks, a thread that holds the GIL burns at least so much.
_BUSY = 0.5


def burnt(pid: int) -> dict[int, float]:
    """Seconds of processor time by native thread; empty if the process is gone."""
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[int, float] = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            # The name in parentheses may contain anything.
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[int(task.name)] = (int(fields[11]) + int(fields[12])) / ticks
    except (OSError, ValueError, IndexError):
        pass
    return found


def is_stopped(pid: int) -> bool:
    """By a signal or a tracer, so from outside."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


def guilty(
    before: Mapping[int, float],
    after: Mapping[int, float],
    seconds: float,
    running: Mapping[int, int],
) -> int | None:
    """The slot whose thread burnt the processor, if exactly one did; `running` names the
    native thread of each slot that runs a command. None makes all of them suspects."""
    busy = [
        slot
        for slot, thread in running.items()
        if after.get(thread, 0.0) - before.get(thread, 0.0) >= seconds * _BUSY
    ]
    return busy[0] if len(busy) == 1 else None
