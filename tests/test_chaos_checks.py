"""The checks of chaos: each finds what one change makes wrong in a good history."""

import ast
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from chaos_history import (
    CALM,
    FIRST,
    GOOD,
    LEASE_ENDED,
    OUTCOME_LOST,
    RUN_AFTER_CLAIM,
    RUN_AFTER_RELEASE,
    STEWARD,
    Change,
    add,
    both,
    change,
    deadlock,
    drop,
    outage,
    put,
    starts,
    step,
    waiting,
)
from fault_injection import checking, handlers
from fault_injection.history import Restore, Stall
from programs import SCRIPTS

TROUBLE = "IN_TROUBLESHOOTING_QUEUE"
STARTED_AGAIN = "worker 0 starts, pid 20, generation 2"


def undone_twice(**changed: object) -> Change:
    """The flow has sent another compensation of its first step."""
    steps = GOOD.processes[0].steps
    again: Any = {"number": 4, **changed}
    return change("processes", 0, steps=[*steps, replace(steps[2], **again)])


#: A call goes on after its command has ended at 105.0.
WAITS_ON = both(
    change("calls", 4, answer=None, outcome="unknown", timed_out=True, ended=106.5),
    change("moves", 7, command_id="called"),
)
#: An accepted call of which there is nothing.
LOST = change("calls", 3, outcome="ok", began=200.0, ended=200.1)


class Stray:
    pid, what, seconds = 1, "an orphan", 3.0


def violated(*changes: Change) -> set[str]:
    """The names of the checks that find something in the good history with these changes."""
    return {f.name for f in checking.check(both(*changes)(GOOD)) if f.violations}


def test_a_good_history_passes() -> None:
    findings = checking.check(GOOD)
    assert [(f.name, f.violations) for f in findings if f.violations] == []
    assert len(findings) == len(checking.CHECKS) > 25


