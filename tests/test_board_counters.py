"""The board's counters: exact however often the writers are killed."""

import mmap
import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
from boards import beyond, slot_view, taken
from eventually import eventually
from forks import forked

from cmdbus.board.board import Board
from cmdbus.board.counters import OTHER, Counter, OutcomeLabel
from cmdbus.board.layout import BUCKETS


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.in_memory(seats=2, slots=3, command_types=4)
    yield board
    board.close()


def test_counters_are_summed_over_slots_and_seats_by_name(board: Board) -> None:
    for index, names in ((0, ("A", "B")), (1, ("B", "A"))):
        seat = taken(board, index)
        for slot in range(3):
            counters = seat.slot(slot).counters
            for name in names:
                command_type = seat.command_type("orders", name)
                count = 1 if name == "A" else 10
                counters.ended(command_type.index, OutcomeLabel.COMPLETED, count)
                counters.handler_duration.observe(command_type.index, [0.2])
            counters.add(Counter.BATCHES_PROCESSED)
            counters.add(Counter.WAKEUPS_TIMER, 2)
    view = board.counters()
    assert view.commands == {("orders", "A", "completed"): 6, ("orders", "B", "completed"): 60}
    assert view.counts["batches_processed"] == 6
    assert (view.wakeups["timer"], view.wakeups["poll"]) == (12, 0)
    assert view.handler_duration["orders", "A"].count == 6
    assert view.handler_duration["orders", "A"].sum == pytest.approx(1.2)
    assert view.dequeue_latency["orders", "A"].count == 0


def test_an_observation_is_counted_in_its_bucket_and_all_above(board: Board) -> None:
    seat = taken(board)
    command_type, histogram = seat.command_type("a", "B"), seat.slot(0).counters.dequeue_latency
    histogram.observe(command_type.index, [0.0, 0.001, 0.0011])
    histogram.observe(command_type.index, [60, 61])
    view = board.counters().dequeue_latency["a", "B"]
    assert view.counts == (2, *[3] * (len(BUCKETS) - 2), 4, 5)


def test_kinds_that_find_no_place_share_a_row_and_are_shown_by_name(board: Board) -> None:
    seat = taken(board)
    slot = seat.slot(0)
    slot.occupy(0, now=1)
    for number in range(6):
        command_type = seat.command_type("orders", f"Type{number}")
        slot.counters.ended(command_type.index, OutcomeLabel.FAILED)
    assert board.counters().commands[(*OTHER, "failed")] == 2
    slot.begin(
        command_type, priority=5, id=1, token=1, command_id=uuid4(), attempt=1, started=1, due=2
    )
    command = slot_view(board, 0, 0).command
    assert command is not None and command.type == "Type5"


def test_a_new_generation_finds_the_rows_of_its_kinds_in_any_order(board: Board) -> None:
    first = taken(board)
    rows = {name: first.command_type("orders", name).index for name in ("A", "B", "C")}
    second = taken(board, generation=2)
    assert {name: second.command_type("orders", name).index for name in ("C", "D", "A", "B")} == {
        **rows,
        "D": 3,
    }


@pytest.mark.process
def test_sums_are_exact_however_often_the_writers_are_killed(board: Board) -> None:
    """Counters never go back and never lose anything. The
    writer notes what it has done after it did it, so it may be killed one ahead of its note."""
    notes = mmap.mmap(-1, mmap.PAGESIZE)
    done = memoryview(notes).cast("q")
    dice = random.Random(5)

    def work() -> None:
        seat = board.seat(0)
        counters, kind = seat.slot(0).counters, seat.command_type("orders", "A").index
        while True:
            counters.add(Counter.EMPTY_RECEIVES)
            done[0] += 1
            counters.ended(kind, OutcomeLabel.COMPLETED)
            done[1] += 1
            counters.handler_duration.observe(kind, [0.004])
            done[2] += 1

    for generation in range(1, 26):
        before = done.tolist()[:3]
        taken(board, generation=generation)
        with forked(work) as pid:
            enough = before[2] + dice.randrange(2_000)
            eventually(partial(beyond, lambda: done[2], enough))
            os.kill(pid, signal.SIGKILL)
        counters = board.counters()
        counted = [
            counters.counts["empty_receives"],
            counters.commands["orders", "A", "completed"],
            counters.handler_duration["orders", "A"].count,
        ]
        ahead = [count - note for count, note in zip(counted, done, strict=False)]
        assert sum(ahead) in (0, 1) and min(ahead) >= 0
        for index, count in enumerate(counted):
            done[index] = count
    assert counted[2] > 25_000 / 2
    done.release()
    notes.close()
