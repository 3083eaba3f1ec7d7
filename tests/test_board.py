"""The board: what is written by one process is what others read."""

import json
import os
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from boards import SECOND, begin, is_of_one_write, slot_view, taken

from cmdbus.board.board import Board
from cmdbus.board.counters import Counter
from cmdbus.board.health import Health, HealthReport
from cmdbus.board.layout import CELL, CLAIM_COUNT
from cmdbus.board.records import (
    ClaimState,
    ExitRecord,
    Phase,
    Restart,
    Role,
    SupervisorState,
    Verdict,
)
from cmdbus.board.threads import StepReason, ThreadsView
from cmdbus.board.views import ClaimView, CommandView


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.in_memory(seats=2, slots=3, command_types=4)
    yield board
    board.close()


# What is shown.


def test_a_new_board_shows_empty_seats(board: Board) -> None:
    view = board.snapshot()
    assert (view.name, view.pid, view.state, view.armed) == ("cmdbus", None, None, 0)
    assert [(seat.pid, seat.slots, seat.claims) for seat in view.seats] == [(None, (), ())] * 2


def test_a_slot_shows_its_command_and_its_deadline(board: Board) -> None:
    seat, slot = taken(board), board.seat(0).slot(1)
    slot.occupy(7, now=3)
    slot.session(4711, 123)
    values: dict[str, Any] = {"priority": 5, "id": 99, "token": 3, "attempt": 2}
    values["command_id"] = uuid4()
    slot.begin(seat.command_type("payments", "Debit"), **values, started=10, due=20)
    (view,) = board.snapshot().seats[0].slots
    assert (view.index, view.number, view.phase) == (1, 7, Phase.RUNNING)
    assert (view.since, view.due) == (10, 20)
    assert view.command == CommandView(domain="payments", type="Debit", **values)
    session = (view.thread, view.backend_pid, view.backend_start)
    assert session == (threading.get_native_id(), 4711, 123)
    slot.extend(50)
    assert slot_view(board, 0, 1).due == 50
    slot.end(60)
    ended = slot_view(board, 0, 1)
    assert (ended.phase, ended.command, ended.since, ended.due) == (Phase.IDLE, None, 60, None)
    slot.enter(Phase.RESTING, 70, 80)
    assert (slot_view(board, 0, 1).phase, slot_view(board, 0, 1).due) == (Phase.RESTING, 80)
    slot.release()
    assert board.snapshot().seats[0].slots == ()


def test_a_slot_is_shown_as_stuck_until_its_thread_moves_on(board: Board) -> None:
    seat = taken(board)
    slot = seat.slot(0)
    slot.occupy(0, now=1)
    begin(slot, seat, 1)
    seat.mark_stuck(0, slot_view(board, 0, 0).sequence)
    assert slot_view(board, 0, 0).phase is Phase.STUCK
    assert slot_view(board, 0, 0).command is not None
    begin(slot, seat, 1)
    assert slot_view(board, 0, 0).phase is Phase.RUNNING


def test_a_seat_shows_its_process_and_its_health(board: Board) -> None:
    seat = taken(board)
    levels = HealthReport(
        last_success=1.5, consecutive_failures=11, stuck_threads=1, pool_exhaustions=2
    )
    seat.register(42)
    seat.ready(5)
    seat.beat(9, levels)
    seat.parked = 8
    view = board.seat_view(0)
    assert (view.pid, view.generation, view.incarnation) == (os.getpid(), 1, 42)
    assert (view.since, view.ready, view.due, view.parked) == (2, 5, 9, 8)
    assert (view.levels, view.health) == (levels, Health.DEGRADED)
    seat.parked = 0
    assert board.seat_view(0).parked is None


def test_a_process_is_not_shown_under_the_generation_of_its_successor(board: Board) -> None:
    late = taken(board)
    board.seat(0).assign(Role.WORKER, number=0, generation=2)
    late.beat(100, HealthReport())
    assert board.seat_view(0).pid is None
    assert board.seat_view(0).due is None