SOURCES = ("calls", "rows", "moves", "marks", "lines", "samples", "counts", "recoveries")
#: By the check that finds it: what is wrong, and the change that makes it so.
BROKEN: dict[str, dict[str, Change]] = {
    "no-loss": {
        "an accepted command is nowhere": change("calls", 3, outcome="ok"),
        "it has not ended": change("rows", 1, table="ready", status="PENDING"),
    },
    "unhandled-waits": {
        "it has ended without a handler": change("rows", 0, type="Unhandled"),
        "it was claimed without a handler": change(
            "rows", 1, type="Unhandled", table="ready", status="PENDING", token=1
        ),
        "it is not listed": waiting([]),
    },
    "no-invention": {
        "it was never sent": drop("calls", 0),
        "more than were sent": change("rows", 0, index=1),
    },
    "all-or-nothing": {
        "a half of what is unknown": add("rows", 0, call="c4", command_id="n"),
        "refused, and there": add("rows", 0, call="c3", command_id="n"),
        "another id than was returned": change("calls", 0, ids=["other"]),
    },
    "one-end": {
        "two rows": add("rows", 0),
        "it goes on after its end": add("moves", 5, number=99, xid=99),
        "finished twice": add("moves", 7, number=99),
        "two replies": add("rows", 2, command_id="again"),
        "no reply": drop("rows", 2),
        "canceled, and no cancel was sent": change("rows", 0, status="CANCELED"),
        "a cancel that was not": change("calls", 0, way="cancel"),
    },
    "batches-count-their-commands": {
        "one is not counted": change("batches", 0, rows={"COMPLETED": 2, "FAILED": 1}),
        "one is counted twice": change("batches", 0, completed=2, total=3),
        "one is missing": change("batches", 0, total=3),
    },
    "batches-end-once": {
        "over too early": both(
            change("batches", 0, total=3, rows={"COMPLETED": 1, "FAILED": 1, "PENDING": 1})
        ),
        "nothing sent": change("batches", 0, on_complete=0),
        "sent twice": change("batches", 0, on_complete=2),
        "sent as canceled": change("batches", 0, on_complete=0, on_cancel=1),
        "not over": change("batches", 0, status="IN_PROGRESS", on_complete=0),
    },
    "batches-end-as-their-commands": {
        "canceled by nobody": drop("calls", 9),
        "canceled, and completed": change("batches", 1, status="COMPLETED_WITH_FAILURES"),
        "completed with a failure": change("batches", 0, status="COMPLETED"),
    },
    "commands-are-added-with-the-end-of-the-handler": {
        "added by one that has failed": change("rows", 4, status="FAILED", code="RULE"),
        "not added": drop("rows", 5),
        "added to another batch": change("rows", 5, batch="b2"),
    },
    "calls-return-what-their-commands-did": {
        "another result": change("rows", 3, run="another"),
        "a failure of what was completed": change(
            "calls", 4, answer={"status": "FAILED", "code": "RULE"}
        ),
    },
    "calls-end-with-their-commands": {"it waits on": WAITS_ON},
    "processes-are-those-that-were-started": {
        "it is nowhere": put(processes=[]),
        "it was refused": change("calls", 6, outcome="fail"),
        "two of them": add("processes", 0),
        "it was never started": drop("calls", 6),
        "another id": change("processes", 0, process_id="other"),
    },
    "processes-have-ended": {
        "it waits": change("processes", 0, status="WAITING_FOR_REPLY"),
        "it has not got a reply": step(2, outcome=None),
    },
    "steps-are-taken-once": {
        "a line of the audit trail twice": step(1, number=1),
        "a step twice": step(1, step="FIRST"),
        "a step is left out": step(1, step="THIRD"),
        "a reply twice": change("processes", 0, seen=[*GOOD.processes[0].seen] * 2),
        "a reply was dropped": change("processes", 0, seen=[]),
    },
    "signals-come-once": {
        "a signal twice": change("processes", 0, signals=["c8"] * 2, events=["SIGNALED"] * 2),
        "an event is missing": change("processes", 0, events=[]),
        "it was never sent": drop("calls", 7),
    },
    "steps-end-as-their-commands": {
        "the reply says the opposite": step(1, outcome="SUCCESS"),
        "a batch that has failed": step(0, type="process:batch", command_id="b1"),
        "its command is nowhere": step(1, command_id="other"),
        "a command twice": add("rows", 6, command_id="again"),
    },
    "processes-end-as-their-steps": {
        "another end": change("processes", 0, status="CANCELED"),
        "completed with a failure": change("processes", 0, status="COMPLETED"),
        "nobody has canceled it": change("processes", 0, events=["SIGNALED", "CANCEL_REQUESTED"]),
        "a compensation has failed": step(2, outcome="FAILED"),
        "it has ended too early": both(
            change("processes", 0, status="COMPLETED"), step(1, outcome="SUCCESS")
        ),
    },
    "deadlines-fire-in-time": {
        "a step without one": step(1, outcome="CANCELED"),
        "before it has passed": step(1, outcome="CANCELED", deadline_at=106.2),
    },
    "what-was-done-is-undone-once": {
        "it is not undone": step(2, undoes=2),
        "what has failed is undone": step(1, outcome="FAILED", number=1),
        "it is undone twice": undone_twice(),
        "the first one first": undone_twice(undoes=2),
    },
    "nothing-is-undone-too-early": {
        "the step before it goes on": change("moves", 14, number=99),
        "a command of a list goes on": both(
            step(1, command_id="b3"), change("rows", 1, batch="b3"), change("moves", 12, number=99)
        ),
    },
    "ends-as-its-handler-says": {
        "another end than its handler's": change("rows", 0, status="FAILED", code="RULE"),
        "lost without a loss": change(
            "rows", 1, table="troubleshooting", status=TROUBLE, code="LOST"
        ),
    },
    "tokens-count-up": {
        "a token is left out": change("moves", 5, token=3),
        "a token comes again": change("moves", 5, token_before=0, token=1),
    },
    "only-the-claimer-ends-a-claim": {
        "settled by a worker that had lost it": change("moves", 6, session=FIRST),
        "released by a stranger": change("moves", 2, what="release", session="psql"),
        "an effect of another one": change("effects", 0, session=FIRST),
        "a result of another one": change("rows", 0, run="10.1"),
    },
    "claims-do-not-overlap": {
        "claimed before the lease ended": change("moves", 5, claimer_before=1, lease_before=104.5),
    },
    "each-execution-has-a-claim": {
        "an execution without a claim": add("marks", 2, run="20.9"),
        "run again after a release": RUN_AFTER_RELEASE,
    },
    "effects-are-there-once": {
        "an effect twice": add("effects", 0),
        "no effect": drop("effects", 0),
        "an effect of what failed": add("effects", 0, command_id="noop"),
    },
    "runs-are-explained": {
        "completed and never returned": drop("marks", 3),
        "more often than it was claimed": lambda h: replace(h, marks=[*h.marks, *[h.marks[2]] * 3]),
        "given back as if it had not begun": change("moves", 2, what="release", session=STEWARD),
    },
    "effects-are-of-what-was-settled": {
        "an effect of another run": change("effects", 0, run="20.9"),
        "an effect in another transaction": change("effects", 0, xid=10),
        "a thread that wrote with another command": add("effects", 0, run="20.1.kept", xid=10),
    },
    "leases-of-the-living-are-renewed": {
        "a living worker's lease ended": both(LEASE_ENDED, drop("lines", 1)),
    },
    "ended-leases-are-recorded": {
        "a lease that ended without an event": change("moves", 5, claimer_before=1),
    },
    "stops-lose-no-outcome": {"a handler had returned": OUTCOME_LOST},
    "attempts-are-bounded": {
        "too many attempts": change("rows", 0, max_attempts=1),
        "a claim charges": change("moves", 5, attempts=2),
        "charged for what is none of its doing": add("events", 0, code="ReadOnlySqlTransaction"),
    },
    "not-before-its-time": {
        "claimed before it was due": change("moves", 10, due_at=104.3),
        "again too soon": change("moves", 3, due_at=103.2),
        "again too soon by a little": change("moves", 3, due_at=103.44),
        "delayed too little": change("moves", 8, due_at=102.0),
    },
    "delayed-start-in-time": {
        "promoted late": both(CALM, change("moves", 9, at=106.5)),
        "claimed late": both(CALM, change("moves", 10, at=114.5)),
    },
    "counts-agree": {"a row is missing in a snapshot": change("counts", 0, rows=1)},
    "counters-never-fall": {"a counter falls": add("samples", 0, at=101.0, counters={"x": 1})},
    "restarts-have-causes": {
        "a restart for nothing": drop("lines", 1),
        "a supervisor ended": put(wrong=["the supervisor a ended with 1"]),
    },
    "starts-are-bounded": {"three processes a second that run nothing": starts(0.3)},
    "fleets-are-bounded": {
        "too many processes for long": lambda h: replace(
            h, samples=[replace(s, workers=4) for s in h.samples]
        ),
    },
    "connections-are-bounded": {"too many sessions": change("counts", 0, sessions=41)},
    "none-claims-after-its-stop": {"a claim after the stop": change("moves", 5, at=112.0)},
    "everything-works-again": {
        "not drained": put(drained=None),
        "never again": change("recoveries", 0, seconds=None),
        "too late": change("recoveries", 0, seconds=9.0),
        "a promise that is broken meanwhile": change("recoveries", 0, broken="unnoticed"),
    },
    "outages-are-over-in-time": {
        "no claim after an outage": outage(ended=104.5, answered=105.0),
        "no answer after an outage": outage(ended=103.8, answered=106.0),
    },
    "the-server-is-content": {
        "a deadlock of the bus": deadlock("cmdbus.ready"),
        "a deadlock of the bus with a handler": deadlock("chaos.twin", "cmdbus.ready"),
        "a panic": put(server=[(101.0, "XX000", "PANIC:  could not")]),
        "a session that was idle for too long": put(
            server=[(101.0, "25P03", "FATAL:  terminating connection")]
        ),
        "a timeout without a cause": put(server=[(101.0, "57014", "ERROR:  canceling statement")]),
    },
    "every-source-was-heard": {
        **{f"no {name}": put(**{name: []}) for name in SOURCES},
        "a domain of which nothing has ended": lambda h: replace(
            h, limits=replace(h.limits, domains=["storm", "storm.01"])
        ),
        "no log": put(server=[]),
    },
    "no-secret-is-printed": {"the password in a log": put(leaks=["log"])},
    "no-process-is-left": {"a process that is left": put(strays=[Stray()])},
}


