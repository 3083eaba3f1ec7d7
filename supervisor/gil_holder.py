"""Who holds the GIL: the thread that burns the processor while all others stand still."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cmdbus.board.records import Phase
from cmdbus.board.views import SlotView

#: A thread that holds the GIL burns at least so much of what its process burns.
_MAX_FIELDS = 0.75
#: And, of the time between two looks, so much on the busiest machine.
_BUSY = 0.05


def cpu_seconds(pid: int) -> dict[int, float]:
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


def gil_holder(
    before: Mapping[int, float],
    after: Mapping[int, float],
    seconds: float,
    running: Mapping[int, int],
) -> int | None:
    """The slot whose thread burnt the processor, if exactly one did; `running` names the
    native thread of each slot that runs a command. None makes all of them suspects.

    It is compared with the other threads and not with the clock: where many processes want
    the processor, it gets a small part of the time, and they get nothing.
    """
    by_thread = {thread: used - before.get(thread, 0.0) for thread, used in after.items()}
    least = max(_MAX_FIELDS * sum(by_thread.values()), _BUSY * seconds)
    busy = [slot for slot, thread in running.items() if by_thread.get(thread, 0.0) >= least]
    return busy[0] if len(busy) == 1 else None


def stuck(slots: Sequence[SlotView], gil_holder: int | None, now: int) -> SlotView | None:
    """The slot that keeps its process from ending in time: of the overdue ones the first, if
    the process's main thread has passed its verdict on it or nothing else runs there.
    Otherwise that thread has not run since, and the slot that holds the GIL is the cause."""
    busy = [slot for slot in slots if slot.command is not None]
    overdue = [slot for slot in busy if slot.due and slot.due <= now]
    first = min(overdue, key=lambda slot: slot.due or 0, default=None)
    if first is None or first.phase is Phase.STUCK or len(busy) == 1:
        return first
    return next((slot for slot in busy if slot.index == gil_holder), None)
