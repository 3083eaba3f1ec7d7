"""Each way in which a process ends, and who of those that it ran is to blame."""

import json
import signal
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from cmdbus.board.claim_table import KeyState
from cmdbus.board.health import Levels
from cmdbus.board.seats import Ended, Role, Verdict
from cmdbus.board.slots import Phase
from cmdbus.board.views import CommandView, KeyView, SeatView, SlotView
from cmdbus.errors import CommandError, PermanentCommandError, TransientCommandError
from cmdbus.exits import Exit
from cmdbus.retry import RetryPolicy
from cmdbus.worker.claims.claim import Claim
from cmdbus.worker.claims.outcomes import failed
from cmdbus.worker.steward.attribution import Death, Key, begun, blame
from cmdbus.worker.steward.stale_boards import KILLED

ID = UUID(int=1)
PID = 4711
#: Of the two commands that run, in slots 0 and 1; a third has finished, a fourth waits.
FIRST, SECOND, FINISHED, WAITING = (1, 101, 1), (2, 102, 2), (3, 103, 3), (4, 104, 4)


def key(which: Key, state: KeyState) -> KeyView:
    id, token, command = which
    return KeyView(
        domain="payments",
        domain_hash=0,
        priority=5,
        id=id,
        token=token,
        command_id=UUID(int=command),
        state=state,
        place=id,
        kind=0,
    )


def slot(place: int, which: Key | None) -> SlotView:
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
        place=place,
        number=place,
        phase=Phase.RUNNING if which else Phase.RESTING,
        command=command,
        since=1,
        due=2,
        thread=10 + place,
        ident=0xAB0 + place,
        backend_pid=None,
        backend_start=None,
        sequence=2,
    )


SEAT = SeatView(
    place=0,
    role=Role.DEAD,
    number=0,
    generation=3,
    pid=PID,
    incarnation=17,
    since=1,
    ready=1,
    due=1,
    levels=Levels(),
    leave_by=None,
    rss_bytes=None,
    ended=None,
    rescued=False,
    parked=None,
    slots=(slot(0, FIRST), slot(1, SECOND), slot(2, None)),
    keys=(
        key(FIRST, KeyState.STARTED),
        key(SECOND, KeyState.STARTED),
        key(FINISHED, KeyState.FINISHED),
        key(WAITING, KeyState.CLAIMED),
    ),
    complete=True,
)

ORDERED = Ended(generation=3, pid=PID, signal=signal.SIGKILL, verdict=Verdict.LATE)
STOPPED = replace(ORDERED, verdict=Verdict.STOPPED)
STUCK = replace(ORDERED, verdict=Verdict.STUCK)
KEEPS_IT = replace(STUCK, slot=1, token=SECOND[1], command_id=UUID(int=SECOND[2]))
CRITICAL = replace(ORDERED, verdict=Verdict.CRITICAL)
HUNG = replace(ORDERED, verdict=Verdict.HUNG)
HOLDS_GIL = replace(KEEPS_IT, verdict=Verdict.HUNG)
CRASHED = Ended(generation=3, pid=PID, signal=signal.SIGSEGV)
LEFT = Ended(generation=3, pid=PID, code=0)


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
        correlation_id=ID,
        reply_to=None,
        created_at=datetime.now(UTC),
        waited=0.0,
    )


def losses_of(death: Death) -> list[int]:
    """So many does a command have afterwards that had none, one and two before."""
    return [before + death.losses(claim(before)) for before in range(3)]


ONE_MORE = [1, 2, 3]
#: At least as many as make it run alone, and one more in any case.
SUSPECT = [2, 2, 3]
AS_BEFORE = [0, 1, 2]


def test_a_finished_command_counts_as_begun_until_it_is_settled() -> None:
    assert begun(SEAT) == {FIRST, SECOND, FINISHED}


def test_a_command_whose_id_and_token_were_given_again_has_not_begun() -> None:
    """By a server that was restored to an earlier point: the process holds both."""
    again = (*FIRST[:2], 77)
    for keys in (
        (key(FIRST, KeyState.STARTED), key(again, KeyState.CLAIMED)),
        (key(again, KeyState.CLAIMED), key(FIRST, KeyState.STARTED)),
    ):
        assert begun(replace(SEAT, slots=SEAT.slots[:1], keys=keys)) == {FIRST}
    alone = blame(replace(SEAT, slots=(), keys=keys), replace(CRASHED, alone=True), "")
    assert list(alone.guilty) == [FIRST]