@pytest.mark.parametrize(
    ("name", "what"), [(name, what) for name, changes in BROKEN.items() for what in changes]
)
def test_each_invariant_can_be_broken(name: str, what: str) -> None:
    assert name in violated(BROKEN[name][what])


@pytest.mark.parametrize("type_", handlers.BODIES)
def test_each_type_has_an_end_that_it_must_come_to(type_: str) -> None:
    wrong = change("rows", 1, type=type_, status="FAILED", code="ANOTHER")
    assert "ends-as-its-handler-says" in violated(wrong)


def test_a_handler_may_find_no_thread_that_it_could_start() -> None:
    wrong = change("rows", 1, type="Keep", status=TROUBLE, code="RuntimeError")
    assert "ends-as-its-handler-says" not in violated(wrong)


def test_an_outage_that_is_over_in_time_is_none() -> None:
    assert "outages-are-over-in-time" not in violated(outage(ended=103.8, answered=104.0))


def test_a_command_may_wait_for_its_turn_in_a_backlog() -> None:
    late = change("moves", 10, at=114.5)
    backlog = [add("moves", 5, number=100 + n, command_id=f"c{n}", at=110.0) for n in range(20)]
    assert "delayed-start-in-time" not in violated(CALM, late, *backlog)


def test_a_command_without_a_handler_waits() -> None:
    assert "unhandled-waits" not in violated(waiting(["noop"]))


