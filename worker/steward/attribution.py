"""Which commands a process's exit is attributed to. Pure.

ordered to stop, and killed at its deadline      the command of the slot past its due is charged;
                                                 others are released as if they had not run
killed because a slot was stuck                  its command is charged; the others count a loss
critical, and killed at its deadline             running commands count a loss
killed by a signal from outside                  the same
hung, and one thread held the GIL                its command is charged; the others count a loss
hung, and no single thread held the GIL          running commands are suspects: the next time they
                                                 run in quarantine
crashed, or exited without an order              the same
hung, stuck or crashed in quarantine             its command is charged, and goes to an operator

A command whose handler has returned counts as running until its outcome is settled: the damage
that it left (in the heap, a native thread) may crash the process later.
"""

import json
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cmdbus.board.exit_reasons import exit_reason
from cmdbus.board.records import ClaimState, ExitRecord, Verdict
from cmdbus.board.views import ClaimView, CommandView, SeatView
from cmdbus.errors import CommandError, PermanentCommandError, TransientCommandError
from cmdbus.exits import Exit
from cmdbus.retry import SUSPECT_LOSSES
from cmdbus.worker.claims.claim import STOPPED, Claim, Fence
from cmdbus.worker.claims.outcomes import MAX_DETAILS

#: Signals that are meant for the process, and not for its commands.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_BEGUN = (ClaimState.STARTED, ClaimState.FINISHED)
#: Bytes of an event's details without the stack.
_REST = 500
#: In what faulthandler writes: the head of each thread's stack, and what may follow the stacks of
#: a dump, or precede those of the next one.
_HEAD = re.compile(r"^(?:Thread|(Current) thread) 0x([0-9a-f]+) ", re.MULTILINE)
_DUMP_END = re.compile(r"\n\n|\nFatal Python error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """`seat` as it was read after the process had died, and before its seat is assigned again."""

    seat: SeatView
    #: A sentence for the audit of the commands.
    why: str
    #: Of the thread that crashed or hung; of all threads if that is not known.
    stack: str = ""
    #: Losses that each command that had begun counts: 0 as if it had not run, SUSPECT_LOSSES
    #: make it run in quarantine.
    losses: Callable[[Claim], int] = lambda _: 1
    #: Why commands that had begun may count no loss.
    reason: str | None = None
    #: The commands to charge: code (CRASHED or TIMEOUT), message, and details.
    causes: Mapping[Fence, CommandError] = field(default_factory=dict)


def attribute(seat: SeatView, exit_record: ExitRecord, dump: str) -> Attribution:
    """`dump`: the stacks that the process wrote when it crashed or was asked for them."""
    why = f"its process {exit_record.pid} {exit_reason(exit_record)}"
    stack = _stack_of(dump, _ident(seat, exit_record))
    details = {
        "pid": exit_record.pid,
        "signal": exit_record.signal,
        "code": exit_record.code,
        "stack": _end(stack),
    }
    return Attribution(
        seat=seat,
        why=why,
        stack=stack,
        losses=_losses(exit_record),
        reason=STOPPED if exit_record.verdict is Verdict.LATE else None,
        causes=_causes(seat, exit_record, why, details),
    )


def _ident(seat: SeatView, exit_record: ExitRecord) -> int | None:
    """The thread that hung; None after a crash, where the dump shows it."""
    if exit_record.verdict is Verdict.NONE:
        return None
    busy = [slot for slot in seat.slots if slot.command is not None]
    any_slot = exit_record.quarantined
    return next((s.ident for s in busy if any_slot or s.index == exit_record.slot), None)


def begun(seat: SeatView) -> set[Fence]:
    """The commands that its threads had started, without a settled outcome."""
    known = {_fence(claim) for claim in seat.claims}
    started = {_fence(claim) for claim in seat.claims if claim.state in _BEGUN}
    shown = {_fence(slot.command) for slot in seat.slots if slot.command}
    # A command that only a slot shows: there were more than the table can.
    return started | (shown - known)


def _causes(
    seat: SeatView, exit_record: ExitRecord, why: str, details: Mapping[str, object]
) -> dict[Fence, CommandError]:
    if exit_record.quarantined and _is_suspicious(exit_record):
        crash = PermanentCommandError("CRASHED", f"it ran alone, and {why}", details)
        return dict.fromkeys(begun(seat), crash)
    error = TransientCommandError("TIMEOUT", f"it held up its whole process: {why}", details)
    charged = exit_record.slot, exit_record.token, exit_record.command_id
    return {
        _fence(command): error
        for slot in seat.slots
        if (command := slot.command) and (slot.index, command.token, command.command_id) == charged
    }


def _fence(view: ClaimView | CommandView) -> Fence:
    return view.id, view.token, view.command_id.int


def _losses(exit_record: ExitRecord) -> Callable[[Claim], int]:
    if exit_record.verdict is Verdict.LATE:
        return lambda claim: 0
    if (
        _is_suspicious(exit_record)
        and exit_record.verdict is not Verdict.STUCK
        and exit_record.slot < 0
    ):
        return lambda claim: max(1, SUSPECT_LOSSES - claim.losses)
    return lambda claim: 1


def _is_suspicious(exit_record: ExitRecord) -> bool:
    """Whether one of its commands may be the cause."""
    if exit_record.verdict is not Verdict.NONE:
        return exit_record.verdict in (Verdict.HUNG, Verdict.STUCK)
    if exit_record.signal:
        return exit_record.signal not in _FROM_OUTSIDE
    return exit_record.code not in (Exit.NO_RESOURCES, Exit.TERMINATED)


def _stack_of(dump: str, ident: int | None) -> str:
    """The latest stack of this thread, or of the one that crashed; all if there is none."""
    found = dump
    heads = list(_HEAD.finditer(dump))
    starts = [*(head.start() for head in heads), len(dump)]
    for head, end in zip(heads, starts[1:], strict=True):
        if head[1] if ident is None else int(head[2], 16) == ident:
            found = _DUMP_END.split(dump[head.start() : end])[0].strip()
    return found


def _end(stack: str) -> str:
    """As much as an event can hold: of more, it would keep nothing at all."""
    kept = stack.replace("\0", "")[-MAX_DETAILS:]
    while len(json.dumps(kept)) > MAX_DETAILS - _REST:
        kept = kept[len(kept) // 16 + 1 :]
    return kept
