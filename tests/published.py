"""A node that has published, without a process."""

from contextlib import closing

import psycopg
from boards import begin, taken
from shown_boards import SECOND

from cmdbus.board.board import Board
from cmdbus.board.records import ExitRecord, SupervisorState
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.exits import Exits
from cmdbus.worker.steward.publication import NodeFacts, state_text

NODE = 2**62 + 1
_FACTS = NodeFacts(name="shop", host="a", pid=10, version="1", python="3.12", schema=1)


def publish(connection: psycopg.Connection, host: str = "a") -> None:
    """Of two threads one runs a command; a process has crashed that ran the same."""
    with closing(Board.in_memory(2, 4)) as board:
        board.supervise(pid=10, state=SupervisorState.RUNNING, since=1, due=9, wanted=1)
        seat = taken(board, 0)
        for number in (0, 1):
            (slot := seat.slot(number)).occupy(number, 2)
            if number == 0:
                begin(slot, seat, 1)
        exits, crash = Exits(), ExitRecord(generation=1, pid=9, signal=11)
        exits.add(board.seat_view(0), crash, "", (), 1.0)
        view, listed = board.snapshot(claims=False), exits.to_list(2.0)
        state = state_text(_FACTS, view, SECOND, server=170002, memory=5 * 2**20, exits=listed)
    values = {"name": "shop", "host": host, "stopped": False, "state": state, "counters": "{}"}
    values["stacks"] = '{"1": "a stack"}'
    ClaimStatements("cmdbus", 30).value(connection, "publish_node", node=NODE, **values)
