"""The checks of chaos: each finds what one change makes wrong in a good history."""

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from broken_bridges import KEPT_BY_BRIDGES, bridged
from broken_headers import KEPT_BY_HEADERS, WITH_HEADERS
from broken_histories import BROKEN, TROUBLE, WAITS_ON
from broken_limits import FORGOTTEN, KEPT
from chaos_history import (
    CALM,
    GOOD,
    LEASE_ENDED,
    OUTCOME_LOST,
    RUN_AFTER_CLAIM,
    RUN_AFTER_RELEASE,
    Change,
    add,
    both,
    change,
    deadlock,
    drop,
    outage,
    put,
    starts,
    waiting,
)
from fault_injection import checking, handlers
from fault_injection.history import Restore, Stall
from programs import SCRIPTS

STARTED_AGAIN = "worker 0 starts, pid 20, generation 2"
#: An accepted call of which there is nothing.
LOST = change("calls", 3, outcome="ok", began=200.0, ended=200.1)


def violated(*changes: Change) -> set[str]:
    """The names of the checks that find something in the good history with these changes."""
    return {f.name for f in checking.check(both(*changes)(GOOD)) if f.violations}


def test_a_good_history_passes() -> None:
    findings = checking.check(GOOD)
    assert [(f.name, f.violations) for f in findings if f.violations] == []
    assert len(findings) == len(checking.CHECKS) > 25
    assert violated(WITH_HEADERS) == violated(bridged) == set()


@pytest.mark.parametrize(
    ("name", "what"), [(name, what) for name, changes in BROKEN.items() for what in changes]
)
def test_each_invariant_can_be_broken(name: str, what: str) -> None:
    assert name in violated(BROKEN[name][what])


@pytest.mark.parametrize(("name", "kept"), [*KEPT, *KEPT_BY_HEADERS, *KEPT_BY_BRIDGES])
def test_what_a_limit_a_key_an_expiry_and_a_bridge_let_happen_is_no_violation(
    name: str, kept: Change
) -> None:
    assert name not in violated(kept)


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


def test_a_tick_may_be_late_before_a_fleet_is_ready() -> None:
    late = both(CALM, change("ticks", 1, sent_at=104.5))
    assert "ticks-are-in-time" in violated(late)
    ready = add("lines", 0, at=103.0, message="the fleet is ready: 2 processes")
    assert "ticks-are-in-time" not in violated(late, ready)


@pytest.mark.parametrize(
    ("name", "lost", "copied_at", "restored_at", "is_found"),
    [
        ("no-loss", LOST, 199.0, 205.0, False),
        ("no-loss", LOST, 201.0, 205.0, True),
        ("only-held-keys-are-refused", FORGOTTEN, 209.0, 215.0, False),
        ("only-held-keys-are-refused", FORGOTTEN, 211.0, 215.0, True),
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
    rooms = (
        *("batch", "bridge", "call", "command", "expiry", "fleet", "header", "lane", "probe"),
        *("process", "tick", "time", "unique"),
    )
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
