"""What an exit means, as values: each ending, and what it does to claims, successor and fleet."""

import signal
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from policies import NOW, STEWARD, worker

from cmdbus.board.board import Board
from cmdbus.board.records import NO_COMMAND, ClaimState, Restart, Role, Verdict
from cmdbus.board.views import SeatView
from cmdbus.exits import Exit, ExitStatus
from cmdbus.supervisor.aftermath import (
    EARLY_SECONDS,
    Aftermath,
    Ending,
    aftermath,
    is_busy,
)
from cmdbus.supervisor.fleet_view import ProcessView

ID = UUID(int=1)
CRASH = ExitStatus(signal.SIGSEGV, 0)
KILLED = ExitStatus(signal.SIGKILL, 0)
QUARANTINE = ProcessView(index=7, role=Role.QUARANTINE, number=0, generation=1, born=NOW - 1)
ORDERED: dict[str, Any] = {"stop_by": NOW + 9}


def seat(
    *, ready: bool = True, claim: ClaimState | None = None, slot: str | None = None
) -> SeatView:
    """Of a worker: with a claim in this state, and a slot that is `running` or has `timed out`."""
    board = Board.in_memory(1, 2)
    shown = board.seat(0)
    shown.assign(Role.WORKER, number=0, generation=1)
    shown.enter(pid=1, generation=1, now=1)
    if ready:
        shown.ready(1)
    command_type = shown.command_type("shop", "Noop")
    if claim is not None:
        index = shown.claims.claimed(1, 1, ID)
        if claim >= ClaimState.STARTED:
            shown.claims.started(index)
        if claim >= ClaimState.FINISHED:
            shown.claims.finished(index)
    if slot is not None:
        thread = shown.slot(0)
        thread.occupy(0, 1)
        numbers = {"priority": 5, "id": 1, "token": 3, "attempt": 1, "started": 1, "due": 2}
        thread.begin(command_type, command_id=ID, **numbers)
        if slot == "timed out":
            shown.mark_stuck(0, thread.sequence)
    return board.seat_view(0)


IDLE, BOOTING = seat(), seat(ready=False)
RUNNING, TIMED_OUT = seat(slot="running"), seat(slot="timed out")
CLAIMING, FINISHED = seat(claim=ClaimState.CLAIMED), seat(claim=ClaimState.FINISHED)


def after(
    process: ProcessView,
    status: ExitStatus | Exit | int,
    of: SeatView = IDLE,
    stopping: bool = False,
) -> Aftermath:
    exit_status = status if isinstance(status, ExitStatus) else ExitStatus(0, int(status))
    return aftermath(process, exit_status, of, NOW, stopping=stopping)


def young(**given: Any) -> ProcessView:
    return worker(**{"born": NOW - EARLY_SECONDS / 2, **given})


@pytest.mark.parametrize(
    ("process", "status", "of", "ending"),
    [
        (worker(**ORDERED), Exit.DONE, IDLE, Ending.STOPPED),
        (worker(**ORDERED), Exit.UNFINISHED, RUNNING, Ending.STOPPED),
        (worker(**ORDERED), Exit.TERMINATED, IDLE, Ending.STOPPED),
        (worker(**ORDERED), Exit.ERROR, IDLE, Ending.KILLED),
        (worker(**ORDERED), CRASH, RUNNING, Ending.KILLED),
        (worker(killed_at=NOW), KILLED, RUNNING, Ending.KILLED),
        (worker(), Exit.NO_RESOURCES, BOOTING, Ending.NO_RESOURCES),
        (worker(), Exit.NO_RESOURCES, IDLE, Ending.CRASHED),
        (worker(**ORDERED), Exit.NO_RESOURCES, BOOTING, Ending.KILLED),
        (worker(), Exit.TERMINATED, IDLE, Ending.TERMINATED),
        (worker(terminated=True), Exit.TERMINATED, IDLE, Ending.TERMINATED),
        (worker(terminated=True), KILLED, RUNNING, Ending.CRASHED),
        (worker(), Exit.DONE, IDLE, Ending.CRASHED),
        (worker(), CRASH, IDLE, Ending.CRASHED),
        (worker(), KILLED, IDLE, Ending.CRASHED),
        (QUARANTINE, Exit.DONE, IDLE, Ending.STOPPED),
        (QUARANTINE, Exit.UNFINISHED, IDLE, Ending.STOPPED),
        (QUARANTINE, Exit.DONE, TIMED_OUT, Ending.STOPPED),
        (QUARANTINE, Exit.DONE, RUNNING, Ending.CRASHED),
        (QUARANTINE, Exit.DONE, seat(claim=ClaimState.FINISHED), Ending.CRASHED),
        (QUARANTINE, Exit.TERMINATED, IDLE, Ending.TERMINATED),
        (QUARANTINE, Exit.ERROR, TIMED_OUT, Ending.CRASHED),
    ],
)
def test_each_exit_has_one_ending(
    process: ProcessView, status: ExitStatus | Exit, of: SeatView, ending: Ending
) -> None:
    found = after(process, status, of)
    assert found.ending is ending
    reasons = {Ending.TERMINATED: Restart.TERMINATED, Ending.CRASHED: Restart.CRASHED}
    assert found.restart is reasons.get(ending)


