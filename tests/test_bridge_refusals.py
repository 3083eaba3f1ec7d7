"""What cannot be moved over a bridge comes to troubleshooting, or waits, and stops nothing else."""

import psycopg
import pytest
from bridges import bridge_round, messages, move_all, send_messages
from pgmq_queues import queues_dsn as queues_dsn
from queries import rows, scalar

from cmdbus import CommandBus, InvalidOperationError

pytestmark = pytest.mark.usefixtures("queues_dsn")

REFUSE = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE check_violation USING MESSAGE = 'not this one'; END$$;
    CREATE TRIGGER refuse BEFORE INSERT ON {} FOR EACH ROW
        WHEN (NEW.{}::text LIKE '%bad%') EXECUTE FUNCTION public.refuse()"""


def refuse(connection: psycopg.Connection, table: str, column: str) -> None:
    connection.execute(REFUSE.format(table, column).encode())


def ready(dsn: str) -> list[object]:
    return [data for (data,) in rows(dsn, "SELECT data FROM cmdbus.ready ORDER BY id")]


def test_a_message_that_cannot_be_a_command_is_refused_and_stops_no_other(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.bridges.add("orders", "shop", "Order", reply_to="shop.replies")
    refuse(connection, "cmdbus.ready", "data")
    bodies = [f"bad {n}" if n in (3, 4, 9) else n for n in range(10)]
    ids = send_messages(connection, "orders", *bodies)
    move_all(bridge_round(), connection)
    assert (messages(dsn, "orders"), ready(dsn)) == ([], [0, 1, 2, 5, 6, 7, 8])
    refused = bus.troubleshooting.list(error_code="BRIDGE_REFUSED")
    assert {each.data: each.headers for each in refused} == {
        bodies[n]: {"pgmq_msg_id": str(ids[n])} for n in (3, 4, 9)
    }
    first = refused[-1]
    assert (first.domain, first.type, first.reply_to, first.reason) == (
        *("shop", "Order", "shop.replies"),
        "BRIDGE_REFUSED",
    )
    assert first.error_message == (
        "message 4 of queue orders cannot become a command: not this one"
    )
    [event] = [e for e in bus.audit("shop", first.command_id) if e.details and "queue" in e.details]
    assert event.details == {
        "reason": "BRIDGE_REFUSED",
        "bridge": "orders-in",
        "queue": "orders",
        "msg_id": 4,
    }
    [record] = bus.bridges.list()
    assert (record.moved, record.refused, record.error) == (7, 3, None)


@pytest.mark.long
def test_a_message_larger_than_a_command_is_kept_whole_and_retried_with_other_data_only(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.bridges.add("orders", "shop", "Order")
    connection.execute(
        "SELECT pgmq.send('orders', to_jsonb(repeat('x', 17 * 1024 * 1024))),"
        " pgmq.send('orders', '1')"
    )
    move_all(bridge_round(), connection)
    assert ready(dsn) == [1]
    found = "SELECT length(data #>> '{}'), error_message, command_id FROM cmdbus.troubleshooting"
    [(length, why, command_id)] = rows(dsn, found)
    assert length == 17 * 1024 * 1024
    sentence = "as JSON it has more than the 16 MiB that a command holds"
    assert why == f"message 1 of queue orders cannot become a command: {sentence}"
    assert bus.troubleshooting.retry_all("shop", operator="ann") == 0
    with pytest.raises(InvalidOperationError, match="too large for a command: give it other data"):
        bus.troubleshooting.retry("shop", command_id, operator="ann")
    bus.troubleshooting.retry("shop", command_id, operator="ann", data={"url": "s3://..."})
    assert ready(dsn) == [1, {"url": "s3://..."}]


def test_a_message_that_can_be_stored_nowhere_stays_in_its_queue_and_stops_no_other(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.bridges.add("orders", "shop", "Order")
    refuse(connection, "cmdbus.ready", "data")
    connection.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON cmdbus.troubleshooting"
        " FOR EACH ROW EXECUTE FUNCTION public.refuse()"
    )
    send_messages(connection, "orders", "bad", 1)
    round_ = bridge_round()
    round_.run(connection)
    assert [body for body, _ in messages(dsn, "orders")] == ["bad"]
    assert ready(dsn) == [1]
    waits = "SELECT vt - clock_timestamp() > '59 minutes' FROM pgmq.q_orders"
    assert scalar(connection, waits)
    send_messages(connection, "orders", 2)
    move_all(bridge_round(), connection)
    assert bus.bridges.list()[0].error == (
        "message 1 of queue orders cannot become a command: not this one, nor be stored in "
        "troubleshooting (not this one): it is invisible for an hour"
    )
    connection.execute("DROP TRIGGER refuse ON cmdbus.ready")
    connection.execute("UPDATE pgmq.q_orders SET vt = clock_timestamp()")
    connection.execute("UPDATE cmdbus.bridge SET failed_at = failed_at - interval '1 hour'")
    move_all(bridge_round(), connection)
    assert (ready(dsn), bus.bridges.list()[0].error) == ([1, 2, "bad"], None)


def test_a_command_that_cannot_be_a_message_is_refused_and_stops_no_other(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.bridges.add("answers", "replies", direction="out")
    sent = [bus.send("replies", "Reply", n) for n in range(3)]
    # As a program that writes rows itself may send it.
    connection.execute(
        """UPDATE cmdbus.ready SET data = '"a\\u0000b"' WHERE command_id = %s""", (sent[1],)
    )
    move_all(bridge_round(), connection)
    assert [body for body, _ in messages(dsn, "answers")] == [0, 2]
    [refused] = bus.troubleshooting.list()
    assert (refused.command_id, refused.data, refused.error_code, refused.reason) == (
        *(sent[1], "a\0b"),
        *("BRIDGE_REFUSED", "BRIDGE_REFUSED"),
    )
    assert "it cannot become a message of queue answers: " in str(refused.error_message)
    [record] = bus.bridges.list()
    assert (record.moved, record.refused) == (2, 1)


DEFERRED = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE check_violation USING MESSAGE = repeat('no', 1000000); END$$;
    CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
        WHEN (NEW.{}::text LIKE '%bad%') EXECUTE FUNCTION public.refuse()"""


