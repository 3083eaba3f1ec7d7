"""Idle bridges are woken: by senders of commands, and by PGMQ where it notifies of messages."""

import random
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from bridges import bridge_round, messages, send_messages
from eventually import eventually
from handlers import beside, connect, running
from pgmq_queues import create_queues
from pgmq_queues import pgmq_dsn as pgmq_dsn
from queries import end_listening_sessions, rows, scalar

from cmdbus import Command, CommandBus, Context, HandlerRegistry
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward import known_bridge
from cmdbus.worker.waiting.bridge_arming import BridgeArming
from cmdbus.worker.waiting.bridge_wakes import BridgeWakes, channels_of, of_ready

ARMED = "SELECT last_value & cmdbus.domain_bit(%s) <> 0 FROM cmdbus.armed"


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridges look once in ten minutes, unless they are woken."""
    monkeypatch.setattr(known_bridge, "_MIN_PAUSE_SECONDS", 600.0)
    monkeypatch.setattr(known_bridge, "_MAX_PAUSE_SECONDS", 600.0)


@contextmanager
def node(dsn: str) -> Iterator[list[object]]:
    """Whose workers handle orders; their data."""
    registry, handled = HandlerRegistry(), list[object]()

    @registry.handler("shop", "Order")
    def order(command: Command, context: Context) -> None:
        handled.append(command.data)

    with running(dsn, registry):
        yield handled


def is_armed(connection: psycopg.Connection, domain: str) -> Callable[[], bool]:
    return lambda: bool(scalar(connection, ARMED, domain))


@pytest.mark.usefixtures("seldom")
def test_a_message_wakes_the_bridge_of_its_queue(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, 'odd "q', "orders")
    for queue in ('odd "q', "orders"):
        connection.execute("SELECT pgmq.enable_notify_insert(%s, 0)", (queue,))
    bus.bridges.add("orders", "shop", "Order")
    with node(pgmq_dsn) as handled:
        send_messages(connection, "orders", 0)
        eventually(lambda: handled == [0])
        bus.bridges.add('odd "q', "shop", "Order", name="odd")
        for n in range(1, 4):
            queue = 'odd "q' if n % 2 else "orders"
            connection.execute("SELECT pgmq.send(%s, to_jsonb(%s::integer))", (queue, n))
            eventually(lambda n=n: len(handled) == n + 1)  # type: ignore[misc]
        # What is sent while no session listens is found when the next one does.
        assert end_listening_sessions(pgmq_dsn) == 1
        send_messages(connection, "orders", 4)
        eventually(lambda: handled == [0, 1, 2, 3, 4])


@pytest.mark.usefixtures("seldom")
def test_a_queue_with_capitals_is_heard_by_the_name_of_its_table_and_its_own(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Which of them PGMQ uses depends on its version."""
    create_queues(connection, "Orders")
    bus.bridges.add("Orders", "shop", "Order")
    asked = list[Collection[str]]()
    wakes = BridgeWakes(asked.append)
    idle = bridge_round(wakes)
    idle.run(connection)
    assert asked == [{"pgmq.q_orders.INSERT", "pgmq.q_Orders.INSERT"}]
    for channel in asked[0]:
        send_messages(connection, "Orders", 1)
        idle.run(connection)
        assert len(messages(pgmq_dsn, "orders")) == 1, "nothing was heard"
        assert wakes.hear([channel])
        idle.run(connection)
        assert messages(pgmq_dsn, "orders") == []


def test_pgmq_does_not_notify_of_a_queue_with_capitals_until_it_has_a_second_name(
    pgmq_dsn: str, connection: psycopg.Connection
) -> None:
    """A version that does is heard, too; the page is about both."""
    create_queues(connection, "Orders")
    connection.execute("SELECT pgmq.enable_notify_insert('Orders', 0)")
    with connect(pgmq_dsn) as listener:
        for name in ("orders", "Orders", "end"):
            listener.execute(f'LISTEN "pgmq.q_{name}.INSERT"'.encode())

        def heard() -> list[str]:
            connection.execute("SELECT pgmq.send('Orders', '1')")
            connection.execute('NOTIFY "pgmq.q_end.INSERT"')
            found = list[str]()
            for notification in listener.notifies(timeout=10):
                if notification.channel == "pgmq.q_end.INSERT":
                    return found
                found.append(notification.channel)
            raise TimeoutError

        assert heard() == []
        create_queues(connection, "orders")
        connection.execute("SELECT pgmq.enable_notify_insert('orders', 0)")
        assert heard() == ["pgmq.q_orders.INSERT"]


@pytest.mark.usefixtures("seldom")
def test_a_command_wakes_the_bridge_out_of_its_domain(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "answers")
    with node(pgmq_dsn):
        bus.bridges.add("answers", "back", direction="out")
        eventually(is_armed(connection, "back"))
        for n in range(3):
            bus.send("back", "Reply", n)
            eventually(lambda n=n: len(messages(pgmq_dsn, "answers")) == n + 1)  # type: ignore[misc]
        bus.pause("back")
        bus.send("back", "Reply", 3, delay=0.05)
        eventually(lambda: rows(pgmq_dsn, "SELECT FROM cmdbus.ready"))
        bus.resume("back")
        eventually(lambda: len(messages(pgmq_dsn, "answers")) == 4)
        bus.bridges.remove("answers-out")
    eventually(lambda: rows(pgmq_dsn, "SELECT FROM cmdbus.waiter") == [])


