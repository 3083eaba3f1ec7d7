"""Boards of supervisors, for `cmdbus ps`."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

from boards import SECOND
from eventually import eventually
from forks import forked

from cmdbus.board.board import Board
from cmdbus.board.health import HealthReport
from cmdbus.board.records import Role, SupervisorState
from cmdbus.board.slots import Slot
from cmdbus.board.wake_pipe import WakePipe


def supervised(
    board: Board, *, due: float = 60, state: SupervisorState = SupervisorState.RUNNING
) -> None:
    now = time.monotonic_ns()
    promised = now + int(due * SECOND)
    board.supervise(pid=os.getpid(), state=state, since=now, due=promised, wanted=2)


def taken(
    board: Board, index: int, role: Role, number: int = 0, levels: HealthReport | None = None
) -> Slot:
    now, seat = time.monotonic_ns(), board.seat(index)
    seat.assign(role, number=number, generation=index + 1)
    seat.enter(pid=os.getpid(), generation=index + 1, now=now)
    seat.beat(now + 60 * SECOND, levels or HealthReport())
    slot = seat.slot(0)
    slot.occupy(0, now)
    seat.slot(1).occupy(1, now)
    seat.slot(2).occupy(-1, now)
    return slot


def begin(board: Board, index: int, slot: Slot, command_id: UUID, type: str = "Debit") -> None:
    now = time.monotonic_ns()
    slot.begin(
        board.seat(index).command_type("payments", type),
        priority=5,
        id=9,
        token=1,
        command_id=command_id,
        attempt=2,
        started=now - 3 * SECOND,
        due=now + 33 * SECOND,
    )


@contextmanager
def another(path: Path, due: float = 60) -> Iterator[int]:
    """The pid of a supervisor with a board of its own; it is gone at the end."""

    def supervise() -> None:
        with closing(Board.create(path, 2, 2, name="cmdbus")) as board:
            supervised(board, due=due)
            ready.put()
            signal.pause()

    with closing(WakePipe(1)) as ready, forked(supervise) as pid:
        eventually(ready.take)
        yield pid
