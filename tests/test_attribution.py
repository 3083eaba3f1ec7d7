"""Each way in which a process ends, and which of its commands is the cause."""

import json
import signal
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from cmdbus.board.health import HealthReport
from cmdbus.board.records import ClaimState, ExitRecord, Phase, Role, Verdict
from cmdbus.board.views import ClaimView, CommandView, SeatView, SlotView
from cmdbus.errors import CommandError, PermanentCommandError, TransientCommandError
from cmdbus.exits import Exit
from cmdbus.retry import RetryPolicy
from cmdbus.worker.claims.claim import Claim, Fence
from cmdbus.worker.claims.outcomes import failed
from cmdbus.worker.steward.attribution import Attribution, attribute, begun

ID = UUID(int=1)
PID = 4711
#: Of the two commands that run, in slots 0 and 1; a third has finished, a fourth waits.
FIRST, SECOND, FINISHED, WAITING = (1, 101, 1), (2, 102, 2), (3, 103, 3), (4, 104, 4)


def key(which: Fence, state: ClaimState) -> ClaimView:
    id, token, command = which
    return ClaimView(id=id, token=token, command_id=UUID(int=command), state=state)


def slot(index: int, which: Fence | None) -> SlotView:
    command = None
    if which is not None:
        command = CommandView(
            domain="payments",
            type="Debit",
            command_id=UUID(int=which[2]),
            attempt=1,
            priority=5,
            id=which[0],
            token=which[1],
        )
    return SlotView(
        index=index,
        number=index,
        phase=Phase.RUNNING if which else Phase.RESTING,
        command=command,
        since=1,
        due=2,
        thread=10 + index,
        ident=0xAB0 + index,
        backend_pid=None,
        backend_start=None,
        sequence=2,
    )


SEAT = SeatView(
    index=0,
    role=Role.DEAD,
    number=0,
    generation=3,
    pid=PID,
    incarnation=17,
    since=1,
    ready=1,
    due=1,
    levels=HealthReport(),
    stop_by=None,
    rss_bytes=None,
    exit=None,
    rescued=False,
    parked=None,
    slots=(slot(0, FIRST), slot(1, SECOND), slot(2, None)),
    claims=(
        key(FIRST, ClaimState.STARTED),
        key(SECOND, ClaimState.STARTED),
        key(FINISHED, ClaimState.FINISHED),
        key(WAITING, ClaimState.CLAIMED),
    ),
    complete=True,
)

ORDERED = ExitRecord(generation=3, pid=PID, signal=signal.SIGKILL, verdict=Verdict.LATE)
STOPPED = replace(ORDERED, verdict=Verdict.STOPPED)
STUCK = replace(ORDERED, verdict=Verdict.STUCK)
KEEPS_IT = replace(STUCK, slot=1, token=SECOND[1], command_id=UUID(int=SECOND[2]))
CRITICAL = replace(ORDERED, verdict=Verdict.CRITICAL)
HUNG = replace(ORDERED, verdict=Verdict.HUNG)
HOLDS_GIL = replace(KEEPS_IT, verdict=Verdict.HUNG)
CRASHED = ExitRecord(generation=3, pid=PID, signal=signal.SIGSEGV)
LEFT = ExitRecord(generation=3, pid=PID, code=0)


def claim(losses: int = 0) -> Claim:
    return Claim(
        domain="payments",
        priority=5,
        id=1,
        token=101,
        command_id=ID,
        type="Debit",
        data="null",
        attempts=0,
        losses=losses,
        max_attempts=None,
        other_correlation_id=None,
        reply_to_and_headers=None,
        created_at=datetime.now(UTC),
        waited=0.0,
    )


def losses_of(attribution: Attribution) -> list[int]:
    """The losses afterwards of commands that had none, one and two before."""
    return [before + attribution.losses(claim(before)) for before in range(3)]


#: Signals by which something else ends a process.
OUTSIDE = ("KILL", "TERM", "INT", "HUP", "QUIT")
ONE_MORE = [1, 2, 3]
#: At least two, which make a command a suspect, and one more in any case.
SUSPECT = [2, 2, 3]
AS_BEFORE = [0, 1, 2]


def test_a_finished_command_counts_as_begun_until_it_is_settled() -> None:
    assert begun(SEAT) == {FIRST, SECOND, FINISHED}


