"""Operators add bridges and remove them; what cannot work is refused with one sentence."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from bridges import bridge_round, messages, move_all, send_messages
from cli import done, here
from click.testing import Result
from eventually import eventually
from pgmq_queues import create_queues, install_pgmq
from pgmq_queues import pgmq_dsn as pgmq_dsn
from queries import insert, rows, scalar
from roles import role

from cmdbus import CmdbusError, CommandBus, SchemaError
from cmdbus.database.statements import statement
from cmdbus.errors import MissingRightError
from cmdbus.supervisor.cli.output import timestamp

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments: here("bridge", *arguments, CMDBUS_DSN=dsn)


@pytest.fixture
def queues(pgmq_dsn: str, connection: psycopg.Connection) -> None:
    create_queues(connection, "Orders", "answers")


@pytest.mark.usefixtures("queues")
def test_bridges_are_added_shown_and_removed(bus: CommandBus, run: Run) -> None:
    assert done(run("list")) == "there is no bridge\n"
    remark = ["--operator", "ann", "--reason", "the old shop"]
    shown = done(run("add", "Orders", "shop", "Order", "--reply-to", "shop.answers", *remark))
    assert shown.splitlines()[:4] == [
        "Orders-in  queue orders -> shop/Order",
        "  moved       0",
        "  replies     to shop.answers",
        "  batch size  100",
    ]
    assert ": the old shop\n" in shown
    out = ("--direction", "out", "--bridge-name", "back", "--batch-size", "7")
    assert done(run("add", "answers", "shop.answers", *out)).splitlines()[0] == (
        "back  domain shop.answers -> queue answers"
    )
    [first, second] = json.loads(done(run("list", "--json")))["bridges"]
    assert (first["name"], first["type"], first["operator"]) == ("Orders-in", "Order", "ann")
    assert (second["name"], second["type"], second["batch_size"]) == ("back", None, 7)
    assert done(run("remove", "back")) == "back: no bridge\n"
    refused = run("remove", "Orders_in")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "Error: there is no bridge 'Orders_in': did you mean 'Orders-in'?\n",
    )
    [event] = bus.domain_audit("shop")
    assert (event.kind, event.operator, event.message) == ("BRIDGE_ADDED", "ann", "the old shop")
    assert event.details is not None
    assert event.details["after"] == {
        **{"queue": "orders", "direction": "in", "domain": "shop", "type": "Order"},
        **{"reply_to": "shop.answers", "batch_size": 100},
    }


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"direction": "up"}, r"direction must be 'in' .*, not 'up'"),
    ({"type": None}, "a bridge into a domain needs the type of its commands"),
    ({"direction": "out", "reply_to": "x"}, "reply_to is for bridges into a domain"),
    ({"batch_size": 1001}, "batch_size must be a whole number from 1 to 1000"),
    ({"queue": "o;"}, "queue must be text of 1 to 47 characters without"),
    ({"queue": "my queue"}, "'my queue-in' cannot be the name of a bridge: give it a name"),
    ({"queue": "other"}, r"the queue 'other' does not exist: SELECT pgmq\.create\('other'\)"),
    (
        {"queue": "orders", "name": "Orders-in"},
        "bridge 'Orders-in' has the queue 'orders' in the direction 'in' .*, so remove that one",
    ),
    ({"queue": "answers", "name": "Orders-in"}, "there is a bridge 'Orders-in' already"),
    (
        {"queue": "ORDERS", "direction": "out", "type": None},
        "'Orders-in' would move each message back: it leads from the queue 'orders' into the dom",
    ),
    (
        {"queue": "orders", "domain": "shop.answers", "direction": "out", "type": None},
        "with bridge 'Orders-in' the reply to each message of the queue 'orders' would be a",
    ),
    (
        {"domain": "news", "reply_to": "receipts"},
        "with bridge 'receipts' the reply to each message of the queue 'answers' would be a",
    ),
]


@pytest.mark.usefixtures("queues")
def test_a_bridge_that_cannot_work_is_refused(bus: CommandBus) -> None:
    bus.bridges.add("Orders", "shop", "Order", reply_to="shop.answers")
    bus.bridges.add("answers", "receipts", "Reply", direction="out", name="receipts")
    for given, sentence in REFUSED:
        values = {"queue": "answers", "domain": "shop", "type": "Order", **given}
        with pytest.raises((CmdbusError, ValueError), match=sentence):
            bus.bridges.add(**values)
    assert len(bus.bridges.list()) == 2


def test_a_database_without_pgmq_has_no_bridges(bus: CommandBus) -> None:
    with pytest.raises(
        SchemaError, match=r"PGMQ is not installed in database .*: CREATE EXTENSION"
    ):
        bus.bridges.add("orders", "shop", "Order")


@pytest.mark.usefixtures("queues")
def test_a_pgmq_without_headers_has_no_bridges(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    connection.execute("ALTER TABLE pgmq.q_orders DROP COLUMN headers")
    with pytest.raises(SchemaError, match=r"no headers of messages, as versions from 1\.5 on have"):
        bus.bridges.add("orders", "shop", "Order")


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    ("direction", "queue", "rights"),
    [("in", "orders", "DELETE, SELECT, UPDATE"), ("out", "answers", "INSERT, SELECT")],
)
def test_an_operator_needs_the_rights_that_the_bridge_uses(
    dsn: str, bus: CommandBus, direction: str, queue: str, rights: str
) -> None:
    with role(dsn, "operator") as session:
        name = scalar(session, "SELECT current_user")
        with pytest.raises(MissingRightError) as raised:
            bus.bridges.add(queue, "shop", "T", direction=direction, connection=session)
        _, _, grants = str(raised.value).partition(": ")
        quoted = f'"{name}"'
        assert grants == (
            f'GRANT USAGE ON SCHEMA pgmq TO {quoted}; GRANT {rights} ON pgmq."q_{queue}" '
            f"TO {quoted}"
        )
        with psycopg.connect(dsn, autocommit=True) as owner:
            owner.execute(grants.encode())
        bus.bridges.add(queue, "shop", "T", direction=direction, connection=session)
    assert len(bus.bridges.list()) == 1


@pytest.mark.usefixtures("queues")
def test_a_steward_without_rights_says_which_it_needs_and_moves_with_them(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.bridges.add("orders", "shop", "Order")
    bus.bridges.add("answers", "back", direction="out")
    send_messages(connection, "orders", 1)
    bus.send("back", "Reply", 2)
    with role(dsn, "worker") as session:
        round_ = bridge_round()
        # A round that has taken long leaves the rest to the next one.
        eventually(lambda: round_.run(session) > 1)
        errors = [record.error for record in bus.bridges.list()]
        assert errors[0] is not None and errors[1] is not None
        assert "may not send messages to the queue 'answers': GRANT USAGE" in errors[0]
        assert "may not take messages off the queue 'orders': GRANT USAGE" in errors[1]
        for error in errors:
            assert error is not None
            connection.execute(error.partition(": ")[2].encode())
        move_all(bridge_round(), session)
    assert rows(dsn, "SELECT data FROM cmdbus.ready") == [(1,)]
    assert [body for body, _ in messages(dsn, "answers")] == [2]
    assert [record.error for record in bus.bridges.list()] == [None, None]


@pytest.mark.usefixtures("queues")
def test_a_steward_that_may_not_notify_of_messages_says_which_right_it_needs(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    connection.execute("SELECT pgmq.enable_notify_insert('answers')")
    bus.bridges.add("answers", "back", direction="out")
    bus.send("back", "Reply", 2)
    with role(dsn, "worker") as session:
        for missing in ("may not send messages to", "may not notify of messages in"):
            eventually(lambda: bridge_round().run(session) > 1)
            [record] = bus.bridges.list()
            assert record.error is not None and f"{missing} the queue 'answers'" in record.error
            connection.execute(record.error.partition(": ")[2].encode())
        move_all(bridge_round(), session)
    assert [body for body, _ in messages(dsn, "answers")] == [2]


def test_a_queue_that_is_dropped_stops_its_bridge_alone(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "a", "b", "c")
    for queue in ("a", "b"):
        bus.bridges.add(queue, "shop", "Order")
    bus.bridges.add("c", "back", direction="out")
    connection.execute("SELECT pgmq.drop_queue('a'), pgmq.drop_queue('c')")
    send_messages(connection, "b", 1)
    bus.send("back", "Reply", 2)
    move_all(bridge_round(), connection)
    assert [(record.name, record.moved, record.error) for record in bus.bridges.list()] == [
        ("a-in", 0, "the queue 'a' does not exist: SELECT pgmq.create('a') makes it"),
        ("b-in", 1, None),
        ("c-out", 0, "the queue 'c' does not exist: SELECT pgmq.create('c') makes it"),
    ]
    counted = statement("count_bridges", "cmdbus")
    assert {row[:3]: row[3] for row in connection.execute(counted) if row[3]} == {
        ("a-in", "in", "failing"): 1,
        ("b-in", "in", "moved"): 1,
        ("c-out", "out", "failing"): 1,
    }
    connection.execute("DROP SCHEMA pgmq CASCADE")
    move_all(bridge_round(), connection)
    assert all(
        record.error is not None and record.error.startswith("PGMQ is not installed")
        for record in bus.bridges.list()
    )
    install_pgmq(connection)
    create_queues(connection, "c")
    move_all(bridge_round(), connection)
    assert [body for body, _ in messages(pgmq_dsn, "c")] == [2]


def test_status_shows_the_bridges_that_fail(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "a", "b", "c")
    for queue, domain in (("a", "shop"), ("b", "shop"), ("c", "mail")):
        bus.bridges.add(queue, domain, "Order")

    def status(*arguments: str) -> str:
        return done(here("status", *arguments, CMDBUS_DSN=pgmq_dsn))

    assert status() == "nothing waits, nothing runs\n"
    connection.execute("SELECT pgmq.drop_queue('a'), pgmq.drop_queue('c')")
    move_all(bridge_round(), connection)
    [shop, mail] = [each for each in bus.bridges.list() if each.name != "b-in"]
    assert shop.failed_at is not None and mail.failed_at is not None
    lines = [
        f"bridge {each}-in has been failing since {timestamp(at)}: "
        f"the queue '{each}' does not exist: SELECT pgmq.create('{each}') makes it"
        for each, at in (("a", shop.failed_at), ("c", mail.failed_at))
    ]
    assert status().splitlines()[1:] == lines
    assert status("shop").splitlines()[1:] == lines[:1]
    [failing] = json.loads(status("mail", "--json"))["bridges"]
    assert (failing["name"], failing["error"]) == ("c-in", mail.error)


def test_nodes_count_as_handling_the_commands_that_a_bridge_moves(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "answers")
    bus.send("back", "Reply", 2)
    bus.send("back", "Other", 2)
    connection.execute("UPDATE cmdbus.ready SET created_at = created_at - interval '1 hour'")
    insert(connection, "cmdbus.node", id=1, lease="1 hour", renewed_at="now", types=[])
    assert bus.domains("back")[0].unhandled == ["Other", "Reply"]
    bus.bridges.add("answers", "back", "Reply", direction="out")
    assert bus.domains("back")[0].unhandled == ["Other"]
    bus.bridges.remove("answers-out")
    bus.bridges.add("answers", "back", direction="out")
    assert bus.domains("back")[0].unhandled == []


def test_an_operator_sees_why_a_command_waits_for_a_bridge(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "answers")
    bus.bridges.add("answers", "back", direction="out")
    sent = bus.send("back", "Reply", 2)
    insert(connection, "cmdbus.node", id=1, lease="1 hour", renewed_at="now", types=[])
    assert bus.explain("back", sent) == (
        "It waits: it is the next one that bridge answers-out moves."
    )
    connection.execute("SELECT pgmq.drop_queue('answers')")
    move_all(bridge_round(), connection)
    assert "It waits: bridge answers-out cannot move it into the queue 'answers': the queue " in (
        bus.explain("back", sent)
    )
