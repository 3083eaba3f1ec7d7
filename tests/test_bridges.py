"""Bridges move messages of PGMQ's queues into commands, and commands into messages."""

from uuid import uuid4

import psycopg
from bridges import bridge_round, messages, move_all, send_messages
from eventually import eventually
from handlers import beside, running
from pgmq_queues import create_queues
from pgmq_queues import pgmq_dsn as pgmq_dsn
from psycopg.types.json import Jsonb
from queries import rows

from cmdbus import Command, CommandBus, Context, HandlerRegistry, SendRequest


def test_each_message_becomes_a_command_in_order(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "orders")
    assert bus.bridges.add("orders", "shop", "Order", batch_size=2) == "orders-in"
    ids = send_messages(connection, "orders", {"n": 1}, {"n": 2}, {"n": 3})
    move_all(bridge_round(), connection)
    assert messages(pgmq_dsn, "orders") == []
    found = rows(
        pgmq_dsn,
        "SELECT domain, type, data, headers, correlation_id = command_id, priority"
        " FROM cmdbus.ready ORDER BY id",
    )
    assert found == [
        ("shop", "Order", {"n": n}, {"pgmq_msg_id": str(id_)}, True, 5)
        for n, id_ in enumerate(ids, 1)
    ]
    [record] = bus.bridges.list()
    assert (record.moved, record.refused, record.error) == (3, 0, None)
    assert record.moved_at is not None


def test_each_command_becomes_a_message(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "answers")
    assert bus.bridges.add("answers", "replies", direction="out") == "answers-out"
    sent = bus.send("replies", "Reply", {"a": [1, None]}, headers={"tenant": "acme"})
    move_all(bridge_round(), connection)
    assert messages(pgmq_dsn, "answers") == [
        (
            {"a": [1, None]},
            {
                "tenant": "acme",
                "command_id": str(sent),
                "correlation_id": str(sent),
                "domain": "replies",
                "type": "Reply",
            },
        )
    ]
    record = bus.get("replies", sent)
    assert record is not None
    assert (record.status, record.result) == ("COMPLETED", {"queue": "answers", "msg_id": 1})
    assert (record.attempts, record.worker) == (1, "bridge:answers-out")
    assert rows(pgmq_dsn, "SELECT * FROM cmdbus.lease") == []


def test_headers_of_messages_become_those_of_commands(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "orders")
    bus.bridges.add("orders", "shop", "Order")
    cause = uuid4()
    headers = [
        {"tenant": "acme", "correlation_id": str(cause), "pgmq_msg_id": "0"},
        {"correlation_id": "none", "n": 1, "a b": "x", "long": "x" * 4001, "ok": 'a"b'},
        {f"h{n}": "x" * 400 for n in range(40)} | {"traceparent": "00-1"},
        ["a list"],
        None,
    ]
    connection.execute(
        "SELECT pgmq.send_batch('orders', %s, %s::jsonb[])",
        ([Jsonb(None)] * len(headers), [each if each is None else Jsonb(each) for each in headers]),
    )
    move_all(bridge_round(), connection)
    found = rows(
        pgmq_dsn,
        "SELECT headers, nullif(correlation_id, command_id) FROM cmdbus.ready ORDER BY id",
    )
    assert [found[0], found[1]] == [
        ({"pgmq_msg_id": "1", "tenant": "acme"}, cause),
        ({"pgmq_msg_id": "2", "correlation_id": "none", "ok": 'a"b'}, None),
    ]
    many, _ = found[2]
    assert many["traceparent"] == "00-1" and 15 < len(many) < 32
    assert found[3:] == [({"pgmq_msg_id": "4"}, None), ({"pgmq_msg_id": "5"}, None)]


def test_a_reply_tells_a_producer_that_knows_only_pgmq_which_message_it_answers(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "orders", "answers")
    bus.bridges.add("orders", "shop", "Order", reply_to="shop.replies")
    bus.bridges.add("answers", "shop.replies", direction="out")
    registry = HandlerRegistry()

    @registry.handler("shop", "Order")
    def order(command: Command, context: Context) -> object:
        return {"total": command.data["n"] * 2}

    with running(pgmq_dsn, registry):
        ids = send_messages(connection, "orders", *({"n": n} for n in range(3)))
        eventually(lambda: len(messages(pgmq_dsn, "answers")) == 3)
    answers = messages(pgmq_dsn, "answers")
    assert {int(headers["pgmq_msg_id"]): data["result"] for data, headers in answers} == {
        id_: {"total": 2 * n} for n, id_ in enumerate(ids)
    }
    assert {(data["type"], data["outcome"]) for data, _ in answers} == {("Order", "SUCCESS")}


def test_what_ends_a_batch_becomes_a_message(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "ends", "parts")
    bus.bridges.add("ends", "shop", "Over", direction="out")
    bus.bridges.add("parts", "shop", "Part", direction="out")
    over = SendRequest("shop", "Over", {"batch": "over"}, headers={"tenant": "acme"})
    commands = [SendRequest("shop", "Part", n, headers={"n": str(n)}) for n in range(3)]
    batch_id = bus.create_batch("shop", commands, on_complete=over)
    move_all(bridge_round(), connection)
    parts = messages(pgmq_dsn, "parts")
    assert [(data, headers["n"]) for data, headers in parts] == [(0, "0"), (1, "1"), (2, "2")]
    [(data, headers)] = messages(pgmq_dsn, "ends")
    assert (data, headers["type"], headers["tenant"]) == ({"batch": "over"}, "Over", "acme")
    record = bus.get_batch(batch_id)
    assert record is not None and (record.status, record.completed) == ("COMPLETED", 3)


def test_a_call_of_a_bridged_type_returns_its_message(
    pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    create_queues(connection, "orders")
    bus.bridges.add("orders", "shop", "Order", direction="out")
    results: list[object] = []
    with beside(lambda: results.append(bus.call("shop", "Order", {"n": 1}))):
        eventually(lambda: rows(pgmq_dsn, "SELECT FROM cmdbus.ready"))
        move_all(bridge_round(), connection)
    assert results == [{"queue": "orders", "msg_id": 1}]
    assert [body for body, _ in messages(pgmq_dsn, "orders")] == [{"n": 1}]