def test_a_command_whose_id_and_token_were_given_again_has_not_begun() -> None:
    """By a server that was restored to an earlier point: the process holds both."""
    again = (*FIRST[:2], 77)
    for keys in (
        (key(FIRST, ClaimState.STARTED), key(again, ClaimState.CLAIMED)),
        (key(again, ClaimState.CLAIMED), key(FIRST, ClaimState.STARTED)),
    ):
        assert begun(replace(SEAT, slots=SEAT.slots[:1], claims=keys)) == {FIRST}
    alone = attribute(replace(SEAT, slots=(), claims=keys), replace(CRASHED, quarantined=True), "")
    assert list(alone.causes) == [FIRST]


def test_a_command_on_a_slot_without_a_key_counts_as_begun() -> None:
    """There were more at once than can be shown."""
    unseen = replace(SEAT, claims=SEAT.claims[1:])
    assert begun(unseen) == {FIRST, SECOND, FINISHED}
    ended = replace(SEAT, slots=(slot(0, FINISHED), slot(1, WAITING)))
    assert begun(ended) == {FIRST, SECOND, FINISHED}, (
        "what the keys say is newer than what a slot says"
    )


@pytest.mark.parametrize("ran_alone", [False, True])
def test_a_process_that_is_killed_at_its_stop_deadline_charges_nothing(
    ran_alone: bool,
) -> None:
    attribution = attribute(SEAT, replace(ORDERED, quarantined=ran_alone), "")
    assert attribution.causes == {} and losses_of(attribution) == AS_BEFORE
    assert attribution.seat is SEAT


@pytest.mark.parametrize("ran_alone", [False, True])
def test_a_slot_past_its_due_at_the_deadline_of_an_order_is_charged_and_nothing_else(
    ran_alone: bool,
) -> None:
    late = replace(KEEPS_IT, verdict=Verdict.LATE, quarantined=ran_alone)
    attribution = attribute(SEAT, late, "")
    assert {key: error.code for key, error in attribution.causes.items()} == {SECOND: "TIMEOUT"}
    assert losses_of(attribution) == AS_BEFORE


def test_the_slot_that_a_process_is_stuck_by_is_charged_and_the_others_count_a_loss() -> None:
    attribution = attribute(SEAT, KEEPS_IT, "")
    assert {key: error.code for key, error in attribution.causes.items()} == {SECOND: "TIMEOUT"}
    assert losses_of(attribution) == ONE_MORE


@pytest.mark.parametrize(
    "ended",
    [
        *(STUCK, CRITICAL, STOPPED),
        *(replace(LEFT, code=code) for code in (Exit.NO_RESOURCES, Exit.TERMINATED)),
        *(replace(LEFT, signal=signal.Signals[f"SIG{name}"]) for name in OUTSIDE),
        *(replace(LEFT, signal=signal.Signals[f"SIG{name}"], quarantined=True) for name in OUTSIDE),
    ],
)
def test_an_exit_whose_cause_is_no_known_command_charges_nothing_and_counts_a_loss(
    ended: ExitRecord,
) -> None:
    """A verdict without a slot, a lack of threads, or a signal from outside, even while a command
    ran alone. The first loss runs again anywhere, the second alone, the third nowhere."""
    attribution = attribute(SEAT, ended, "")
    assert attribution.causes == {} and losses_of(attribution) == ONE_MORE


def test_the_command_that_held_the_gil_is_charged_and_the_others_count_a_loss() -> None:
    attribution = attribute(SEAT, HOLDS_GIL, "File regex.py")
    assert losses_of(attribution) == ONE_MORE
    assert list(attribution.causes) == [SECOND]
    error = attribution.causes[SECOND]
    assert isinstance(error, TransientCommandError) and error.code == "TIMEOUT"
    assert "its main thread hung" in error.message
    assert error.details == {"pid": PID, "signal": 9, "code": 0, "stack": "File regex.py"}


@pytest.mark.parametrize(
    "ended",
    [
        replace(HOLDS_GIL, token=999),
        replace(HOLDS_GIL, command_id=UUID(int=99)),
        replace(HOLDS_GIL, slot=2),
        replace(HOLDS_GIL, slot=7),
    ],
)
def test_a_command_that_came_into_the_slot_later_is_not_charged(ended: ExitRecord) -> None:
    """Compare and kill: the verdict names slot, token and command. Another command's first claim
    has the same token."""
    attribution = attribute(SEAT, ended, "")
    assert attribution.causes == {} and losses_of(attribution) == ONE_MORE


