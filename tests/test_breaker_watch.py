"""What a node does after a breaker has changed: it ends deferrals of one that is closed."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from handlers import found
from other_side import OtherSide, await_state, calling
from test_breaker_states import STRIPE, declare

from cmdbus import BreakerOpenError, CommandBus
from cmdbus.board.board import Board
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward import breaker_watch
from cmdbus.worker.steward.breaker_watch import BreakerWatch


def deferred(bus: CommandBus, connection: psycopg.Connection) -> UUID:
    """A command that was kept from a call for ten minutes."""
    command_id = bus.send("payments", "Noop", delay=600)
    connection.execute(
        "UPDATE cmdbus.scheduled SET error_code = 'BREAKER_OPEN', error_message = %s",
        (str(BreakerOpenError("stripe", 600.0)),),
    )
    return command_id


def test_what_is_deferred_while_it_closes_runs_soon(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Its execution met the open breaker, and is settled after that has closed."""
    with calling(dsn, OtherSide(), cooldown=600):
        await_state(dsn, "CLOSED")
        bus.breakers.open("stripe")
        bus.breakers.close("stripe")
        bus.wait("payments", deferred(bus, connection), 20)


def test_what_is_deferred_by_one_that_has_opened_since_it_was_seen_closed_stays_so(
    bus: CommandBus, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the node has heard of no change: it would make all of them due once a second."""
    monkeypatch.setattr(breaker_watch, "_PAUSE_SECONDS", 0.0)
    declare(connection, "shop", STRIPE)
    with closing(Board.in_memory(1, 1)) as board:
        watch = BreakerWatch(board, ClaimStatements("cmdbus", 30), ["stripe"])
        watch.run(connection)
        bus.breakers.open("stripe")
        kept = deferred(bus, connection)
        assert watch.run(connection) == float("inf")
        due_at = found(bus, kept).due_at
        assert due_at is not None and due_at > datetime.now(UTC) + timedelta(minutes=5)
