"""Nodes that move at once, are killed, or are cut off: each message is moved once."""

import os
import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest
from bridges import bridge_round, messages, move_all, send_messages
from eventually import eventually
from forks import forked
from handlers import beside, connect, handling, running
from pgmq_queues import queues_dsn as queues_dsn
from queries import await_lock_waits, end_sessions, rows, scalar

from cmdbus import CommandBus
from cmdbus.failpoints import AFTER_MOVE, BEFORE_MOVE, set_failpoint_action
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.timers import Timers

#: Inserts wait for a lock of the test's, in the middle of a move.
HOLD = """
    CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(42); RETURN NEW; END';
    CREATE TRIGGER hold BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION public.hold()"""

#: Inserts are canceled as by statement_timeout, unless that was raised: a busy server may cancel
#: any statement that has but little time.
NEEDS_TIME = """
    CREATE FUNCTION public.take_long() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('statement_timeout') = '0' THEN
            RAISE query_canceled USING MESSAGE = 'canceling statement due to statement timeout';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER take_long BEFORE INSERT ON cmdbus.ready
        FOR EACH ROW EXECUTE FUNCTION public.take_long()"""


@pytest.fixture(autouse=True)
def bridges(queues_dsn: str, bus: CommandBus) -> None:
    """Into the domain shop, and out of back."""
    bus.bridges.add("orders", "shop", "Order", batch_size=7)
    bus.bridges.add("answers", "back", direction="out", batch_size=7)


