"""What the page shows of one command."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
from handlers import found, running
from psycopg.conninfo import make_conninfo
from queries import move_to_troubleshooting
from roles import role
from web import ask

from cmdbus import Command, CommandBus, Context, HandlerRegistry, RetryPolicy, SendRequest
from cmdbus.data import decode
from cmdbus.web import application
from cmdbus.web.views.payload_values import payload_of


def read(bus: CommandBus, id_: UUID, query: str = "") -> Any:
    reply = ask(application(bus), f"/api/command/payments/{id_}{query}")
    assert reply.status == 200, reply.body
    return reply.json


def test_a_command_is_shown_with_its_attempts_and_its_time(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()

    def debit(command: Command, context: Context) -> None:
        raise RuntimeError(f"no account {command.data['account']}")

    policy = RetryPolicy(max_attempts=2, backoff=(0.001,))
    registry.register("payments", "Debit", debit, retry=policy)
    data = {"account": "<b>\u202e</b>", "n": 12345678901234567890}
    headers = {"own": "<b>\u202e</b>"}
    id_ = bus.send("payments", "Debit", data, key="k", reply_to="orders", headers=headers)
    with running(dsn, registry):
        bus.wait("payments", id_)
    value = read(bus, id_)
    assert (value["status"], value["key"]) == ("IN_TROUBLESHOOTING_QUEUE", "k")
    assert value["headers"] == headers
    assert decode(value["data"]["text"]) == data
    assert (value["data"]["cut"], value["data"]["problem"], value["result"]) == (False, None, None)
    assert value["attempts"] == 2
    first, second = value["executions"]
    assert (first["attempt"], first["outcome"], first["code"]) == (1, "FAILED", "RuntimeError")
    assert first["message"] == "no account <b>\u202e</b>"
    assert first["traceback"].startswith("Traceback") and "in debit" in first["traceback"]
    assert (second["outcome"], second["reason"]) == ("MOVED_TO_TROUBLESHOOTING_QUEUE", "EXHAUSTED")
    kinds = [part["kind"] for part in value["timeline"]]
    assert [kind for kind in kinds if kind != "retried"] == ["waited", "ran", "ran", "trouble"]
    assert value["timeline"][-1]["to"] is None
    assert [event["kind"] for event in value["audit"]] == [
        event.kind for event in bus.audit("payments", id_)
    ]
    assert "waits for an operator" in value["why"]
    assert value["links"] == {"batch": None, "process": None, "reply_to": "orders"}


def test_a_command_of_a_batch_leads_to_it(bus: CommandBus) -> None:
    batch_id = bus.create_batch("payments", [SendRequest("payments", "Debit")], name="March")
    [record] = bus.batch_commands(batch_id)
    batch = read(bus, record.command_id)["links"]["batch"]
    assert (batch["batch_id"], batch["name"], batch["total"]) == (str(batch_id), "March", 1)


def test_an_unknown_command_and_a_bad_path_get_a_sentence(bus: CommandBus) -> None:
    page = application(bus)
    for path, status, sentence in (
        (f"payments/{uuid4()}", 404, "domain 'payments' has no command"),
        ("payments/7", 400, "the id must be an id"),
        ("payments", 400, "the path lacks the id"),
        (f"pay'ments/{uuid4()}", 400, "domain must be a letter"),
        (f"payments/{uuid4()}?events=0", 400, "events must be a whole number"),
        (f"payments/{uuid4()}?other=1", 404, "has no command"),
    ):
        reply = ask(page, f"/api/command/{path}")
        assert (reply.status, sentence in reply.json["error"]) == (status, True), reply.json


def test_a_long_trail_is_shown_from_its_end(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    id_ = bus.send("payments", "Debit")
    for n in range(5):
        bus.reschedule("payments", id_, priority=n % 2, operator="ann")
    value = read(bus, id_, "?events=2")
    assert [event["number"] for event in value["audit"]] == [4, 5]
    assert value["audit_left_out"] == 4
    assert len(read(bus, id_)["audit"]) == 6


#: JSON that the tables hold although Python would refuse it, or that is odd.
ODD = (
    '"<script>alert(1)</script>"',
    '"\\u0000 \\ud800 \\u202e"',
    "[" * 900 + "]" * 900,
    "9" * 5000,
    "1e999",
    '{"a": 1, "a": 2}',
    '{"__proto__": {"x": 1}, "constructor": null}',
    '"' + "x" * 1_048_000 + '"',
    " null ",
)


def test_data_of_other_programs_is_shown_as_far_as_it_can_be(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    id_ = bus.send("payments", "Debit")
    for data in ODD:
        connection.execute("UPDATE cmdbus.ready SET data = %s::json", [data])
        value = read(bus, id_)["data"]
        assert len(value["text"]) <= 64 * 1024
        assert value["cut"] is (len(data) > 100_000) or value["problem"]
        if not value["problem"] and not value["cut"]:
            assert decode(value["text"]) == decode(data)


def test_payloads_are_shown_as_bounded_text() -> None:
    assert payload_of(None) == {"text": "null", "bytes": 4, "cut": False, "problem": None}
    assert payload_of({"é": [1, 1.5]})["text"] == '{"é":[1,1.5]}'
    cut = payload_of("é" * 100, limit=10)
    assert (cut["text"], cut["bytes"], cut["cut"]) == ('"éééé', 202, True)
    undecodable = payload_of(decode("1e999"))
    assert undecodable["text"] == "1e999" and "out of range" in undecodable["problem"]


def test_data_before_and_after_a_change_is_in_the_trail(dsn: str, bus: CommandBus) -> None:
    id_ = bus.send("payments", "Debit", {"n": 1})
    move_to_troubleshooting(dsn)
    bus.troubleshooting.retry("payments", id_, operator="ann", data={"n": 2})
    assert found(bus, id_).data == {"n": 2}
    *_, event = read(bus, id_)["audit"]
    assert event["operator"] == "ann"
    assert event["details"] is None
    change = event["change"]
    assert (change["before"]["text"], change["after"]["text"]) == ('{"n":1}', '{"n":2}')


def test_a_payload_is_given_whole(dsn: str, bus: CommandBus) -> None:
    data = {"text": "é" * 100_000}
    id_ = bus.send("payments", "Debit", data)
    page = application(bus)
    assert read(bus, id_)["data"]["cut"]
    whole = ask(page, f"/api/payload/payments/{id_}/data").json
    assert (decode(whole["text"]), whole["cut"]) == (data, False)
    assert ask(page, f"/api/payload/payments/{id_}/checkpoint").json["text"] == "null"
    bus.cancel("payments", id_)
    assert "priority" in ask(page, f"/api/payload/payments/{id_}/event/0").json["text"]
    for path, status, sentence in (
        ("event/9", 404, "the audit trail has no event '9'"),
        ("event/x", 404, "the audit trail has no event 'x'"),
        ("event", 400, "the path lacks the number of the event"),
        ("other", 400, "and not 'other'"),
    ):
        reply = ask(page, f"/api/payload/payments/{id_}/{path}")
        assert (reply.status, sentence in reply.json["error"]) == (status, True), reply.json
    assert ask(page, f"/api/payload/payments/{uuid4()}/data").status == 404


def related(bus: CommandBus, id_: UUID) -> Any:
    reply = ask(application(bus), f"/api/related/payments/{id_}")
    assert reply.status == 200, reply.body
    return reply.json


def test_everything_of_a_correlation_id_is_shown_as_a_tree(dsn: str, bus: CommandBus) -> None:
    root = bus.send("payments", "Order", reply_to="orders")
    mail = bus.send("mail", "Receipt", correlation_id=root, delay=60)
    batch_id = bus.create_batch(
        "payments", [SendRequest("payments", "Line", correlation_id=root)] * 2, name="lines"
    )
    bus.send("payments", "Other")
    bus.cancel("payments", root)
    [reply] = bus.query("orders")
    for id_ in (root, bus.batch_commands(batch_id)[0].command_id):
        value = related(bus, id_)
        [top] = value["tree"]
        assert (value["count"], value["cut"], top["command_id"]) == (5, False, str(root))
        assert [node["kind"] for node in top["children"]] == ["command", "batch", "command"]
        assert top["children"][0]["command_id"] == str(mail)
        assert [node["type"] for node in top["children"][1]["children"]] == ["Line", "Line"]
        assert top["children"][2]["command_id"] == str(reply.command_id)
    assert ask(application(bus), f"/api/related/payments/{uuid4()}").status == 404


def test_a_monitor_sees_a_command_without_what_it_may_not_read(dsn: str, bus: CommandBus) -> None:
    id_ = bus.send("payments", "Debit", {"secret": 1}, key="secret", headers={"own": "secret"})
    move_to_troubleshooting(dsn, message="secret")
    with role(dsn, "monitor") as monitor:
        [[name]] = monitor.execute("SELECT current_user::text").fetchall()
        with CommandBus(make_conninfo(dsn, options=f"-c role={name}")) as limited:
            page = application(limited)
            value = read(limited, id_)
            assert (value["status"], value["restricted"]) == ("IN_TROUBLESHOOTING_QUEUE", True)
            assert value["why"].startswith("It waits for an operator")
            for path in (f"command/payments/{id_}", f"related/payments/{id_}", "troubleshooting"):
                reply = ask(page, f"/api/{path}")
                assert reply.status == 200, reply.body
                assert b"secret" not in reply.body and reply.json["restricted"]
            [group] = ask(page, "/api/troubleshooting").json["groups"]
            assert (group["count"], group["message"]) == (1, None)
            reply = ask(page, f"/api/payload/payments/{id_}/data")
            assert (reply.status, "lacks a right" in reply.json["error"]) == (403, True)