def test_a_sender_that_inserted_before_the_arming_and_commits_after_it_is_waited_for(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    arming = BridgeArming(ClaimStatements("cmdbus", 30))
    with psycopg.connect(dsn) as sender:
        bus.send("back", "Reply", connection=sender)
        now, looks = 1_000.0, []
        for _ in range(5):
            pause, look = arming.update(connection, ["back"], session=1, now=now)
            looks.append(look)
            now += pause
            assert pause < 2
        assert all(looks), "meanwhile the bridge looks again and again"
    assert arming.update(connection, ["back"], session=1, now=now)[1], "the last look"
    pause, look = arming.update(connection, ["back"], session=1, now=now)
    assert pause == pytest.approx(60, abs=5) and not look
    assert is_armed(connection, "back")()
    # Another session has not heard of what was sent before.
    assert arming.update(connection, ["back"], session=2, now=now)[1]
    assert arming.update(connection, ["back", "more"], session=2, now=now)[1]
    assert not arming.update(connection, ["back"], session=2, now=now)[1]
    assert arming.update(connection, [], session=2, now=now) == (float("inf"), False)
    assert not is_armed(connection, "back")()


def test_without_bridges_nothing_is_asked(connection: psycopg.Connection) -> None:
    arming = BridgeArming(ClaimStatements("cmdbus", 30))
    arming.forget()
    connection.close()
    assert arming.update(connection, [], session=1, now=1.0) == (float("inf"), False)
    assert arming.update(connection, ["back"], session=0, now=1.0) == (float("inf"), False)
    arming.lower(connection)


def test_an_arming_whose_statement_failed_is_repeated(
    dsn: str, connection: psycopg.Connection
) -> None:
    arming = BridgeArming(ClaimStatements("cmdbus", 30))
    connection.execute("ALTER FUNCTION cmdbus.writers RENAME TO hidden")
    with pytest.raises(psycopg.Error):
        arming.update(connection, ["back"], session=1, now=1.0)
    connection.execute("ALTER FUNCTION cmdbus.hidden RENAME TO writers")
    assert arming.update(connection, ["back"], session=1, now=1.0)[1]
    connection.execute("DELETE FROM cmdbus.waiter")
    arming.forget()
    assert arming.update(connection, ["back"], session=1, now=1.0)[1]
    assert rows(dsn, "SELECT bits = cmdbus.domain_bit('back') FROM cmdbus.waiter") == [(True,)]


def test_commands_for_bridges_alone_wake_no_worker() -> None:
    asked: list[object] = []
    wakes = BridgeWakes(asked.append, ["shop"])
    assert not wakes.concern_bridges_alone({"back"})
    wakes.watch([], ["back", "shop"])
    assert wakes.concern_bridges_alone({"back"})
    assert not wakes.concern_bridges_alone({"back", "shop"})
    assert not wakes.concern_bridges_alone({""})
    assert wakes.hear(of_ready({"s_ready": {"back", "mail"}, "s_due": {"shop"}}))
    assert not wakes.hear(["mail"])
    assert (wakes.take(), wakes.take()) == ({"back"}, frozenset())


def test_a_session_hears_of_a_bounded_number_of_queues() -> None:
    asked: list[frozenset[str]] = []
    wakes = BridgeWakes(asked.append, [])  # type: ignore[arg-type]
    wakes.watch([(f"q{n:04}", f"q{n:04}") for n in range(1500)], [])
    [channels] = asked
    assert len(channels) == 1000 and channels >= channels_of("q0000", "q0000")


def test_a_bridge_that_is_busy_asks_for_no_notifications(
    pgmq_dsn: str,
    bus: CommandBus,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each would make the commits of its senders wait for each other."""
    monkeypatch.setattr(known_bridge, "_BUSY_SECONDS", 0.05)
    monkeypatch.setattr(known_bridge, "_MAX_PAUSE_SECONDS", 0.05)
    create_queues(connection, "answers")
    with node(pgmq_dsn):
        bus.bridges.add("answers", "back", direction="out")
        eventually(is_armed(connection, "back"))
        with connect(pgmq_dsn) as holder, holder.transaction():
            # As another node that moves.
            holder.execute("SELECT cmdbus.lock_bridge('answers-out')")
            bus.send("back", "Reply", 1)
            eventually(lambda: not is_armed(connection, "back")())
        eventually(lambda: len(messages(pgmq_dsn, "answers")) == 1)
        eventually(is_armed(connection, "back"))


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("seldom")
def test_no_wake_up_is_lost_in_hundreds_of_races(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Senders commit at any time, some long after their insert; the bridges fall idle and become
    busy in between, and lose their listening session."""
    create_queues(connection, "orders", "answers")
    connection.execute("SELECT pgmq.enable_notify_insert('orders', 0)")
    bus.bridges.add("orders", "back", "Reply")
    bus.bridges.add("answers", "back", direction="out")
    sent, ended = [0, 0, 0], threading.Event()

    def send(index: int) -> None:
        rand = random.Random(index)
        with psycopg.connect(pgmq_dsn) as sender:
            while not ended.is_set():
                for _ in range(rand.choice([1, 1, 1, 40])):
                    if index:
                        bus.send("back", "Reply", index, connection=sender)
                    else:
                        send_messages(sender, "orders", index)
                    sent[index] += 1
                ended.wait(rand.choice([0.0, 0.002, 0.05]))
                sender.commit()
                ended.wait(rand.choice([0.0, 0.01, 0.1, 1.2]) * rand.random())

    query = "SELECT count(*) FROM pgmq.q_answers"
    with node(pgmq_dsn), node(pgmq_dsn):
        for n in range(60):
            ended.clear()
            with beside(lambda: send(0)), beside(lambda: send(1)), beside(lambda: send(2)):
                ended.wait(random.random())
                if n % 10 == 9:
                    end_listening_sessions(pgmq_dsn)
                ended.set()
            eventually(lambda: rows(pgmq_dsn, query) == [(sum(sent),)], 5)
    assert sum(sent) > 600
