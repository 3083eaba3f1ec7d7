"""What a node does after a breaker has changed: it ends deferrals of one that is closed."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
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


@pytest.fixture
def watch(
    connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BreakerWatch]:
    """Of a node that sees the breaker CLOSED, and hears of no change. Each run ends deferrals."""
    monkeypatch.setattr(breaker_watch, "_MIN_END_SECONDS", 0.0)
    declare(connection, "shop", STRIPE)
    with closing(Board.in_memory(1, 1)) as board:
        watch = BreakerWatch(board, ClaimStatements("cmdbus", 30), ["stripe"])
        watch.run(connection)
        yield watch


def deferred(bus: CommandBus, connection: psycopg.Connection) -> UUID:
    """A command that was kept from a call for ten minutes."""
    command_id = bus.send("payments", "Noop", delay=600)
    connection.execute(
        "UPDATE cmdbus.scheduled SET error_code = 'BREAKER_OPEN', error_message = %s",
        (str(BreakerOpenError("stripe", 600.0)),),
    )
    return command_id


def is_due(bus: CommandBus, command_id: UUID) -> bool:
    due_at = found(bus, command_id).due_at
    return due_at is not None and due_at < datetime.now(UTC) + timedelta(minutes=5)


def test_what_is_deferred_while_it_closes_runs_soon(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Its execution met the open breaker, and is settled after that has closed."""
    with calling(dsn, OtherSide(), cooldown=600):
        await_state(dsn, "CLOSED")
        bus.breakers.open("stripe")
        bus.breakers.close("stripe")
        bus.wait("payments", deferred(bus, connection), 20)


def test_what_is_settled_long_after_that_is_due_soon(
    bus: CommandBus, connection: psycopg.Connection, watch: BreakerWatch
) -> None:
    """As by a process that has stalled."""
    for _ in range(3):
        assert watch.run(connection) < 1, "nothing is deferred yet"
    late = deferred(bus, connection)
    watch.run(connection)
    assert is_due(bus, late)


def test_what_is_deferred_by_one_that_has_opened_since_stays_so(
    bus: CommandBus, connection: psycopg.Connection, watch: BreakerWatch
) -> None:
    """A node that does not know would make all of them due once a second."""
    bus.breakers.open("stripe")
    kept = deferred(bus, connection)
    watch.run(connection)
    assert not is_due(bus, kept)


def test_a_node_at_rest_ends_deferrals_for_half_a_minute(
    connection: psycopg.Connection, watch: BreakerWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a change: less and less often."""
    pauses, now = list[float](), 1_000.0
    monkeypatch.setattr(breaker_watch, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(breaker_watch, "_MIN_END_SECONDS", 1.0)
    watch._board.breaker_changes += 1
    watch._next_at = now
    while (pause := watch.run(connection)) < float("inf"):
        pauses.append(pause)
        now += pause
    assert pauses == [1, 2, 4, 8, 16]
