"""Nodes that come to a tick at the same moment, too late, or never."""

import threading

import psycopg
import pytest
from eventually import eventually
from schedule_rounds import (
    HOUR,
    due,
    hours_ago,
    only,
    round_of,
    ticks,
    wait_for_an_hour_that_lasts,
)

from cmdbus import CommandBus
from cmdbus.failpoints import AFTER_TICK, BEFORE_TICK, set_failpoint_action


@pytest.fixture(autouse=True)
def _lasting_hour() -> None:
    wait_for_an_hour_that_lasts()


def test_many_nodes_send_each_tick_once(dsn: str, bus: CommandBus) -> None:
    """Hundreds of ticks, while all nodes try each at the same moment."""
    names = [f"s{n}" for n in range(4)]
    for name in names:
        bus.schedules.add(name, "payments", "Debit", every="1h", missed="all")
    together = threading.Barrier(4)
    errors: list[BaseException] = []

    def node() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                for step in range(28, 0, -1):
                    together.wait(20)
                    due(connection, names[step % 4], hours_ago(step % 7))
                    # A round that has found a row locked would leave it alone for a second.
                    eventually(lambda: round_of().run(connection) > 1, 20)
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=node) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not errors, errors
    found = ticks(dsn)
    assert len(found) == len(set(found)) == len(bus.query(limit=1000))
    assert {tick for _, tick in found} == {hours_ago(n) for n in range(7)}


@pytest.mark.parametrize("point", [BEFORE_TICK, AFTER_TICK])
def test_a_node_that_dies_at_a_tick_neither_loses_nor_doubles_it(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, point: str
) -> None:
    bus.schedules.add("hourly", "payments", "Debit", every="1h")
    round_of().run(connection)
    due(connection, "hourly", hours_ago(0))

    def die(reached: str) -> None:
        if reached == point:
            raise SystemExit

    set_failpoint_action(die)
    try:
        with pytest.raises(SystemExit):
            round_of().run(connection)
    finally:
        set_failpoint_action(None)
    assert len(bus.query()) == (point == AFTER_TICK)
    round_of().run(connection)
    assert ticks(dsn) == [("hourly", hours_ago(0))]


def test_a_node_that_comes_too_late_changes_nothing(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """It was frozen before it could send what another node has sent meanwhile."""
    bus.schedules.add("hourly", "payments", "Debit", every="1h", missed="one")
    round_of().run(connection)
    due(connection, "hourly", hours_ago(2))

    def let_the_other_go_first(reached: str) -> None:
        set_failpoint_action(None)
        with psycopg.connect(dsn, autocommit=True) as other:
            round_of().run(other)

    set_failpoint_action(let_the_other_go_first)
    try:
        round_of().run(connection)
    finally:
        set_failpoint_action(None)
    record = only(bus)
    assert (record.last_tick, record.left_out) == (hours_ago(0), 2)
    assert (record.next_tick, len(bus.query())) == (hours_ago(0) + HOUR, 1)


def test_a_tick_waits_for_no_session_that_has_locked_its_schedule(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    for name in ("a", "b"):
        bus.schedules.add(name, "payments", "Debit", every="1h")
    round_of().run(connection)
    for name in ("a", "b"):
        due(connection, name, hours_ago(0))
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM cmdbus.schedule WHERE name = 'a' FOR UPDATE")
        assert round_of().run(connection) <= 1
        assert ticks(dsn) == [("b", hours_ago(0))]
    round_of().run(connection)
    assert len(ticks(dsn)) == 2
