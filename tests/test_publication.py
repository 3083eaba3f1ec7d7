"""What a node publishes of itself, and what is read of that, without a database."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from boards import begin, taken
from shown_boards import NOW, SECOND, process, show, worker

from cmdbus import NodeRecord
from cmdbus.board.board import Board
from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.health import HealthReport
from cmdbus.board.records import ExitRecord, Restart, Role, Verdict
from cmdbus.producer.published_nodes import NodeRow, counters_of, node_record, stacks_of
from cmdbus.worker.steward.exits import MAX_EXITS, Exits
from cmdbus.worker.steward.publication import (
    MAX_BYTES,
    NodeFacts,
    counters_text,
    stacks_text,
    state_text,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FACTS = NodeFacts(name="shop", host="a", pid=10, version="1", python="3.12", schema=1)


@pytest.fixture
def board() -> Iterator[Board]:
    with closing(Board.in_memory(4, 4)) as board:
        show(board)
        yield board


def text_of(
    board: Board, exits: Exits | None = None, facts: NodeFacts = FACTS, most: int = MAX_BYTES
) -> str:
    listed = (exits or Exits()).to_list(NOW / SECOND)
    view = board.snapshot(claims=False)
    return state_text(facts, view, NOW, server=170002, memory=5, exits=listed, most=most)


def record_of(text: str, **row: Any) -> NodeRecord:
    values = {"gone": False, "stopped": False, **row}
    return node_record(NodeRow(7, "shop", "a", AT, state=text, **values))


def test_operators_read_what_the_board_shows_by_the_databases_clock(board: Board) -> None:
    seat = worker(board, 1, HealthReport(consecutive_failures=11), since=NOW - 60 * SECOND)
    seat.rss_bytes = 2**20
    process(board, Role.STEWARD, 0, 0)
    slot, id_ = seat.slot(0), uuid4()
    slot.occupy(0, NOW)
    command_type = seat.command_type("payments", "Debit")
    started, due = NOW - 3 * SECOND, NOW + 30 * SECOND
    slot.begin(command_type, 5, id=9, token=1, command_id=id_, attempt=2, started=started, due=due)
    board.count_restart(Restart.STUCK)
    node = record_of(text_of(board))
    assert (node.pid, node.state, node.wanted, node.postgresql) == (10, "running", 2, 170002)
    assert node.memory == 2**20 + 5
    assert node.restarts == {"stuck": 1}
    assert node.steward is not None and not node.steward.armed
    [empty, shown] = node.seats
    assert empty.pid is None and empty.health is None and not empty.slots
    assert (shown.health, len(shown.reasons), shown.memory) == ("DEGRADED", 1, 2**20)
    assert shown.since == AT - timedelta(seconds=60)
    [running] = shown.slots
    assert (running.domain, running.type, running.attempt) == ("payments", "Debit", 2)
    assert (running.command_id, running.phase) == (id_, "running")
    assert running.since == AT - timedelta(seconds=3)
    assert running.due == AT + timedelta(seconds=30)


def test_a_worker_without_a_supervisor_is_a_node_that_runs() -> None:
    with closing(Board.in_memory(1, 2)) as board:
        worker(board, 0, since=NOW - SECOND)
        node = record_of(text_of(board, facts=dataclasses.replace(FACTS, pid=100)))
    assert (node.state, node.pid, len(node.seats)) == ("running", 100, 1)
    assert node.started_at == AT - timedelta(seconds=1)


def test_a_publication_has_a_bound_and_keeps_what_runs() -> None:
    with closing(Board.in_memory(4, 12)) as board:
        for index in range(4):
            seat = taken(board, index)
            for number in range(12):
                slot = seat.slot(number)
                slot.occupy(number, 1)
                if index == 0 and number < 3:
                    begin(slot, seat, number + 1)
        whole = text_of(board)
        texts = [whole, text_of(board, most=len(whole) - 1), text_of(board, most=100)]
    nodes = [record_of(text) for text in texts]
    assert [node.cut for node in nodes] == [False, True, True]
    slots = [sum(len(seat.slots) for seat in node.seats) for node in nodes]
    assert slots == [48, 3, 0]
    assert {len(node.seats) for node in nodes} == {4}


def exited(board: Board, exits: Exits, exit_record: ExitRecord, stack: str = "") -> None:
    exits.add(board.seat_view(1), exit_record, stack, {(3, 3, 3)}, NOW / SECOND - 5)


def test_an_exit_is_shown_with_its_cause_and_the_guilty_command_first(board: Board) -> None:
    seat = worker(board, 1)
    for number in (2, 3):
        begin(seat.slot(number), seat, number)
    exits = Exits()
    exited(board, exits, ExitRecord(generation=1, pid=101, code=0))
    assert exits.number == 0, "an ordinary exit"
    exited(board, exits, ExitRecord(generation=1, pid=101, signal=11), "stack")
    exited(board, exits, ExitRecord(generation=1, pid=102, verdict=Verdict.HUNG, signal=9))
    hung, crashed = record_of(text_of(board, exits)).exits
    assert (hung.verdict, hung.reason) == ("hung", "was killed: its main thread hung")
    assert (crashed.signal, crashed.code, crashed.verdict) == ("SIGSEGV", None, "none")
    assert (crashed.role, crashed.seat) == ("worker", 1)
    assert crashed.at == AT - timedelta(seconds=5)
    assert [(each.command_id.int, each.charged) for each in crashed.commands] == [
        (3, True),
        (2, False),
    ]
    assert stacks_of(stacks_text(exits.stacks())) == {crashed.number: "stack"}


def test_the_exits_of_a_steward_go_on_with_those_of_its_predecessor(board: Board) -> None:
    before, after = Exits(), Exits()
    for pid in range(MAX_EXITS + 3):
        exited(board, before, ExitRecord(generation=1, pid=pid, signal=9), f"stack {pid}")
    exited(board, after, ExitRecord(generation=1, pid=1000, signal=9), "own")
    after.succeed(text_of(board, before), stacks_text(before.stacks()), NOW / SECOND - 100)
    latest, *others = record_of(text_of(board, after)).exits
    assert latest.pid == 1000 and latest.number == after.number == MAX_EXITS + 4
    assert [each.pid for each in others] == [*reversed(range(4, MAX_EXITS + 3))]
    assert others[0].at == AT - timedelta(seconds=105)
    stacks = after.stacks()
    assert (stacks[latest.number], stacks[others[0].number]) == ("own", "stack 22")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"exits": 1}', '{"exits": [{"number": "x"}]}'])
def test_garbage_is_read_as_nothing(text: str) -> None:
    exits = Exits()
    exits.succeed(text, text, 0.0)
    assert exits.to_list(0.0) == []
    node = record_of(text)
    assert (node.name, node.seats, node.exits, node.steward) == ("shop", [], [], None)
    assert stacks_of(text) == {} or text.startswith("{")
    assert list(counters_of(1, AT, text)) == []


def test_values_of_other_kinds_are_read_as_none() -> None:
    state = {
        "pid": "x",
        "started": "y",
        "seats": [1, {"slots": [{"command_id": 5, "since": 1e300}], "reasons": 2}],
        "priorities": [1],
        "restarts": {"stuck": "many"},
    }
    node = record_of(json.dumps(state))
    assert node.pid is None and node.started_at is None and node.restarts == {}
    [seat] = node.seats
    assert seat.slots[0].command_id is None and seat.slots[0].since is None


def test_counters_are_those_of_each_type(board: Board) -> None:
    seat = worker(board, 1)
    counters = seat.slot(0).counters
    index = seat.command_type("payments", "Debit").index
    counters.ended(index, OutcomeLabel.COMPLETED, 3)
    counters.ended(index, OutcomeLabel.LOST)
    counters.dequeue_latency.observe(index, [0.0005, 0.002, 100.0])
    counters.handler_duration.observe(index, [0.5])
    [debit] = counters_of(1, AT, counters_text(board.counters()))
    assert (debit.domain, debit.type) == ("payments", "Debit")
    assert (debit.ended["completed"], debit.ended["lost"], debit.ended["retry"]) == (3, 1, 0)
    assert debit.waited[:2] == [1, 1] and debit.waited[-1] == 1 and sum(debit.ran) == 1
    assert debit.waited_sum == pytest.approx(100.0025, abs=0.001)
    assert counters_of(1, AT, '{"payments Debit": {}}')


def test_stacks_have_a_bound_and_the_latest_are_kept() -> None:
    stacks = {number: "x" * 100_000 for number in range(20)}
    kept = stacks_of(stacks_text(stacks))
    assert [*kept] == [15, 16, 17, 18, 19]
