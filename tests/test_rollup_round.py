"""What a steward writes of its node's commands once a minute."""

import logging
import os
import time
from contextlib import ExitStack

import psycopg
import pytest
from boards import SECOND
from handlers import connect, handling, running
from queries import rows

from cmdbus import CommandBus, SendRequest
from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.records import SupervisorState
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.standalone import node_of_one, telemetry_of_one
from cmdbus.worker.steward import rollup_round
from cmdbus.worker.steward.rollup_round import RollupRound

#: In all minutes: one may end between two rounds.
COMPLETED = (
    "SELECT sum(figures[1]) FROM cmdbus.rollup WHERE resolution = 60 AND domain = 'payments'"
)


class Counting:
    """A node that runs for some seconds, whose executions are counted by hand."""

    def __init__(self, opened: ExitStack, seconds: int = 100) -> None:
        telemetry = telemetry_of_one()
        self.node = node_of_one(telemetry, opened)
        self.index = telemetry.seat.command_type("payments", "Debit").index
        self.slot = telemetry.seat.slot(0)
        now = time.monotonic_ns()
        self.node.board.supervise(
            pid=os.getpid(), state=SupervisorState.RUNNING, since=now - seconds * SECOND, due=now
        )
        self.statements = ClaimStatements("cmdbus", 30)
        self.statements.node = os.getpid()

    def complete(self, count: int) -> None:
        self.slot.counters.ended(self.index, OutcomeLabel.COMPLETED, count)

    def round(self) -> RollupRound:
        made = RollupRound(self.node, self.statements)
        made.due = 0.0
        return made


def test_the_successor_of_a_steward_goes_on(connection: psycopg.Connection, dsn: str) -> None:
    with ExitStack() as opened:
        counting = Counting(opened)
        for count in (3, 0, 2):
            counting.complete(count)
            assert counting.round().run(connection) > 0
    assert rows(dsn, COMPLETED) == [(5,)]


def test_a_node_that_has_just_started_asks_nothing(connection: psycopg.Connection) -> None:
    with ExitStack() as opened:
        counting = Counting(opened, seconds=1)
        round_ = RollupRound(counting.node, counting.statements)
        connection.close()
        assert 9 < round_.run(connection) < 75


def test_a_steward_that_was_replaced_writes_at_once(
    connection: psycopg.Connection, dsn: str
) -> None:
    """It may come a moment after the minute's end, for which its predecessor did not write."""
    with ExitStack() as opened:
        counting = Counting(opened)
        counting.complete(2)
        assert 0 < RollupRound(counting.node, counting.statements).run(connection) <= 60
    assert rows(dsn, COMPLETED) == [(2,)]


def test_a_rollup_that_fails_keeps_no_other_round_from_running(
    connection: psycopg.Connection, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as opened, connect(dsn) as other:
        counting = Counting(opened)
        counting.complete(1)
        connection.execute("SET lock_timeout = '20ms'")
        round_ = counting.round()
        with other.transaction():
            other.execute("LOCK TABLE cmdbus.depth_sample")
            for _ in range(2):
                round_.due = 0.0
                assert round_.run(connection) > 0
        assert len(caplog.records) == 1
        round_.due = 0.0
        round_.run(connection)
    assert rows(dsn, COMPLETED) == [(1,)]


def test_a_count_that_takes_too_long_is_given_up(
    connection: psycopg.Connection,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(rollup_round, "SAMPLE_SECONDS", 0.02)
    caplog.set_level(logging.WARNING)
    with ExitStack() as opened, connect(dsn) as other, other.transaction():
        counting = Counting(opened)
        counting.complete(1)
        other.execute("LOCK TABLE cmdbus.scheduled")
        assert counting.round().run(connection) > 0
    assert rows(dsn, COMPLETED) == [(1,)]
    assert rows(dsn, "SELECT waiting FROM cmdbus.rollup WHERE domain = ''") == [(None,)] * 3
    assert caplog.records == []


def test_a_worker_that_stops_leaves_what_it_has_done(dsn: str, bus: CommandBus) -> None:
    with running(dsn, handling()):
        for id_ in bus.send_many([SendRequest("payments", "Debit")] * 3):
            bus.wait("payments", id_)
    [point] = bus.recent_minutes()["payments"]
    assert point.ended.completed == 3
    assert point.ended.ran.p99 is not None