@pytest.fixture(params=["in", pytest.param("out", marks=pytest.mark.long)])
def direction(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def send(bus: CommandBus, connection: psycopg.Connection, direction: str, count: int) -> None:
    for n in range(count):
        if direction == "in":
            send_messages(connection, "orders", n)
        else:
            bus.send("back", "Reply", n)


def left(dsn: str, direction: str) -> int:
    table = "pgmq.q_orders" if direction == "in" else "cmdbus.ready"
    return int(rows(dsn, f"SELECT count(*) FROM {table}")[0][0])


def moved(dsn: str, direction: str) -> list[object]:
    query = "SELECT data FROM cmdbus.ready ORDER BY id"
    if direction == "out":
        query = "SELECT message FROM pgmq.q_answers ORDER BY msg_id"
    return [body for (body,) in rows(dsn, query)]


@pytest.fixture
def held(dsn: str, connection: psycopg.Connection, direction: str) -> Iterator[psycopg.Connection]:
    """Moves wait for this session, until it ends."""
    table = "cmdbus.ready" if direction == "in" else "pgmq.q_answers"
    connection.execute(HOLD.format(table).encode())
    with connect(dsn) as holder:
        yield holder


def test_nodes_that_move_at_once_move_each_message_once(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, direction: str
) -> None:
    together, all_sent = threading.Barrier(3), threading.Event()

    def node() -> None:
        with connect(dsn) as session:
            round_ = bridge_round()
            together.wait(20)
            eventually(
                lambda: round_.run(session) and all_sent.is_set() and left(dsn, direction) == 0
            )

    send(bus, connection, direction, 100)
    with beside(node), beside(node):
        together.wait(20)
        send(bus, connection, direction, 30)
        all_sent.set()
        eventually(lambda: left(dsn, direction) == 0)
    assert sorted(map(str, moved(dsn, direction))) == sorted(map(str, [*range(100), *range(30)]))
    assert {each.direction: each.moved for each in bus.bridges.list()}[direction] == 130


@pytest.mark.parametrize("point", [pytest.param(BEFORE_MOVE, marks=pytest.mark.long), AFTER_MOVE])
def test_a_node_that_is_killed_before_or_after_a_move_leaves_it_whole(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, direction: str, point: str
) -> None:
    send(bus, connection, direction, 7)
    passed = iter(range(3))

    def kill(reached: str) -> None:
        # Both bridges are tried; the one that moves is not always the first.
        if reached == point and (left(dsn, direction) == 0 or next(passed) == 2):
            os.kill(os.getpid(), signal.SIGKILL)

    def node() -> None:
        set_failpoint_action(kill)
        with connect(dsn) as session:
            move_all(bridge_round(), session)

    with forked(node) as pid:
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert left(dsn, direction) in (0, 7)
    move_all(bridge_round(), connection)
    assert moved(dsn, direction) == [*range(7)]


def test_a_move_whose_session_ends_in_the_middle_has_not_happened(
    dsn: str,
    connection: psycopg.Connection,
    bus: CommandBus,
    direction: str,
    held: psycopg.Connection,
) -> None:
    send(bus, connection, direction, 5)
    held.execute("SELECT pg_advisory_lock(42)")

    def node() -> None:
        with connect(dsn) as session, pytest.raises(psycopg.OperationalError):
            move_all(bridge_round(), session)

    with beside(node):
        await_lock_waits(dsn)
        ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        waits = " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        assert scalar(connection, ended + waits) == 1
    held.execute("SELECT pg_advisory_unlock(42)")
    assert (left(dsn, direction), moved(dsn, direction)) == (5, [])
    move_all(bridge_round(), connection)
    assert moved(dsn, direction) == [*range(5)]


def test_a_node_that_is_killed_in_the_middle_of_a_move_leaves_it_to_its_server(
    dsn: str,
    connection: psycopg.Connection,
    bus: CommandBus,
    direction: str,
    held: psycopg.Connection,
) -> None:
    """Another node moves nothing meanwhile."""
    send(bus, connection, direction, 5)
    held.execute("SELECT pg_advisory_lock(42)")

    def node() -> None:
        with connect(dsn) as session:
            move_all(bridge_round(), session)

    with forked(node):
        await_lock_waits(dsn)
    bridge_round().run(connection)
    held.execute("SELECT pg_advisory_unlock(42)")
    eventually(lambda: left(dsn, direction) == 0)
    assert moved(dsn, direction) == [*range(5)]


def test_a_removal_waits_for_the_move_that_is_under_way(
    dsn: str,
    connection: psycopg.Connection,
    bus: CommandBus,
    direction: str,
    held: psycopg.Connection,
) -> None:
    send(bus, connection, direction, 10)
    held.execute("SELECT pg_advisory_lock(42)")
    name = "orders-in" if direction == "in" else "answers-out"

    def node() -> None:
        with connect(dsn) as session:
            round_ = bridge_round()
            round_.run(session)
            round_.run(session)

    with beside(node):
        await_lock_waits(dsn)
        with beside(bus.bridges.remove, name):
            await_lock_waits(dsn, 2)
            held.execute("SELECT pg_advisory_unlock(42)")
    assert name not in [record.name for record in bus.bridges.list()]
    count = len(moved(dsn, direction))
    assert count in (7, 10) and left(dsn, direction) == 10 - count
    bus.bridges.remove("answers-out" if direction == "in" else "orders-in")
    assert bridge_round().run(connection) == float("inf")


def test_another_consumer_of_the_queue_gets_what_the_bridge_does_not(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    send(bus, connection, "in", 200)
    taken: list[object] = []

    def consumer() -> None:
        with connect(dsn) as session:
            while found := session.execute("SELECT message FROM pgmq.pop('orders', 3)").fetchall():
                taken.extend(body for (body,) in found)

    with beside(consumer):
        move_all(bridge_round(), connection)
    assert sorted(map(str, [*taken, *moved(dsn, "in")])) == sorted(map(str, range(200)))


def test_a_worker_moves_at_once_what_comes_and_goes_on_after_an_outage(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Its timers are read once a minute; a bridge that is added wakes it."""
    for record in bus.bridges.list():
        bus.bridges.remove(record.name)
    ran: list[object] = []
    registry = handling(lambda command, _: ran.append(command.data))
    with running(dsn, registry, poll_interval=60):
        eventually(lambda: rows(dsn, "SELECT FROM cmdbus.waiter"))
        bus.bridges.add("orders", "payments", "Debit")
        send_messages(connection, "orders", 1)
        eventually(lambda: len(ran) == 1)
        end_sessions(dsn)
        send_messages(connection, "orders", 2, 3)
        eventually(lambda: len(ran) == 3)
    assert messages(dsn, "orders") == []


def test_a_node_without_bridges_asks_nothing(dsn: str, bus: CommandBus) -> None:
    """It learns that there are none from the timers, which it reads anyway."""
    statements = ClaimStatements("cmdbus", 30)
    timers = Timers(statements, [], [])
    with connect(dsn) as session:
        timers.promote_and_read(session, leases=False)
        assert timers.bridges < float("inf")
        for record in bus.bridges.list():
            bus.bridges.remove(record.name)
        timers.promote_and_read(session, leases=False)
        assert timers.bridges == float("inf")
    round_ = bridge_round()
    round_._timers.bridges = float("inf")
    # Of a session that has ended.
    assert round_.run(session) == float("inf")


def test_looks_at_empty_queues_write_nothing(connection: psycopg.Connection) -> None:
    with connection.transaction():
        bridge_round().run(connection)
        assert scalar(connection, "SELECT pg_current_xact_id_if_assigned()") is None


def test_a_move_that_takes_too_long_is_repeated_with_fewer_and_at_last_with_more_time(
    dsn: str, connection: psycopg.Connection, bus: CommandBus
) -> None:
    send(bus, connection, "in", 2)
    connection.execute(NEEDS_TIME)
    move_all(bridge_round(), connection)
    assert moved(dsn, "in") == [0, 1]
    assert [record.error for record in bus.bridges.list()] == [None, None]
