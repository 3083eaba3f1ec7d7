"""The part of a steward that arms its node, step by step; time is passed in."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from handlers import connect
from queries import scalar

from cmdbus.board.board import Board
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.arming import Arming

NOW = 1_000.0
READS_AT = NOW + 60


@dataclass
class Steward:
    """As much of one as arms. Its domain is payments."""

    connection: psycopg.Connection
    listener: psycopg.Connection
    board: Board
    worker_pipe: WakePipe
    statements: ClaimStatements
    arming: Arming
    #: One for each that was asked for.
    rereads: list[int]
    defaults: dict[str, Any] = field(default_factory=lambda: {"parked": True, "session": 1})
    #: Of the next step: that at which the one before wanted it, unless a step names its own.
    now: float = NOW

    def step(self, now: float | None = None, **state: Any) -> float:
        state = {"reads_at": READS_AT, **self.defaults, **state}
        self.now = self.now if now is None else now
        pause = self.arming.update(self.connection, now=self.now, **state)
        if pause < float("inf"):
            self.now += pause
        return pause

    def bytes(self) -> int:
        """Since this was last asked."""
        count = self.worker_pipe.pending
        self.worker_pipe.drain()
        return count

    def arm(self) -> int:
        self.step()
        assert self.board.armed
        self.bytes()
        return self.board.armed

    def scalar(self, query: str) -> Any:
        return scalar(self.connection, query)

    @property
    def flag(self) -> bool:
        return bool(self.scalar("SELECT last_value FROM cmdbus.armed"))

    @property
    def claimable(self) -> int:
        return int(self.scalar("SELECT count(*) FROM cmdbus.ready"))

    def heard(self) -> list[str]:
        """The channels; a NOTIFY of its own marks the end."""
        self.connection.execute("NOTIFY cmdbus_ready, 'end'")
        found: list[str] = []
        for notify in self.listener.notifies(timeout=10):
            if notify.payload == "end":
                return found
            found.append(notify.channel)
        raise AssertionError("the mark never came")


@contextmanager
def stewarding(dsn: str) -> Iterator[Steward]:
    board, worker_pipe = Board.in_memory(2, 2), WakePipe(8)
    with connect(dsn) as connection, connect(dsn) as listener:
        listener.execute("LISTEN cmdbus_ready; LISTEN cmdbus_due")
        statements = ClaimStatements("cmdbus", 30)
        statements.register(connection, "steward")
        rereads: list[int] = []
        arming = Arming(statements, board, worker_pipe, ["payments"], lambda: rereads.append(1))
        yield Steward(connection, listener, board, worker_pipe, statements, arming, rereads)
    worker_pipe.close()
    board.close()


@contextmanager
def failing(steward: Steward, function: str) -> Iterator[None]:
    """The step within fails, as there is no such function."""
    rename = "ALTER FUNCTION cmdbus.{} RENAME TO {}"
    steward.connection.execute(rename.format(function, "hidden").encode())
    with pytest.raises(psycopg.Error):
        yield
    steward.connection.execute(rename.format("hidden", function.partition("(")[0]).encode())