def test_a_command_on_a_slot_without_a_key_counts_as_begun() -> None:
    """There were more at once than can be shown."""
    unseen = replace(SEAT, keys=SEAT.keys[1:])
    assert begun(unseen) == {FIRST, SECOND, FINISHED}
    ended = replace(SEAT, slots=(slot(0, FINISHED), slot(1, WAITING)))
    assert begun(ended) == {FIRST, SECOND, FINISHED}, (
        "what the keys say is newer than what a slot says"
    )


@pytest.mark.parametrize("ran_alone", [False, True])
def test_who_was_ordered_to_leave_and_killed_at_its_deadline_is_blamed_for_nothing(
    ran_alone: bool,
) -> None:
    death = blame(SEAT, replace(ORDERED, alone=ran_alone), "")
    assert death.guilty == {} and losses_of(death) == AS_BEFORE
    assert death.incarnation == 17 and death.seat is SEAT


@pytest.mark.parametrize("ran_alone", [False, True])
def test_a_slot_past_its_due_at_the_deadline_of_an_order_is_charged_and_nothing_else(
    ran_alone: bool,
) -> None:
    late = replace(KEEPS_IT, verdict=Verdict.LATE, alone=ran_alone)
    death = blame(SEAT, late, "")
    assert {key: error.code for key, error in death.guilty.items()} == {SECOND: "TIMEOUT"}
    assert losses_of(death) == AS_BEFORE


def test_the_slot_that_a_process_is_stuck_by_is_charged_and_the_others_count_a_loss() -> None:
    death = blame(SEAT, KEEPS_IT, "")
    assert {key: error.code for key, error in death.guilty.items()} == {SECOND: "TIMEOUT"}
    assert losses_of(death) == ONE_MORE


@pytest.mark.parametrize("ended", [STUCK, CRITICAL])
def test_a_verdict_that_no_slot_is_known_for_counts_a_loss_for_all(ended: Ended) -> None:
    """A verdict is no order: nothing that had begun goes back as if it had not."""
    death = blame(SEAT, ended, "")
    assert death.guilty == {} and losses_of(death) == ONE_MORE


@pytest.mark.parametrize("code", [Exit.NO_ROOM, Exit.TERMINATED])
def test_a_cause_outside_of_its_commands_counts_a_loss_and_makes_nothing_a_suspect(
    code: Exit,
) -> None:
    """A lack of threads, or a SIGTERM from outside whose claims could not all be settled."""
    death = blame(SEAT, replace(LEFT, code=code), "")
    assert death.guilty == {} and losses_of(death) == ONE_MORE


@pytest.mark.parametrize("number", ["KILL", "TERM", "INT", "HUP", "QUIT"])
@pytest.mark.parametrize("ran_alone", [False, True])
def test_a_signal_from_outside_blames_nobody_and_counts_a_loss(
    number: str, ran_alone: bool
) -> None:
    """Fault 23: the first loss runs again anywhere, the second alone, the third nowhere."""
    ended = replace(LEFT, signal=signal.Signals[f"SIG{number}"], alone=ran_alone)
    death = blame(SEAT, ended, "")
    assert death.guilty == {} and losses_of(death) == ONE_MORE


def test_one_that_was_stopped_from_outside_blames_nobody_and_counts_a_loss() -> None:
    """Fault 4."""
    death = blame(SEAT, STOPPED, "")
    assert death.guilty == {} and losses_of(death) == ONE_MORE


def test_who_held_the_gil_is_charged_and_the_others_count_a_loss() -> None:
    """Fault 6."""
    death = blame(SEAT, HOLDS_GIL, "File regex.py")
    assert losses_of(death) == ONE_MORE
    assert list(death.guilty) == [SECOND]
    error = death.guilty[SECOND]
    assert isinstance(error, TransientCommandError) and error.code == "TIMEOUT"
    assert "its main thread did not come back" in error.message
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
def test_whoever_came_into_the_guilty_slot_later_is_not_charged(ended: Ended) -> None:
    """Compare and kill: the verdict names slot, token and command. Another command's first claim
    has the same token."""
    death = blame(SEAT, ended, "")
    assert death.guilty == {} and losses_of(death) == ONE_MORE


