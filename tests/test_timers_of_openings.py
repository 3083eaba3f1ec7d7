"""The timers of what opens: rates, shared ones too, and breakers for whose types suspects wait. A
time that has passed since the latest reading is one, too: the worker that knew it may be gone, and
nothing else would wake another."""

import psycopg
import pytest
from lane_claimer import Limit, declare

from cmdbus import CommandBus
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.timers import Timers

pytestmark = pytest.mark.new_database

TYPE = "payments Debit"


@pytest.fixture
def timers() -> Timers:
    return Timers(ClaimStatements("cmdbus", 30), ["payments"], [TYPE])


def look(timers: Timers, connection: psycopg.Connection) -> float:
    return timers.promote_and_read(connection, leases=False)


def assert_is_a_timer_once(timers: Timers, connection: psycopg.Connection) -> None:
    assert 0 < look(timers, connection) < 0.1
    assert not timers.wakes_no_worker_within(0.1)
    assert look(timers, connection) == float("inf")


def test_a_rate_that_has_opened(connection: psycopg.Connection, timers: Timers) -> None:
    declare(connection, Limit(TYPE, starts_per_second=10, burst=1))
    assert look(timers, connection) == float("inf")
    connection.execute(
        """INSERT INTO cmdbus.lane (domain, type, key, opens_at)
        VALUES ('payments', 'Debit', '', clock_timestamp())"""
    )
    assert_is_a_timer_once(timers, connection)


def test_a_shared_rate_that_has_opened(connection: psycopg.Connection, timers: Timers) -> None:
    declare(connection, Limit("stripe", starts_per_second=10, burst=1, covers=(TYPE,)))
    assert look(timers, connection) == float("inf")
    connection.execute(
        """INSERT INTO cmdbus.lane (domain, type, key, waits_for)
        VALUES ('payments', 'Debit', '', 'stripe');
        INSERT INTO cmdbus.shared_state (name, node, next_start)
        VALUES ('stripe', 0, clock_timestamp())"""
    )
    assert_is_a_timer_once(timers, connection)


def test_a_breaker_that_lets_a_suspect_through(
    connection: psycopg.Connection, bus: CommandBus, timers: Timers
) -> None:
    bus.send("payments", "Debit")
    connection.execute("UPDATE cmdbus.ready SET losses = 2")
    connection.execute(
        """INSERT INTO cmdbus.breaker (
            name, failures, window_seconds, cooldown_seconds, probes, covers, state, retry_at)
        VALUES ('stripe', 1, 1, 1, 1, ARRAY[%s], 'OPEN', clock_timestamp() + interval '1 h')""",
        [TYPE],
    )
    assert 3500 < look(timers, connection) <= 3600
    assert not timers.seen.suspects
    connection.execute("UPDATE cmdbus.breaker SET retry_at = clock_timestamp()")
    assert_is_a_timer_once(timers, connection)
    assert timers.seen.suspects