def test_a_seat_that_is_assigned_anew_shows_nothing_of_the_one_before(board: Board) -> None:
    seat = taken(board)
    slot = seat.slot(0)
    slot.occupy(0, now=1)
    begin(slot, seat, 1)
    seat.mark_stuck(0, slot_view(board, 0, 0).sequence)
    seat.claims.claimed(1, 1, uuid4())
    seat.parked = seat.rss_bytes = 3
    slot.counters.add(Counter.LOST_LEASES)
    successor = taken(board, generation=2)
    view = board.seat_view(0)
    assert (view.generation, view.slots, view.claims) == (2, (), ())
    assert (view.parked, view.rss_bytes) == (None, None)
    again = successor.slot(0)
    again.occupy(0, now=2)
    begin(again, successor, 1)
    assert is_of_one_write(slot_view(board, 0, 0))
    assert slot_view(board, 0, 0).phase is Phase.RUNNING, "its predecessor was stuck"
    assert board.counters().counts["lost_leases"] == 1


def test_a_seat_shows_how_its_process_came_to_its_end_until_it_is_free(board: Board) -> None:
    seat = taken(board, generation=7)
    seat.order_to_stop(0, 7, by=50)
    assert (board.seat_view(0).role, board.seat_view(0).stop_by) == (Role.STOPPING, 50)
    assert seat.stop_by == 50
    exit_record = ExitRecord(
        generation=7, pid=12, signal=9, verdict=Verdict.STUCK, slot=1, token=4, command_id=uuid4()
    )
    seat.record_exit(0, exit_record)
    view = board.seat_view(0)
    assert (view.role, view.pid) == (Role.DEAD, os.getpid())
    assert (view.exit, view.rescued) == (exit_record, False)
    seat.rescued = 7
    assert board.seat_view(0).rescued
    seat.clear()
    taken(board, generation=1)
    view = board.seat_view(0)
    assert (view.exit, view.rescued, view.stop_by) == (None, False, None)


def test_a_seat_without_a_process_is_shown_empty(board: Board) -> None:
    board.supervise(pid=1234, state=SupervisorState.RUNNING, since=1, due=2, wanted=2)
    taken(board, index=0)
    taken(board, index=1).order_to_stop(1, 1, by=50)
    seats = board.snapshot().to_dict(now=4)["seats"]
    assert isinstance(seats, list)
    assert [(seat["seat"], seat["pid"]) for seat in seats] == [(0, os.getpid()), (1, None)]


def shown_at_4_seconds(board: Board) -> Any:
    return json.loads(json.dumps(board.snapshot().to_dict(now=4 * SECOND)))


def test_a_snapshot_shows_supervisor_and_steward_as_ps_does(board: Board) -> None:
    steward = board.seat(1)
    steward.assign(Role.STEWARD, number=0, generation=3)
    steward.enter(pid=77, generation=3, now=1 * SECOND)
    board.listening = True
    board.armed = 12
    board.supervise(pid=1234, state=SupervisorState.RUNNING, since=1, due=2)
    assert shown_at_4_seconds(board) == {
        "name": "cmdbus",
        "pid": 1234,
        "state": "running",
        "tags": [],
        "priorities": [0, 10],
        "age_share": 0,
        "seats": [],
        "steward": {
            "pid": 77,
            "generation": 3,
            "since": 3.0,
            "due": None,
            "listening": True,
            "armed": True,
        },
        "quarantine": None,
    }
    board.count_restart(Restart.CRASHED)
    assert board.snapshot().restarts["crashed"] == 1


