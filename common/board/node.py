"""What a process of a fleet has from its supervisor: its seat on the board, and the wires."""

from dataclasses import dataclass
from socket import socket

from cmdbus.board.board import Board
from cmdbus.board.seats import Seat
from cmdbus.board.wake_pipe import WakePipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    board: Board
    #: Its own; made after the fork.
    seat: Seat
    generation: int
    #: The supervisor; a child that has another parent leaves.
    parent: int
    #: A byte sends one worker to look for commands.
    worker_pipe: WakePipe
    #: A byte makes the steward look at the board.
    steward_pipe: WakePipe
    #: Where the steward answers probes.
    http: socket | None = None
    #: Runs nothing but commands that may kill their process.
    quarantine: bool = False
