"""Parts of log lines: what a process ran, and why it must stop. Pure."""

from collections.abc import Sequence

from cmdbus.board.health import Health
from cmdbus.board.records import Phase, Restart
from cmdbus.board.views import SeatView, SlotView
from cmdbus.supervisor.policy import Stop


def stop_reason(action: Stop, seat: SeatView) -> str:
    levels, late = action.process.levels, action.process.latest_slot
    if action.reason is Restart.STUCK and levels.health is not Health.CRITICAL and late is not None:
        slots = [slot for slot in seat.slots if slot.index == late]
        return f"a slot is stuck{running_commands(slots)}"
    return ", ".join(levels.reasons) or str(action.reason and action.reason.name.lower())


def running_commands(slots: Sequence[SlotView], *, timed_out: bool = True) -> str:
    """`timed_out`: also the commands whose attempts have ended by their timeouts."""
    commands = [
        f"{slot.command.domain}/{slot.command.type} {slot.command.command_id} (attempt "
        f"{slot.command.attempt}, slot {slot.number})"
        for slot in slots
        if slot.command is not None and (timed_out or slot.phase is not Phase.STUCK)
    ]
    return f"; it ran {', '.join(commands)}" if commands else ""
