"""The board while it is written: no reader sees a torn record, whatever is killed when."""

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any
from uuid import UUID

import pytest
from boards import begin, beyond, is_of_one_write, slot_view, taken
from eventually import eventually
from forks import forked

from cmdbus.board.board import Board
from cmdbus.board.layout import CLAIM_COUNT
from cmdbus.board.records import Phase
from cmdbus.board.slots import Slot


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.in_memory(seats=2, slots=3, command_types=4)
    yield board
    board.close()


def test_a_due_time_is_extended_before_or_after_another_write_of_the_slot(board: Board) -> None:
    """Not between its bytes and their checksum: no process could read the slot."""
    taken(board)
    slot = board.seat(0).slot(0)
    extending = threading.Thread(target=slot.extend, args=(50,))

    def trace(frame: FrameType, event: str, what: object) -> Any:
        body = frame.f_locals.get("body") if frame.f_code is Slot._write.__code__ else None
        if body is not None and slot._bytes[slot._at] == body and not extending.ident:
            extending.start()
            extending.join(0.1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        slot.session(4711, 123)
    finally:
        sys.settrace(before)
    extending.join(10)
    shown = slot_view(board, 0, 0)
    assert (shown.backend_start, shown.due) == (123, 50)


@pytest.mark.process
def test_no_key_is_read_half_while_places_are_taken_and_freed(board: Board) -> None:
    taken(board)

    def work() -> None:
        seat = board.seat(0)
        number = 0
        while True:
            places = []
            for _ in range(CLAIM_COUNT):
                number += 1
                id = UUID(int=number << 64 | number)
                places.append(seat.claims.claimed(number, number, id))
            for place in places:
                seat.claims.started(place)
                seat.claims.finished(place)
                seat.claims.free(place)

    with forked(work):
        eventually(lambda: board.seat_view(0).claims)
        seen = 0
        while seen < 50_000:
            for key in board.seat_view(0).claims:
                assert key.token == key.id
                assert key.command_id == UUID(int=key.id << 64 | key.id)
                seen += 1


def hammer(board: Board, number: int) -> None:
    seat = board.seat(0)
    slot = seat.slot(number)
    slot.occupy(number, 1)
    for command in range(1, 2**40):
        begin(slot, seat, command)


@pytest.mark.process
def test_no_slot_is_read_torn_while_its_thread_writes(board: Board) -> None:
    seat = taken(board)
    for number in (0, 1):
        begin(seat.slot(number), seat, 1)

    with forked(lambda: hammer(board, 0)), forked(lambda: hammer(board, 1)):
        eventually(lambda: all(slot_view(board, 0, n).sequence > 1_000 for n in (0, 1)))
        seen: set[int] = set()
        reads = 0
        while len(seen) < 300:  # a reader that looks again finds moments between two writes
            view = slot_view(board, 0, reads % 2)
            reads += 1
            if view.phase is not None:
                seen.add(view.sequence)
                assert is_of_one_write(view)


@pytest.mark.process
def test_a_writer_killed_while_it_writes_leaves_what_is_true_or_unknown(board: Board) -> None:
    dice, last = random.Random(7), 0
    for generation in range(1, 41):
        seat = taken(board, generation=generation)
        with forked(lambda: hammer(board, 0)) as pid:
            enough = last + 2 + dice.randrange(1_000)
            eventually(partial(beyond, lambda: slot_view(board, 0, 0).sequence, enough))
            os.kill(pid, signal.SIGKILL)
        view = slot_view(board, 0, 0)
        # Idle, if the one before left an unknown sequence, and this one came no further.
        idle = view.phase is Phase.IDLE and view.command is None
        assert view.phase is None or idle or is_of_one_write(view)
        last = max(last, view.sequence)
    slot = seat.slot(0)
    slot.occupy(0, 1)
    begin(slot, seat, 5)
    assert is_of_one_write(slot_view(board, 0, 0))