def test_a_snapshot_shows_a_worker_as_ps_does(board: Board) -> None:
    """But not the slot of its housekeeping."""
    seat = taken(board)
    seat.beat(5 * SECOND, HealthReport(stuck_threads=4))
    slot, housekeeping = seat.slot(0), seat.slot(2)
    seat.threads = ThreadsView(5, 2, 9, StepReason.NO_GAIN).to_cell()
    slot.occupy(0, now=1)
    housekeeping.occupy(-1, now=1)
    begin(slot, seat, 3 * SECOND)
    assert shown_at_4_seconds(board)["seats"] == [
        {
            "seat": 0,
            "pid": os.getpid(),
            "generation": 1,
            "restarts": 0,
            "rss_bytes": None,
            "health": "CRITICAL",
            "reasons": ["4 stuck threads within 5 minutes, and more than 3 are too many"],
            "since": 4.0,
            "threads": {"now": 5, "least": 2, "most": 9, "reason": "no_gain"},
            "slots": [
                {
                    "slot": 0,
                    "phase": "running",
                    "command_id": str(UUID(int=3 * SECOND)),
                    "domain": "domain0",
                    "type": "E" * 100,
                    "attempt": 3 * SECOND,
                    "since": 1.0,
                    "due": -1.0,
                }
            ],
        }
    ]


# Keys.


def test_keys_show_what_is_claimed_started_and_finished(board: Board) -> None:
    claims = taken(board).claims
    ids = [UUID(int=number) for number in range(1, 5)]
    indexes = [claims.claimed(id.int, id.int + 100, id) for id in ids]
    for index in indexes[1:]:
        claims.started(index)
    for index in indexes[2:]:
        claims.finished(index)
    claims.free(indexes[3])
    states = (ClaimState.CLAIMED, ClaimState.STARTED, ClaimState.FINISHED)
    assert board.seat_view(0).claims == tuple(
        ClaimView(id=id.int, token=id.int + 100, command_id=id, state=state)
        for id, state in zip(ids, states, strict=False)
    )


def test_a_claim_that_is_marked_as_lost_is_no_mark_for_the_next_one_at_its_index(
    board: Board,
) -> None:
    claims = taken(board).claims
    first = claims.claimed(1, 1, uuid4())
    [seen] = board.seat_view(0).claims
    assert not claims.is_lost(first)
    claims.started(first)
    board.mark_lost([seen])
    assert claims.is_lost(first)
    claims.finished(first)
    assert claims.is_lost(first)
    claims.free(first)
    others = [claims.claimed(id + 2, 1, uuid4()) for id in range(CLAIM_COUNT + 1)]
    board.mark_lost([seen])
    assert not any(claims.is_lost(other) for other in others)


def test_keys_beyond_the_table_are_not_shown_and_the_seat_says_so(board: Board) -> None:
    seat = taken(board)
    indexes = [seat.claims.claimed(id + 1, 1, UUID(int=id)) for id in range(CLAIM_COUNT)]
    assert (seat.claims.free_count, board.seat_view(0).complete) == (0, True)
    beyond = seat.claims.claimed(9_999, 1, uuid4())
    seat.claims.started(beyond)
    seat.claims.finished(beyond)
    view = board.seat_view(0)
    assert (len(view.claims), view.complete) == (CLAIM_COUNT, False)
    another = seat.claims.claimed(9_998, 1, uuid4())
    seat.claims.free(beyond)
    assert not board.seat_view(0).complete, "another one is not shown"
    for index in [another, *indexes]:
        seat.claims.free(index)
    view = board.seat_view(0)
    assert (seat.claims.free_count, view.claims, view.complete) == (CLAIM_COUNT, (), True)


# Bounds.


def test_slots_and_seats_begin_on_cache_lines(board: Board) -> None:
    layout = board.layout
    starts = [layout.seat(s) for s in (0, 1)] + [layout.slot(s, t) for s in (0, 1) for t in (0, 2)]
    assert [start * CELL % 64 for start in starts] == [0] * 6


def test_seats_and_slots_that_are_not_there_are_refused(board: Board) -> None:
    for wrong in (lambda: board.seat(2), lambda: board.seat(-1), lambda: board.seat(0).slot(3)):
        with pytest.raises(AssertionError):
            wrong()