@pytest.mark.parametrize(
    "ended",
    [
        HUNG,
        CRASHED,
        replace(CRASHED, signal=signal.SIGABRT),
        replace(CRASHED, signal=signal.SIGBUS),
        replace(CRASHED, signal=signal.SIGILL),
        replace(CRASHED, signal=signal.SIGFPE),
        replace(CRASHED, signal=signal.SIGALRM),
        replace(CRASHED, signal=64),
        LEFT,
        replace(LEFT, code=3),
    ],
)
def test_of_a_crash_that_could_be_anybodys_all_are_suspects(ended: Ended) -> None:
    """Faults 2, 3: they run alone next time; innocents are never charged."""
    death = blame(SEAT, ended, "")
    assert death.guilty == {} and losses_of(death) == SUSPECT


@pytest.mark.parametrize("ended", [HOLDS_GIL, HUNG, STUCK, KEEPS_IT, CRASHED, LEFT])
def test_who_crashes_alone_is_guilty(ended: Ended) -> None:
    """And goes to a person, with all that is known of it."""
    death = blame(SEAT, replace(ended, alone=True), "the stack")
    assert set(death.guilty) == {FIRST, SECOND, FINISHED}
    for error in death.guilty.values():
        assert isinstance(error, PermanentCommandError) and error.code == "CRASHED"
        assert "it ran alone" in error.message and str(PID) in error.message
        assert _details(error)["stack"] == "the stack"


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (ORDERED, "was killed: it was told to leave and had not in time"),
        (STOPPED, "was killed: a signal had stopped it"),
        (STUCK, "was killed: a command did not end"),
        (CRITICAL, "was killed: it was critical, and had not left in time"),
        (HUNG, "was killed: its main thread did not come back"),
        (replace(LEFT, signal=9), "killed from outside (SIGKILL), or because memory ran out"),
        (replace(KILLED, pid=PID), "ended with its supervisor, which had died"),
        (CRASHED, "died of SIGSEGV"),
        (replace(CRASHED, signal=64), "died of SIGRTMAX"),
        (replace(CRASHED, signal=99), "died of signal 99"),
        (replace(LEFT, code=8), "left by itself with exit code 8"),
        (replace(LEFT, code=7), "was stopped from outside (SIGTERM)"),
    ],
)
def test_the_audit_says_how_the_process_ended(ended: Ended, said: str) -> None:
    why = blame(SEAT, ended, "").why
    assert why.startswith(f"its process {PID} ") and said in why


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
            replace(CRASHED, alone=True),
            f"Current thread 0x{0xAB2:016x} (most recent call first):\n"
            '  File "last.py", line 1 in fab2',
        ),
    ],
)
def test_of_all_stacks_the_latest_of_the_guilty_thread_is_kept(ended: Ended, kept: str) -> None:
    earlier = dump(0xAB1, 0xAB2, 0xAB0, current=0xAB1, of="first")
    last = dump(0xAB0, 0xAB1, 0xAB2, current=0xAB2, of="last")
    text = f"{earlier}Fatal Python error: Segmentation fault\n\n{last}\nExtension modules: x\n"
    death = blame(SEAT, ended, text)
    assert {str(_details(error)["stack"]) for error in death.guilty.values()} == {kept}


@pytest.mark.parametrize(
    "stack", ["x" * 50_000, "\n" * 50_000, "\0é" * 20_000, "\x01" * 50_000, "short"]
)
def test_a_stack_too_long_for_the_event_is_cut_and_the_rest_kept(stack: str) -> None:
    death = blame(SEAT, replace(CRASHED, alone=True), stack)
    [kept] = {_details(error)["stack"] for error in death.guilty.values()}
    assert stack.replace("\0", "").endswith(str(kept)) and len(str(kept)) >= min(len(stack), 3_000)
    assert _details(death.guilty[FIRST])["pid"] == PID


def _details(error: CommandError) -> dict[str, object]:
    """As they are stored."""
    outcome = failed(
        error, "", attempt=1, max_attempts=3, policy=RetryPolicy(), retry_after=None, dice=0.5
    )
    said = json.loads(outcome.details or "")["details"]
    assert isinstance(said, dict), said
    return said
