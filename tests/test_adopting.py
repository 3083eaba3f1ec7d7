"""What a claim has taken whose reply was lost is run by the same process."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from eventually import eventually
from handlers import handling, running
from proxy import Proxy

from cmdbus import CommandBus
from cmdbus.board.board import Board, Node
from cmdbus.board.records import Role
from cmdbus.board.wake_pipe import WakePipe


@pytest.fixture
def node() -> Iterator[Node]:
    """It listens and is armed, and nothing is ever heard."""
    with ExitStack() as opened:
        board, worker_pipe, steward_pipe = Board.in_memory(1, 20), WakePipe(8), WakePipe(1)
        for what in (board, worker_pipe, steward_pipe):
            opened.callback(what.close)
        now = time.monotonic_ns()
        board.seat(0).assign(Role.WORKER, number=0, generation=1)
        seat = board.seat(0)
        seat.enter(pid=os.getpid(), generation=1, now=now)
        board.listening = True
        board.armed = 1
        yield Node(
            board=board,
            seat=seat,
            generation=1,
            parent=os.getppid(),
            worker_pipe=worker_pipe,
            steward_pipe=steward_pipe,
        )


def test_the_only_thread_does_not_rest_while_what_it_has_adopted_waits(
    dsn: str, bus: CommandBus, node: Node
) -> None:
    claimed = "SELECT count(*) FROM cmdbus.ready WHERE claimer IS NOT NULL"
    with (
        Proxy(dsn) as proxy,
        psycopg.connect(dsn, autocommit=True) as watcher,
        running(proxy.dsn, handling(), concurrency=1, node=node),
    ):
        eventually(lambda: node.board.seat_view(0).parked)
        proxy.mute()
        sent = bus.send("payments", "Debit")
        node.worker_pipe.put()
        eventually(lambda: watcher.execute(claimed).fetchone() == (1,))
        proxy.cut()
        assert bus.wait("payments", sent, 15).status == "COMPLETED"
