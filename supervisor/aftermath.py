"""What the exit of a process means for its claims, its successor and the fleet. Pure.

    exited as ordered; in quarantine, also without work        STOPPED
    killed by the supervisor, or crashed after a stop order    KILLED
    could not start its threads                                NO_RESOURCES: the next start waits
    ended by a SIGTERM that the supervisor did not send        TERMINATED
    anything else                                              CRASHED

Only TERMINATED and CRASHED processes exit early: their successors wait longer each time, and
too many of them end the supervisor. An exit in the middle of a command is never early, because
that command is attributed and ends with an operator. The slot that keeps a process from answering
is that of the thread that holds the GIL, or is overdue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from cmdbus.board.records import NO_COMMAND, ClaimState, ExitRecord, Phase, Restart, Role, Verdict
from cmdbus.board.views import SeatView, SlotView
from cmdbus.exits import Exit, ExitStatus
from cmdbus.supervisor.fleet_view import NS, ProcessView

#: Seconds; a process that lived less, and settled nothing, exited early.
EARLY_SECONDS = 10.0
#: Share of its process's processor time that the thread with the GIL uses, at least.
_MIN_SHARE = 0.75
#: Share of the time between two samples that it uses, at least, on the busiest machine.
_MIN_BUSY = 0.05


class Ending(Enum):
    STOPPED = 0
    KILLED = 1
    NO_RESOURCES = 2
    TERMINATED = 3
    CRASHED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    ending: Ending
    #: For the steward, which releases the claims.
    exit_record: ExitRecord
    #: Whether the process may have left claims. False frees its seat immediately.
    needs_rescue: bool = True
    #: Whether a stop of the fleet left a command without its outcome.
    unfinished: bool = False
    early: bool = False
    #: It was a quarantine process, and there was no suspect that it could claim.
    ran_nothing: bool = False
    #: It could not start, for a reason that no restart cures.
    boot_failed: bool = False
    #: The reason of the successor's start, if the exit is that reason.
    restart: Restart | None = None


_RESTARTS = {Ending.TERMINATED: Restart.TERMINATED, Ending.CRASHED: Restart.CRASHED}


def aftermath(
    process: ProcessView, exit_status: ExitStatus, seat: SeatView, now: float, *, stopping: bool
) -> Aftermath:
    """`seat` as it was read after the exit; `stopping`: the whole fleet stops."""
    ending = _ending(process, exit_status, seat)
    stopped = ending is Ending.STOPPED
    # Its claims count, too: a handler may have exited the process, with any code.
    done = stopped and exit_status.code == Exit.DONE and not seat.claims
    cut_off = exit_status.code == Exit.UNFINISHED or _has_begun(seat)
    may_claim = process.role is not Role.STEWARD
    return Aftermath(
        ending=ending,
        exit_record=_exit_record(process, exit_status, seat, now, stopped),
        needs_rescue=may_claim and not done,
        unfinished=stopping and may_claim and (cut_off if stopped else is_busy(seat)),
        early=ending in _RESTARTS and _is_early(process, seat, now),
        ran_nothing=stopped and process.role is Role.QUARANTINE and process.commands == 0,
        restart=_RESTARTS.get(ending),
        boot_failed=seat.ready is None and exit_status == ExitStatus(0, Exit.CANNOT_START),
    )


def _ending(process: ProcessView, exit_status: ExitStatus, seat: SeatView) -> Ending:
    if _is_stopped(process, exit_status, seat):
        return Ending.STOPPED
    if process.is_ordered:
        return Ending.KILLED
    # The exit code of a process that was ready is a handler's.
    if seat.ready is None and exit_status == ExitStatus(0, Exit.NO_RESOURCES):
        return Ending.NO_RESOURCES
    if exit_status == ExitStatus(0, Exit.TERMINATED):
        return Ending.TERMINATED
    return Ending.CRASHED


def _is_stopped(process: ProcessView, exit_status: ExitStatus, seat: SeatView) -> bool:
    """By order or, in quarantine, because no suspect is left. In the middle of a command it is a
    crash; after a timeout, whose outcome is settled, the command's thread is left behind."""
    if exit_status.signal:
        return False
    if process.is_ordered:
        return exit_status.code in (Exit.DONE, Exit.UNFINISHED, Exit.TERMINATED)
    idle = process.role is Role.QUARANTINE and not is_busy(seat)
    return idle and exit_status.code in (Exit.DONE, Exit.UNFINISHED)


def _exit_record(
    process: ProcessView, exit_status: ExitStatus, seat: SeatView, now: float, stopped: bool
) -> ExitRecord:
    verdict, cause = process.kill_verdict, process.cause
    if stopped:
        verdict = process.stop_verdict
        if verdict is Verdict.STUCK:
            cause = stuck(seat.slots, None, int(now * NS))
        elif verdict is Verdict.NONE:
            verdict = Verdict.LATE
    command = cause.command if cause else None
    return ExitRecord(
        generation=process.generation,
        pid=process.pid,
        signal=exit_status.signal,
        code=exit_status.code,
        verdict=verdict,
        slot=cause.index if cause else -1,
        token=command.token if command else 0,
        command_id=command.command_id if command else NO_COMMAND,
        quarantined=process.role is Role.QUARANTINE,
    )


def _is_early(process: ProcessView, seat: SeatView, now: float) -> bool:
    if seat.ready is None or process.role is not Role.WORKER:
        return seat.ready is None
    return not is_busy(seat) and now - process.born < EARLY_SECONDS and process.commands == 0


def is_busy(seat: SeatView) -> bool:
    """Whether a command has started whose outcome is not settled."""
    # A timed-out slot shows its command until its thread returns, also once it is settled.
    shown = any(slot.command and slot.phase is not Phase.STUCK for slot in seat.slots)
    return shown or _has_begun(seat)


def _has_begun(seat: SeatView) -> bool:
    """Whether it shows the claim of a command that has started."""
    return any(claim.state is not ClaimState.CLAIMED for claim in seat.claims)


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
    the process's main thread has marked it as stuck or nothing else runs there.
    Otherwise that thread has not run since, and the slot that holds the GIL is the cause."""
    busy = [slot for slot in slots if slot.command is not None]
    overdue = [slot for slot in busy if slot.due and slot.due <= now]
    first = min(overdue, key=lambda slot: slot.due or 0, default=None)
    if first is None or first.phase is Phase.STUCK or len(busy) == 1:
        return first
    return next((slot for slot in busy if slot.index == gil_holder), None)
