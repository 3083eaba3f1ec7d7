"""What the probes and the status say of a board."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from shown_boards import AWAY, NOW, SECOND, families, process, show, values, worker

from cmdbus.board.board import Board
from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.health import HealthReport
from cmdbus.board.records import Role, SupervisorState
from cmdbus.worker.probes.responses import Response, live, ready, status


@pytest.fixture
def board() -> Iterator[Board]:
    with closing(Board.in_memory(5, 4)) as board:
        show(board)
        yield board


def reasons_of(answer: Response) -> tuple[int, list[str]]:
    return answer.status, json.loads(answer.body)["reasons"]


def readiness(board: Board) -> tuple[int, list[str]]:
    return reasons_of(ready(board.snapshot(), NOW))


# Live.


def test_it_is_live_while_the_supervisor_comes_back_in_time(board: Board) -> None:
    for state in SupervisorState:
        show(board, state)
        good = state not in (SupervisorState.STOPPED, SupervisorState.GIVING_UP)
        assert (live(board.snapshot(), NOW).status == 200) is good, state
    show(board, due=NOW - 7 * SECOND)
    assert reasons_of(live(board.snapshot(), NOW)) == (503, ["the supervisor is late by 7 s"])
    with closing(Board.in_memory(1, 1)) as unsupervised:
        assert reasons_of(live(unsupervised.snapshot(), NOW)) == (503, ["there is no supervisor"])


# Ready.


def test_it_is_ready_when_a_worker_can_run_commands(board: Board) -> None:
    assert readiness(board) == (503, ["worker 0 has no process", "worker 1 has no process"])
    worker(board, 0, is_ready=False)
    assert readiness(board) == (503, ["worker 0 is starting", "worker 1 has no process"])
    worker(board, 0)
    assert readiness(board) == (200, ["worker 1 has no process"])
    worker(board, 1)
    assert readiness(board) == (200, [])


def test_a_worker_that_stops_is_not_one_without_a_process(board: Board) -> None:
    """Nor one that is missing while the steward or the quarantine process stops."""
    for role, index in ((Role.STEWARD, 3), (Role.QUARANTINE, 4)):
        process(board, role, index, 0).order_to_stop(0, 1, by=NOW)
    assert readiness(board) == (503, ["worker 0 has no process", "worker 1 has no process"])
    worker(board, 0).order_to_stop(0, 1, by=NOW)
    assert readiness(board) == (503, ["worker 0 is stopping", "worker 1 has no process"])
    process(board, Role.WORKER, 2, 0)
    assert readiness(board) == (200, ["worker 1 has no process"])


def test_degraded_is_ready_and_critical_is_not(board: Board) -> None:
    """The health of each worker is on the page."""
    degraded = HealthReport(consecutive_failures=11, last_success=990.0)
    worker(board, 0, degraded)
    worker(board, 1, HealthReport(stuck_threads=4))
    answer = ready(board.snapshot(), NOW)
    assert reasons_of(answer) == (
        200,
        [
            "worker 0 is DEGRADED: 11 failures in a row, and more than 10 are too many",
            "worker 1 is CRITICAL: 4 stuck threads within 5 minutes, and more than 3 are too many",
        ],
    )
    assert json.loads(answer.body)["seats"][0] == {
        "seat": 0,
        "health": "DEGRADED",
        "reasons": degraded.reasons,
        "last_success": 10.0,
        "consecutive_failures": 11,
        "stuck_threads": 0,
        "pool_exhaustions": 0,
    }
    worker(board, 0, HealthReport(pool_exhaustions=6))
    assert readiness(board)[0] == 503


def test_workers_that_do_not_come_back_are_not_ready(board: Board) -> None:
    for number in (0, 1):
        worker(board, number, due=NOW - 2 * SECOND)
    assert readiness(board) == (503, ["worker 0 is late by 2 s", "worker 1 is late by 2 s"])


def test_processes_that_do_not_die_are_told_and_counted(board: Board) -> None:
    for number in (0, 1):
        worker(board, number)
    board.undead = 2
    assert readiness(board) == (200, ["processes that survived SIGKILL: 2"])
    assert values(families(board)["cmdbus_undead_processes"]) == {(): 2}


def test_it_is_not_ready_while_the_database_is_away(board: Board) -> None:
    """As a look has just found, or, where nothing looks, as the steward says."""
    for number in (0, 1):
        worker(board, number)
    process(board, Role.STEWARD, 2, 0, AWAY)
    assert readiness(board) == (503, ["the database is away"])
    worker(board, 1, HealthReport(last_success=NOW / SECOND - 1))
    assert readiness(board) == (503, ["the database is away"])
    assert reasons_of(ready(board.snapshot(), NOW, away=False)) == (200, [])
    process(board, Role.STEWARD, 2, 0)
    assert reasons_of(ready(board.snapshot(), NOW, away=True)) == (503, ["the database is away"])
    for number in (0, 1):
        worker(board, number, AWAY)
    assert readiness(board)[0] == 503


def test_it_is_not_ready_while_it_stops(board: Board) -> None:
    worker(board, 0)
    worker(board, 1)
    show(board, SupervisorState.STOPPING)
    assert readiness(board) == (503, ["the supervisor is stopping"])
    show(board, SupervisorState.STARTING)
    assert readiness(board) == (200, [])


def test_a_successor_counts_as_soon_as_it_is_ready(board: Board) -> None:
    worker(board, 0, HealthReport(stuck_threads=4))
    worker(board, 1, HealthReport(stuck_threads=4))
    board.seat(0).order_to_stop(0, 1, by=NOW)
    process(board, Role.WORKER, 2, 0, is_ready=False)
    assert readiness(board)[0] == 503
    process(board, Role.WORKER, 2, 0)
    assert readiness(board)[0] == 200


# Status.


def test_status_shows_the_board_the_counters_and_the_queues(board: Board) -> None:
    seat = worker(board, 0)
    seat.slot(0).counters.ended(
        seat.command_type("payments", "Debit").index, OutcomeLabel.COMPLETED, 1
    )
    depths = {("payments", "ready"): 3, ("payments", "scheduled"): 1}
    answer = status(board.snapshot(), board.counters(), depths, NOW)
    shown = json.loads(answer.body)
    assert answer.status == 200
    assert shown.items() >= json.loads(json.dumps(board.snapshot().to_dict(NOW))).items()
    assert shown["queues"] == {"payments": {"ready": 3, "scheduled": 1}}
    assert shown["counters"]["commands"] == [
        {"domain": "payments", "type": "Debit", "outcome": "completed", "count": 1}
    ]
    unknown = status(board.snapshot(), board.counters(), None, NOW)
    assert json.loads(unknown.body)["queues"] is None