@pytest.mark.parametrize("direction", ["in", "out"])
def test_what_a_deferred_constraint_refuses_stops_nothing_else_and_its_error_is_bounded(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, direction: str
) -> None:
    """At the commit, it would refuse all that is moved."""
    table, column = {"in": ("cmdbus.ready", "data"), "out": ("pgmq.q_orders", "message")}[direction]
    bus.bridges.add("orders", "shop", "Order", direction=direction)
    if direction == "in":
        send_messages(connection, "orders", 0, "bad", 2)
    else:
        for body in (0, "bad", 2):
            bus.send("shop", "Order", body)
    connection.execute(DEFERRED.format(table, column).encode())
    move_all(bridge_round(), connection)
    [record] = bus.bridges.list()
    assert (record.moved, record.refused, record.error) == (2, 1, None)
    [refused] = bus.troubleshooting.list()
    assert refused.data == "bad" and 1000 < len(str(refused.error_message)) < 1100


def test_a_full_or_closed_domain_leaves_messages_in_their_queue(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.bridges.add("orders", "shop", "Order")
    bus.configure("shop", max_depth=2)
    send_messages(connection, "orders", *range(5))
    round_ = bridge_round()
    move_all(round_, connection)
    assert ready(dsn) == [0, 1] and len(messages(dsn, "orders")) == 3
    assert bus.bridges.list()[0].error == "domain shop is full"
    assert bus.bridges.list()[0].failed_at is not None
    bus.configure("shop", max_depth=None, accepting=False)
    move_all(bridge_round(), connection)
    assert bus.bridges.list()[0].error == "domain shop does not accept commands"
    bus.configure("shop", accepting=True)
    move_all(bridge_round(), connection)
    assert ready(dsn) == [*range(5)]
    [record] = bus.bridges.list()
    assert (record.moved, record.error, record.failed_at) == (5, None, None)


def test_a_paused_domain_moves_no_commands_out(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.bridges.add("answers", "replies", direction="out")
    bus.send("replies", "Reply", 1)
    bus.pause("replies", operator="ann")
    move_all(bridge_round(), connection)
    assert messages(dsn, "answers") == []
    bus.resume("replies", operator="ann")
    move_all(bridge_round(), connection)
    assert len(messages(dsn, "answers")) == 1


def test_commands_with_limits_move_out_within_these(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.limits.set("replies", "Slow", rate="1/h", burst=2)
    bus.bridges.add("answers", "replies", direction="out")
    for n in range(4):
        bus.send("replies", "Slow", n)
    bus.send("replies", "Quick", 9)
    move_all(bridge_round(), connection)
    moved = [body for body, _ in messages(dsn, "answers")]
    assert sorted(moved) == [0, 1, 9]