def test_an_execution_after_a_second_claim_is_explained() -> None:
    assert "each-execution-has-a-claim" not in violated(RUN_AFTER_CLAIM)


def test_the_lease_of_a_process_that_has_exited_or_was_kept_away_may_end() -> None:
    assert "leases-of-the-living-are-renewed" not in violated(LEASE_ENDED)

    def is_found(change: Change) -> bool:
        """Of a process that lives."""
        living = both(LEASE_ENDED, drop("lines", 1))
        return "leases-of-the-living-are-renewed" in violated(living, change)

    stopped = change("recoveries", 0, kind="stop-steward", instances=["a"])
    assert not is_found(stopped)
    assert is_found(both(stopped, change("recoveries", 0, instances=["b"])))
    assert is_found(both(stopped, change("recoveries", 0, began=90.0, ended=91.0)))
    assert not is_found(put(stalls=[Stall(began=102.5, ended=103.5)]))


def test_what_had_returned_may_be_lost_where_it_could_not_be_settled() -> None:
    def is_found(*changes: Change) -> bool:
        return "stops-lose-no-outcome" in violated(OUTCOME_LOST, *changes)

    assert is_found(change("events", 1, code="LEASE_ENDED"))
    away = change("recoveries", 0, kind="lock-rows", instances=["a"], began=105.0, ended=106.0)
    assert not is_found(away)
    assert is_found(away, change("recoveries", 0, began=90.0, ended=91.0))
    assert not is_found(change("lines", 4, message="worker 0, pid 20, was killed by SIGKILL"))
    assert not is_found(change("marks", 5, what="raised"))
    assert not is_found(change("marks", 5, at=106.0)), "at the very end of the drain"
    assert not is_found(change("moves", 10, token=2), change("events", 1, token=2, at=104.3))


def test_a_call_may_time_out_that_could_not_be_answered() -> None:
    away = change("recoveries", 0, kind="proxy-silent", began=105.5, ended=106.0)
    assert "calls-end-with-their-commands" not in violated(WAITS_ON, away)
    assert "calls-end-with-their-commands" in violated(
        WAITS_ON, away, change("recoveries", 0, began=90.0, ended=91.0)
    )


