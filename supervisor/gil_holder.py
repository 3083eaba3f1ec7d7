"""The slot that keeps a process from answering: its thread holds the GIL, or is overdue. Pure."""

from collections.abc import Mapping, Sequence

from cmdbus.board.records import Phase
from cmdbus.board.views import SlotView

#: Share of its process's processor time that the thread with the GIL uses, at least.
_MIN_SHARE = 0.75
#: Share of the time between two samples that it uses, at least, on the busiest machine.
_MIN_BUSY = 0.05


def gil_holder(
    before: Mapping[int, float],
    after: Mapping[int, float],
    seconds: float,
    running: Mapping[int, int],
) -> int | None:
    """The slot whose thread used the processor, if exactly one did; `running` names the
    native thread of each slot that runs a command. None makes all of them suspects.

    Threads are compared with each other and not with the clock: on a busy machine the thread gets
    a small part of the time, and those that wait for the GIL get nothing.
    """
    by_thread = {thread: used - before.get(thread, 0.0) for thread, used in after.items()}
    least = max(_MIN_SHARE * sum(by_thread.values()), _MIN_BUSY * seconds)
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
