"""Processes that write to a board under test, and are killed while they do."""

import os
from collections.abc import Callable
from uuid import UUID

from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.board.seats import Seat
from cmdbus.board.slots import Slot
from cmdbus.board.views import SlotView

SECOND = 1_000_000_000


def taken(board: Board, index: int = 0, generation: int = 1) -> Seat:
    seat = board.seat(index)
    seat.assign(Role.WORKER, number=index, generation=generation)
    seat.enter(pid=os.getpid(), generation=generation, now=2)
    return seat


def begin(slot: Slot, seat: Seat, number: int) -> None:
    """A command all of whose numbers are the same."""
    slot.begin(
        seat.command_type(f"domain{number % 2}", "Odd" if number % 2 else "E" * 100),
        priority=number % 11,
        id=number,
        token=number,
        command_id=UUID(int=number),
        attempt=number,
        started=number,
        due=number,
    )


def slot_view(board: Board, seat: int, slot: int) -> SlotView:
    """An unknown state if it is not used."""
    views = {view.index: view for view in board.seat_view(seat).slots}
    return views.get(slot) or SlotView(index=slot, number=slot)


def is_of_one_write(view: SlotView) -> bool:
    command = view.command
    assert command is not None
    number = command.id
    return (
        (command.token, command.attempt, command.command_id.int) == (number,) * 3
        and (view.since, view.due, command.priority) == (number, number, number % 11)
        and command.domain == f"domain{number % 2}"
        and command.type == ("Odd" if number % 2 else "E" * 100)
    )


def beyond(value: Callable[[], int], limit: int) -> bool:
    return value() > limit
