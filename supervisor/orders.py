"""Orders to a process: to stop, to write its stacks, to die."""

import logging
import signal
from collections.abc import Sequence
from dataclasses import replace

from cmdbus.board.board import Board
from cmdbus.board.exit_reasons import VERDICT_REASONS
from cmdbus.board.health import Health
from cmdbus.board.records import Phase, Restart, Role, Verdict
from cmdbus.board.views import SeatView, SlotView
from cmdbus.proc import PidState, cpu_seconds, pid_state
from cmdbus.supervisor.aftermath import gil_holder, stuck
from cmdbus.supervisor.fleet_view import NS
from cmdbus.supervisor.policy import Kill, Stop, is_ahead
from cmdbus.supervisor.processes import SupervisedProcess
from cmdbus.supervisor.restarts import Restarts
from cmdbus.supervisor.stacks import Stacks

logger = logging.getLogger(__name__)


class Orders:
    def __init__(self, board: Board, stacks: Stacks, restarts: Restarts, watchdog: float) -> None:
        self._board = board
        self._stacks = stacks
        self._restarts = restarts
        self._watchdog = watchdog

    def stop(self, process: SupervisedProcess, action: Stop, now: float) -> None:
        view = process.view
        if view.stop_by is None:
            view = replace(view, stop_verdict=action.verdict)
            process.measure_cpu(now)
        view = process.view = replace(view, stop_by=action.by)
        if action.reason is not None:
            self._restarts.reasons[view.role, view.number] = action.reason
            planned = action.reason in (Restart.RELOADED, Restart.RECYCLED)
            level = logging.INFO if planned else logging.WARNING
            why = _stop_reason(action, self._board.seat_view(view.index))
            logger.log(level, "%s is ordered to stop: %s", view, why)
        self._board.seat(view.index).order_to_stop(
            view.number, view.generation, by=int(action.by * NS), verdict=view.stop_verdict
        )
        if action.verdict is Verdict.STUCK:
            process.child.send(signal.SIGUSR2)  # its stacks, also while the GIL is held
        process.child.send(signal.SIGTERM)

    def dump(self, process: SupervisedProcess, now: float) -> None:
        logger.warning("%s is overdue: asking for its stacks", process.view)
        process.view = replace(process.view, dumped_at=now)
        process.measure_cpu(now)
        process.child.send(signal.SIGUSR2)

    def kill(self, process: SupervisedProcess, action: Kill, now: float) -> None:
        """Compares before: a process that has recovered since the decision lives on."""
        view, seat = process.view, self._board.seat_view(process.view.index)
        if action.verdict is Verdict.HUNG:
            if seat.due is not None and is_ahead(seat.due / NS, self._watchdog, now):
                process.view = replace(view, dumped_at=None)
                logger.warning("%s has recovered in time", view)
                return
            self._restarts.reasons[view.role, view.number] = Restart.HUNG
        stopped = pid_state(process.pid) is PidState.STOPPED
        process.view = replace(
            view,
            killed_at=now,
            kill_verdict=Verdict.STOPPED if stopped else action.verdict,
            cause=_cause(process, action, seat, now),
        )
        reason = VERDICT_REASONS[process.view.kill_verdict]
        logger.error("%s is killed: %s%s", view, reason, running_commands(seat.slots))
        self._stacks.log_last(process, view.index)
        process.child.send(signal.SIGKILL)


def _cause(process: SupervisedProcess, action: Kill, seat: SeatView, now: float) -> SlotView | None:
    """The slot that the process is killed for, if it can be known."""
    if process.view.role is Role.STEWARD:
        return None
    running = {slot.index: slot.thread for slot in seat.slots if slot.command and slot.thread}
    used = cpu_seconds(process.pid)
    holder = gil_holder(process.cpu_seconds, used, now - process.cpu_read_at, running)
    if action.verdict is Verdict.HUNG:
        return next((slot for slot in seat.slots if slot.index == holder), None)
    if action.verdict is not Verdict.CRITICAL and action.measured:
        return stuck(seat.slots, holder, int(now * NS))
    return None


def _stop_reason(action: Stop, seat: SeatView) -> str:
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
