"""The invariants of processes: of their steps, and of what undoes these. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fault_injection.flows import STEPS
from fault_injection.group_history import Process, Step
from fault_injection.grouping import by_command, named
from fault_injection.history import History

_TERMINAL = ("COMPLETED", "COMPENSATED", "CANCELED", "FAILED")
_BATCH = "process:batch"
_OUTCOMES = {"COMPLETED": "SUCCESS", "FAILED": "FAILED", "CANCELED": "CANCELED"}


def processes_are_those_that_were_started(history: History) -> Iterator[str]:
    there: dict[str, list[str]] = defaultdict(list)
    for process in history.processes:
        there[process.call].append(process.process_id)
    for call in history.calls:
        if call.way != "process":
            continue
        ids = there.pop(call.name, [])
        if call.outcome == "ok" and not ids:
            yield f"call {call.name} was accepted, and its process is nowhere"
        elif call.outcome == "fail" and ids:
            yield f"call {call.name} was refused, and its process is there"
        elif ids and ids != [*call.ids]:
            yield f"call {call.name} has started {ids}, and not {call.ids}"
    for name in there:
        yield f"the process of {name} was never started"


def processes_have_ended(history: History) -> Iterator[str]:
    for process in history.processes:
        if process.status not in _TERMINAL:
            yield f"process {process.call} is {process.status}"
        for step in process.steps:
            if step.outcome is None:
                yield f"process {process.call}: {_name(step)} has no outcome"


def steps_are_taken_once(history: History) -> Iterator[str]:
    """In their order, each with one line in the audit trail and one reply to the manager."""
    for process in history.processes:
        numbers = [step.number for step in process.steps]
        if numbers != [*range(1, len(numbers) + 1)]:
            yield f"process {process.call} has commands with the numbers {numbers}"
        steps = _forward(process)
        names = [step.step for step in steps]
        if names != STEPS[: min(len(steps), len(process.listed))]:
            yield f"process {process.call} has taken the steps {names} of {len(process.listed)}"
        ends = [(step.step, step.outcome) for step in steps if step.outcome is not None]
        if ends != [*process.seen]:
            yield f"process {process.call} has {ends}, and its manager saw {process.seen}"


def signals_come_once(history: History) -> Iterator[str]:
    sent = {call.name for call in history.calls if call.way == "signal"}
    for process in history.processes:
        if len(set(process.signals)) != len(process.signals):
            yield f"process {process.call} has got a signal twice: {process.signals}"
        if process.events.count("SIGNALED") != len(process.signals):
            yield f"process {process.call} has {process.signals}, and events {process.events}"
        for name in set(process.signals) - sent:
            yield f"process {process.call} has got the signal {name}, which was never sent"


def steps_end_as_their_commands(history: History) -> Iterator[str]:
    """And no process has sent a command that is not of a step."""
    rows = {row.command_id: row for row in history.rows}
    batches = {batch.batch_id: batch for batch in history.batches}
    known = set()
    for process in history.processes:
        for step in process.steps:
            known.add(step.command_id)
            if step.type == _BATCH:
                batch = batches.get(step.command_id)
                found = batch is not None and batch.status == "COMPLETED"
                is_right = found == (step.outcome == "SUCCESS")
            else:
                row = rows.get(step.command_id)
                is_right = row is not None and _OUTCOMES.get(row.status) == step.outcome
            if not is_right:
                yield (
                    f"process {process.call}: {_name(step)} is {step.outcome}, "
                    f"and its command {step.command_id} is not"
                )
    for row in history.rows:
        if row.process is not None and not {row.command_id, row.batch} & known:
            yield f"{named(row)} is of process {row.process}, and of none of its steps"


def processes_end_as_their_steps(history: History) -> Iterator[str]:
    cancels = ("cancel-process", "cancel-batch")
    asked = {id_ for call in history.calls if call.way in cancels for id_ in call.ids}
    for process in history.processes:
        if process.status not in _TERMINAL:
            continue
        is_canceled = "CANCEL_REQUESTED" in process.events
        if is_canceled and not {process.process_id, process.batch} & asked:
            yield f"process {process.call} is canceled, and no cancel was sent"
        if (wanted := _ending(process, is_canceled)) != process.status:
            yield f"process {process.call} is {process.status}, and not {wanted}"


def deadlines_fire_in_time(history: History) -> Iterator[str]:
    """Not before they have passed, and only for steps that are canceled by them."""
    cancels = {id_ for call in history.calls if call.way == "cancel-trouble" for id_ in call.ids}
    ends = {move.command_id: move.at for move in history.moves if move.what == "finished+"}
    for process in history.processes:
        for step in process.steps:
            if step.outcome != "CANCELED" or "CANCEL_REQUESTED" in process.events:
                continue
            if step.command_id in cancels or step.type == _BATCH:
                continue
            if step.deadline_at is None or ends.get(step.command_id, 0.0) < step.deadline_at:
                yield f"process {process.call}: {_name(step)} was canceled for nothing"


def what_was_done_is_undone_once(history: History) -> Iterator[str]:
    """The latest first; a compensation that has failed may be sent again."""
    for process in history.processes:
        undoing = [step for step in process.steps if step.undoes is not None]
        before: int | None = None
        failed: set[int] = set()
        for step in undoing:
            number = step.undoes or 0
            if before is not None and number >= before and number not in failed:
                yield f"process {process.call}: {_name(step)} comes after that of {before}"
            if step.outcome != "SUCCESS":
                failed.add(number)
            before = number
        for step in _forward(process):
            outcomes = [each.outcome for each in undoing if each.undoes == step.number]
            if not _is_undone(process, step):
                if outcomes:
                    yield f"process {process.call}: {_name(step)} is undone, and was not to be"
            elif not outcomes or outcomes.count("SUCCESS") > 1:
                yield f"process {process.call}: {_name(step)} is undone by {outcomes}"


def nothing_is_undone_too_early(history: History) -> Iterator[str]:
    """Everything that was sent before has ended then, also what the process did not await."""
    moves = by_command(history.moves)
    members: dict[str, list[str]] = defaultdict(list)
    for row in history.rows:
        if row.batch is not None:
            members[row.batch].append(row.command_id)
    for process in history.processes:
        for step in process.steps:
            if step.undoes is None:
                continue
            began = min((m.number for m in moves.get(step.command_id, ())), default=0)
            for earlier in process.steps[: step.number - 1]:
                for id_ in members.get(earlier.command_id, [earlier.command_id]):
                    ends = [m.number for m in moves.get(id_, ()) if m.what == "finished+"]
                    if not ends or ends[0] > began:
                        yield (
                            f"process {process.call}: {_name(step)} was sent before command "
                            f"{id_} of {_name(earlier)} had ended"
                        )


def _forward(process: Process) -> Sequence[Step]:
    return [step for step in process.steps if step.undoes is None]


def _name(step: Step) -> str:
    return step.step if step.undoes is None else f"the compensation of {step.step}"


def _is_undone(process: Process, step: Step) -> bool:
    """A list may have been done in part."""
    index = step.number - 1
    was_done = step.outcome == "SUCCESS" or process.listed[index]
    return process.status != "COMPLETED" and was_done and process.undone[index]


def _ending(process: Process, is_canceled: bool) -> str:
    steps = _forward(process)
    last: Mapping[int, str | None] = {
        each.undoes: each.outcome for each in process.steps if each.undoes is not None
    }
    if any(outcome != "SUCCESS" for outcome in last.values()):
        return "FAILED"
    if is_canceled:
        return "CANCELED"
    if any(step.outcome != "SUCCESS" for step in steps):
        return "COMPENSATED"
    return "COMPLETED" if len(steps) == len(process.listed) else "one that is not over"