@pytest.mark.parametrize(
    "ended",
    [
        *(HUNG, CRASHED, LEFT, replace(LEFT, code=3), replace(CRASHED, signal=64)),
        *(
            replace(CRASHED, signal=signal.Signals[f"SIG{name}"])
            for name in ("ABRT", "BUS", "ILL", "FPE", "ALRM")
        ),
    ],
)
def test_all_commands_of_a_crash_without_a_known_cause_are_suspects(ended: ExitRecord) -> None:
    """They run in quarantine next time, and none is charged for this crash."""
    attribution = attribute(SEAT, ended, "")
    assert attribution.causes == {} and losses_of(attribution) == SUSPECT


@pytest.mark.parametrize("ended", [HOLDS_GIL, HUNG, STUCK, KEEPS_IT, CRASHED, LEFT])
def test_a_command_that_crashes_its_process_alone_is_charged(ended: ExitRecord) -> None:
    """And goes to a person, with all that is known of it."""
    attribution = attribute(SEAT, replace(ended, quarantined=True), "the stack")
    assert set(attribution.causes) == {FIRST, SECOND, FINISHED}
    for error in attribution.causes.values():
        assert isinstance(error, PermanentCommandError) and error.code == "CRASHED"
        assert "it ran alone" in error.message and str(PID) in error.message
        assert _details(error)["stack"] == "the stack"


@pytest.mark.parametrize(
    ("ended", "fragment"),
    [
        (ORDERED, "was killed: it did not stop by its deadline"),
        (STOPPED, "was killed: a signal had suspended it"),
        (STUCK, "was killed: a command did not end"),
        (CRITICAL, "was killed: it was critical and did not stop"),
        (HUNG, "was killed: its main thread hung"),
        (replace(LEFT, signal=9), "was killed by SIGKILL from outside"),
        (replace(LEFT, signal=9, orphaned=True), "ended with its supervisor"),
        (CRASHED, "was killed by SIGSEGV"),
        (replace(CRASHED, signal=64), "was killed by SIGRTMAX"),
        (replace(CRASHED, signal=99), "was killed by signal 99"),
        (replace(LEFT, code=8), "exited with code 8"),
        (replace(LEFT, code=Exit.TERMINATED), "was stopped by a SIGTERM"),
    ],
)
def test_the_audit_says_how_the_process_ended(ended: ExitRecord, fragment: str) -> None:
    why = attribute(SEAT, ended, "").why
    assert why.startswith(f"its process {PID} ") and fragment in why


def dump(*idents: int, current: int, of: str) -> str:
    stacks = (
        f"{'Current thread' if ident == current else 'Thread'} 0x{ident:016x} "
        f'(most recent call first):\n  File "{of}.py", line 1 in f{ident:x}\n'
        for ident in idents
    )
    return "\n".join(stacks)


@pytest.mark.parametrize(
    ("ended", "kept"),
    [
        (
            HOLDS_GIL,
            f'Thread 0x{0xAB1:016x} (most recent call first):\n  File "last.py", line 1 in fab1',
        ),
        (
            replace(CRASHED, quarantined=True),
            f"Current thread 0x{0xAB2:016x} (most recent call first):\n"
            '  File "last.py", line 1 in fab2',
        ),
    ],
)
def test_of_all_stacks_the_latest_of_the_thread_that_is_the_cause_is_kept(
    ended: ExitRecord, kept: str
) -> None:
    earlier = dump(0xAB1, 0xAB2, 0xAB0, current=0xAB1, of="first")
    last = dump(0xAB0, 0xAB1, 0xAB2, current=0xAB2, of="last")
    text = f"{earlier}Fatal Python error: Segmentation fault\n\n{last}\nExtension modules: x\n"
    attribution = attribute(SEAT, ended, text)
    assert {str(_details(error)["stack"]) for error in attribution.causes.values()} == {kept}


@pytest.mark.parametrize(
    "stack", ["x" * 50_000, "\n" * 50_000, "\0é" * 20_000, "\x01" * 50_000, "short"]
)
def test_a_stack_too_long_for_the_event_is_cut_and_the_rest_kept(stack: str) -> None:
    attribution = attribute(SEAT, replace(CRASHED, quarantined=True), stack)
    [kept] = {_details(error)["stack"] for error in attribution.causes.values()}
    assert stack.replace("\0", "").endswith(str(kept)) and len(str(kept)) >= min(len(stack), 3_000)
    assert _details(attribution.causes[FIRST])["pid"] == PID


def _details(error: CommandError) -> dict[str, object]:
    """As they are stored."""
    outcome = failed(
        error, "", attempt=1, max_attempts=3, policy=RetryPolicy(), retry_after=None, rand=0.5
    )
    resolution = json.loads(outcome.details or "")["details"]
    assert isinstance(resolution, dict), resolution
    return resolution
