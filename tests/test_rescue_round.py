"""The steward's round for the dead processes of its board."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from dead_workers import REGISTRY
from handlers import claim, connect
from queries import scalar

from cmdbus import CommandBus
from cmdbus.board.board import Board, Node
from cmdbus.board.layout import PROCESS_AT
from cmdbus.board.records import ExitRecord, Role
from cmdbus.board.seats import Seat
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.rescue import RescueRound
from cmdbus.worker.steward.steward import ROUND_SECONDS

EXIT = ExitRecord(generation=1, pid=4711, signal=signal.SIGKILL)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def node(opened: ExitStack) -> Node:
    """A steward's."""
    board, worker_pipe, steward_pipe = Board.in_memory(6, 2), WakePipe(8), WakePipe(1)
    for each in (board, worker_pipe, steward_pipe):
        opened.callback(each.close)
    return Node(board=board, seat=board.seat(0), worker_pipe=worker_pipe, steward_pipe=steward_pipe)


@pytest.fixture
def rescues(node: Node, tmp_path: Path) -> RescueRound:
    return RescueRound(node, ClaimStatements("cmdbus", 30), REGISTRY, tmp_path)


def seated(node: Node, index: int) -> tuple[Seat, ClaimStatements]:
    """A worker at this index."""
    seat, statements = node.board.seat(index), ClaimStatements("cmdbus", 30)
    seat.assign(Role.WORKER, number=index, generation=1)
    seat.enter(pid=EXIT.pid, generation=1, now=1)
    seat.register(statements.incarnation)
    return seat, statements


def test_sessions_that_do_not_end_hold_up_neither_other_rescues_nor_the_steward(
    dsn: str, bus: CommandBus, node: Node, opened: ExitStack, rescues: RescueRound
) -> None:
    """Four of them, as their server waits for its disk."""
    bus.send("payments", "Debit")
    for index in range(1, 6):
        seat, statements = seated(node, index)
        name = statements.application_name
        session = opened.enter_context(connect(dsn, application_name=name))
        if index < 5:
            os.kill(session.info.backend_pid, signal.SIGSTOP)
            opened.callback(os.kill, session.info.backend_pid, signal.SIGCONT)
        else:
            statements.register(session, "dead")
            assert claim(statements, session)
        seat.record_exit(index, EXIT)
    connection = opened.enter_context(connect(dsn))
    took: list[float] = []
    while scalar(connection, "SELECT claimer FROM cmdbus.ready") is not None:
        assert len(took) < 5, "each round tries one of them that it has not tried"
        began = time.monotonic()
        assert rescues.run(connection) < 1, "some are left"
        took.append(time.monotonic() - began)
    assert min(took) < ROUND_SECONDS / 2


def test_a_process_that_was_killed_while_it_showed_a_heartbeat_is_rescued(
    bus: CommandBus, connection: psycopg.Connection, node: Node, rescues: RescueRound
) -> None:
    """Its record is torn."""
    bus.send("payments", "Debit")
    seat, statements = seated(node, 1)
    statements.register(connection, "dead")
    assert claim(statements, connection)
    node.board.cells[seat.at + PROCESS_AT + 1] += 1
    assert node.board.seat_view(1).pid is None
    seat.record_exit(1, EXIT)
    rescues.run(connection)
    assert scalar(connection, "SELECT claimer FROM cmdbus.ready") is None