@pytest.mark.parametrize(
    ("process", "of", "early"),
    [
        (young(), IDLE, True),
        (young(), seat(claim=ClaimState.CLAIMED), True),
        (young(), seat(claim=ClaimState.STARTED), False),
        (young(), seat(claim=ClaimState.FINISHED), False),
        (young(), RUNNING, False),
        (young(commands=1), IDLE, False),
        (worker(born=NOW - EARLY_SECONDS), IDLE, False),
        (worker(born=NOW - EARLY_SECONDS, commands=1), BOOTING, True),
        (young(**ORDERED), IDLE, False),
        (QUARANTINE, IDLE, False),
        (QUARANTINE, BOOTING, True),
        (STEWARD, IDLE, False),
        (STEWARD, BOOTING, True),
    ],
)
def test_early_is_a_crash_before_the_process_was_ready_or_had_settled_anything(
    process: ProcessView, of: SeatView, early: bool
) -> None:
    """A command in progress is attributed: no command can make the supervisor give up."""
    assert after(process, CRASH, of).early is early
    assert after(process, Exit.TERMINATED, of).early is early


def test_an_exit_for_lack_of_threads_is_not_early() -> None:
    assert not after(young(), Exit.NO_RESOURCES, BOOTING).early


@pytest.mark.parametrize("of", [IDLE, BOOTING])
def test_the_exit_code_of_a_failed_boot_counts_only_before_the_process_was_ready(
    of: SeatView,
) -> None:
    for process in (worker(), worker(**ORDERED)):
        assert after(process, Exit.CANNOT_START, of).boot_failed is (of is BOOTING)
    assert not after(worker(), KILLED, BOOTING).boot_failed


@pytest.mark.parametrize(
    ("process", "status", "of", "needs_rescue"),
    [
        (worker(**ORDERED), Exit.DONE, IDLE, False),
        (worker(**ORDERED), Exit.DONE, RUNNING, False),
        (worker(**ORDERED), Exit.DONE, CLAIMING, True),
        (worker(**ORDERED), Exit.UNFINISHED, IDLE, True),
        (worker(**ORDERED), KILLED, IDLE, True),
        (worker(), Exit.DONE, IDLE, True),
        (STEWARD, CRASH, IDLE, False),
    ],
)
def test_a_seat_is_free_immediately_if_its_process_left_no_claim(
    process: ProcessView, status: ExitStatus | Exit, of: SeatView, needs_rescue: bool
) -> None:
    """By its claims, as a handler may exit it with the code of a stop in order."""
    assert after(process, status, of).needs_rescue is needs_rescue


@pytest.mark.parametrize(
    ("process", "status", "of", "unfinished"),
    [
        (worker(**ORDERED), Exit.DONE, RUNNING, False),
        (worker(**ORDERED), Exit.DONE, FINISHED, True),
        (worker(**ORDERED), Exit.UNFINISHED, IDLE, True),
        (worker(killed_at=NOW), KILLED, RUNNING, True),
        (worker(killed_at=NOW), KILLED, TIMED_OUT, False),
        (worker(), CRASH, IDLE, False),
        (replace(STEWARD, **ORDERED), Exit.DONE, FINISHED, False),
    ],
)
def test_a_stop_is_unfinished_if_a_command_has_no_outcome(
    process: ProcessView, status: ExitStatus | Exit, of: SeatView, unfinished: bool
) -> None:
    assert after(process, status, of, stopping=True).unfinished is unfinished
    assert not after(process, status, of).unfinished


def test_the_exit_record_names_process_verdict_and_cause() -> None:
    """A stop in time is recorded with the reason of the order, and a kill with its own."""
    [slot] = [slot for slot in RUNNING.slots if slot.command]
    killed = worker(
        pid=5, stop_verdict=Verdict.STUCK, killed_at=NOW, kill_verdict=Verdict.HUNG, cause=slot
    )
    record = after(killed, KILLED, RUNNING).exit_record
    assert (record.pid, record.generation, record.signal, record.code) == (5, 1, 9, 0)
    assert (record.verdict, record.slot, record.token) == (Verdict.HUNG, 0, 3)
    assert record.command_id == ID and not record.quarantined
    for verdict, recorded in (
        (Verdict.NONE, Verdict.LATE),
        (Verdict.CRITICAL, Verdict.CRITICAL),
        (Verdict.STUCK, Verdict.STUCK),
    ):
        stopped = worker(**ORDERED, stop_verdict=verdict)
        record = after(stopped, Exit.UNFINISHED, TIMED_OUT).exit_record
        cause = (0, ID) if verdict is Verdict.STUCK else (-1, NO_COMMAND)
        assert record.verdict is recorded and (record.slot, record.command_id) == cause
    record = after(QUARANTINE, CRASH, RUNNING).exit_record
    assert record.verdict is Verdict.NONE and record.quarantined


@pytest.mark.parametrize(
    ("process", "status", "ran_nothing"),
    [
        (QUARANTINE, Exit.DONE, True),
        (replace(QUARANTINE, commands=1), Exit.DONE, False),
        (QUARANTINE, CRASH, False),
        (worker(**ORDERED), Exit.DONE, False),
    ],
)
def test_only_a_quarantine_process_that_leaves_by_itself_may_have_run_nothing(
    process: ProcessView, status: ExitStatus | Exit, ran_nothing: bool
) -> None:
    assert after(process, status, IDLE).ran_nothing is ran_nothing


def test_a_slot_that_timed_out_and_is_settled_keeps_no_process_busy() -> None:
    """Its thread may hang for ever: a stop that leaves nothing else has finished everything."""
    assert is_busy(RUNNING) and not is_busy(TIMED_OUT)