def test_a_quarantine_process_may_start_again_after_a_pause() -> None:
    assert "starts-are-bounded" not in violated(starts(2.0))


@pytest.mark.parametrize(
    ("kind", "instance", "is_late"),
    [
        ("stop-steward", "a", False),
        ("hup", "a", False),
        ("stop-steward", "b", True),
        ("ttin", "a", True),
    ],
)
def test_a_delay_may_be_late_while_every_steward_is_kept_away(
    kind: str, instance: str, is_late: bool
) -> None:
    fault = change("recoveries", 0, kind=kind, instances=[instance], began=104.0, ended=106.0)
    late = violated(CALM, change("moves", 9, at=106.5), fault)
    assert ("delayed-start-in-time" in late) == is_late


@pytest.mark.parametrize(
    ("name", "lost", "copied_at", "restored_at", "is_found"),
    [
        ("no-loss", LOST, 199.0, 205.0, False),
        ("no-loss", LOST, 201.0, 205.0, True),
        # It enters at 104.6, and has no exit.
        ("each-execution-has-a-claim", RUN_AFTER_RELEASE, 89.0, 104.0, False),
        ("each-execution-has-a-claim", RUN_AFTER_RELEASE, 89.0, 90.0, True),
        ("runs-are-explained", drop("moves", 11), 104.8, 107.0, False),
        ("runs-are-explained", drop("moves", 11), 106.0, 107.0, True),
    ],
)
def test_only_what_came_after_the_copy_is_excused_by_a_restore(
    name: str, lost: Change, copied_at: float, restored_at: float, is_found: bool
) -> None:
    restore = Restore(copied_at=copied_at, restored_at=restored_at)
    assert (name in violated(lost, put(restores=[restore]))) == is_found


def test_a_slow_settlement_does_not_make_a_retry_early() -> None:
    """The statement began at 103.0 and computed the due time at 103.1; meanwhile the journal
    got a mark of an earlier execution, which had lost its lease."""
    late = change("moves", 3, at=103.6, due_at=103.6)
    assert "not-before-its-time" not in violated(late, add("marks", 1, at=103.5))


def test_a_seat_may_be_taken_again_after_the_fleet_was_resized() -> None:
    again = change("lines", 2, message=STARTED_AGAIN)
    resized = change("lines", 1, message="1 worker process from now on")
    assert "restarts-have-causes" not in violated(again, resized, drop("lines", 3))
    assert "restarts-have-causes" in violated(again, drop("lines", 3), drop("lines", 1))


def test_the_successor_of_a_process_that_got_a_sigterm_may_start_before_that_has_ended() -> None:
    again = change("lines", 2, message=f"{STARTED_AGAIN}: terminated")
    assert "restarts-have-causes" not in violated(again, drop("lines", 1))


def test_handlers_may_deadlock_by_rows_of_the_application() -> None:
    assert violated(deadlock("chaos.twin", "chaos.twin")) == set()


def test_each_sentence_that_a_check_can_say_is_planted() -> None:
    """A check that cannot fail proves nothing."""
    passed: set[tuple[str, int]] = set()
    wanted: dict[tuple[str, int], str] = {}
    rooms = ("batch", "call", "command", "fleet", "process", "time")
    for name in (f"{room}_checks" for room in rooms):
        path = str(SCRIPTS / "fault_injection" / f"{name}.py")
        tree = ast.parse(Path(path).read_text())
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Yield)]
        wanted |= {(path, node.lineno): ast.unparse(node) for node in found}
    paths = {path for path, _ in wanted}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in paths:
            return None
        passed.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for changes in BROKEN.values():
            for broken in changes.values():
                violated(broken)
    finally:
        sys.settrace(before)
    assert [sentence for place, sentence in wanted.items() if place not in passed] == []


def test_each_check_is_broken_by_some_history() -> None:
    assert set(BROKEN) == {checking.name_of(function) for _, function in checking.CHECKS}
