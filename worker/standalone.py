"""The node of a worker without a supervisor: a board of its own, and pipes."""

import os
from contextlib import ExitStack

from cmdbus.board.board import Board, Node
from cmdbus.board.records import Role
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.clock import time
from cmdbus.worker.pipeline.telemetry import SLOTS, Telemetry

#: Capacity of its wake pipe: a byte for the current claim, and for the next.
_WAKE_BYTES = 2


def telemetry_of_one() -> Telemetry:
    """The telemetry of a worker without a supervisor, on a board of its own."""
    board = Board.in_memory(1, SLOTS)
    seat, now = board.seat(0), time.monotonic_ns()
    seat.assign(Role.WORKER, number=0, generation=1)
    seat.enter(pid=os.getpid(), generation=1, now=now)
    return Telemetry(board, seat)


def node_of_one(telemetry: Telemetry, opened: ExitStack) -> Node:
    worker_pipe, steward_pipe = WakePipe(_WAKE_BYTES), WakePipe(1)
    opened.callback(worker_pipe.close)
    opened.callback(steward_pipe.close)
    return Node(
        board=telemetry.board,
        seat=telemetry.seat,
        worker_pipe=worker_pipe,
        steward_pipe=steward_pipe,
    )
