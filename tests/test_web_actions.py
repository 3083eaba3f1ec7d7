"""What operators do on the page to domains, batches and schedules: what they are shown before, what
is in the database and the audit trail after it, and how it is undone."""

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from acting import act, preview, undo
from batches import DEBIT, batch_of
from queries import NOWHERE
from test_schedule_operations import NIGHTLY, NODE, declaring

from cmdbus import BatchNotFoundError, CommandBus, InvalidOperationError, SendRequest
from cmdbus.web.actions import ACTIONS
from cmdbus.web.actions.order import Order


def remarks(bus: CommandBus, domain: str) -> list[tuple[str, str | None, str | None]]:
    return [(event.kind, event.operator, event.message) for event in bus.domain_audit(domain)]


def test_a_domain_is_paused_and_resumed_again(bus: CommandBus) -> None:
    bus.send_many([SendRequest("payments", "Charge")] * 3)
    shown = preview(bus, "pause", domain="payments")
    assert (shown["title"], shown["count"]) == ("Pause payments", 3)
    assert shown["touches"][-1] == "3 commands wait and will not start."
    answer = act(bus, "pause", domain="payments", reason="  wrong prices ")
    assert bus.domains("payments")[0].paused and answer["done"] == "payments is paused"
    with pytest.raises(InvalidOperationError, match="payments is paused already"):
        preview(bus, "pause", domain="payments")
    with pytest.raises(InvalidOperationError, match="payments is paused already"):
        act(bus, "pause", domain="payments")
    undo(bus, answer)
    assert not bus.domains("payments")[0].paused
    assert remarks(bus, "payments") == [
        *[("PAUSED", "ann", "wrong prices"), ("RESUMED", "bob", "undone")]
    ]
    shown = preview(bus, "pause", domain="paymens")
    assert "is that its name?" in shown["touches"][-1]


def test_a_pause_of_another_operator_is_not_undone(bus: CommandBus) -> None:
    answer = act(bus, "pause", domain="payments")
    bus.resume("payments", operator="eve")
    bus.pause("payments", operator="eve", reason="an incident")
    with pytest.raises(InvalidOperationError, match=r"by ann and is .* by eve now"):
        undo(bus, answer)
    assert bus.domains("payments")[0].paused


def test_settings_of_a_domain_are_changed_and_put_back(bus: CommandBus) -> None:
    bus.configure("payments", max_depth=10, keep=timedelta(days=3))
    shown = preview(bus, "configure", domain="payments")
    values = {field["name"]: field["value"] for field in shown["fields"]}
    assert values == {
        **{"max_depth": 10, "warn_depth": None, "max_waiting_per_key": None, "keep": "3d"},
        "accepting": "yes",
    }
    values |= {"max_depth": "", "warn_depth": "500", "keep": "12h", "accepting": "no"}
    answer = act(bus, "configure", domain="payments", values=values, state=shown["state"])
    [record] = bus.domains("payments")
    assert (record.max_depth, record.warn_depth, record.accepting) == (None, 500, False)
    assert record.keep == timedelta(hours=12)
    assert answer["done"] == ("payments has max_depth none, warn_depth 500, keep 12h, accepting no")
    with pytest.raises(InvalidOperationError, match="has changed since this was asked: its max"):
        act(bus, "configure", domain="payments", values=values, state=shown["state"])
    with pytest.raises(InvalidOperationError, match="nothing of domain payments changes"):
        act(bus, "configure", domain="payments", values=values)
    undo(bus, answer)
    [record] = bus.domains("payments")
    assert (record.max_depth, record.warn_depth, record.accepting) == (10, None, True)
    assert [each[:2] for each in remarks(bus, "payments")[1:]] == [
        *[("CONFIGURED", "ann"), ("CONFIGURED", "bob")]
    ]


def test_a_change_of_others_is_not_undone_with_ones_own(bus: CommandBus) -> None:
    answer = act(bus, "configure", domain="payments", values={"max_depth": 5})
    bus.configure("payments", max_depth=7)
    with pytest.raises(InvalidOperationError, match="its max depth was 5 and is 7 now"):
        undo(bus, answer)
    assert bus.domains("payments")[0].max_depth == 7


def test_a_batch_is_canceled(bus: CommandBus) -> None:
    batch_id = bus.create_batch("payments", [DEBIT] * 3, name="march")
    shown = preview(bus, "cancel_batch", batch_id=str(batch_id))
    assert (shown["title"], shown["count"]) == ("Cancel the batch march", 3)
    assert (shown["grave"], shown["undo"]) == (True, None)
    answer = act(bus, "cancel_batch", batch_id=str(batch_id), reason="wrong month")
    assert (answer["done"], answer["count"]) == ("3 commands of the batch canceled", 3)
    assert (answer["undo"], answer["undone"]) == (None, "This cannot be undone.")
    assert batch_of(bus, batch_id).canceled == 3
    [asked] = [e for e in bus.batch_audit(batch_id) if e.kind == "BATCH_CANCEL_REQUESTED"]
    assert (asked.operator, asked.message) == ("ann", "wrong month")
    with pytest.raises(InvalidOperationError, match="is over: it is CANCELED"):
        preview(bus, "cancel_batch", batch_id=str(batch_id))
    with pytest.raises(InvalidOperationError, match="cannot be canceled: it is CANCELED"):
        act(bus, "cancel_batch", batch_id=str(batch_id))
    with pytest.raises(BatchNotFoundError):
        preview(bus, "cancel_batch", batch_id=str(uuid4()))


def test_a_schedule_is_paused_resumed_and_run(bus: CommandBus) -> None:
    bus.schedules.add("hourly", "shop", "Count", every="1h")
    assert preview(bus, "pause_schedule", name="hourly")["touches"][0] == (
        "It sends shop/Count, every 1h."
    )
    paused = act(bus, "pause_schedule", name="hourly")
    assert bus.schedules.list()[0].paused
    with pytest.raises(InvalidOperationError, match="the schedule hourly is paused already"):
        act(bus, "pause_schedule", name="hourly")
    assert "Its next tick is at " in preview(bus, "resume_schedule", name="hourly")["touches"][-1]
    undo(bus, paused)
    assert not bus.schedules.list()[0].paused
    assert "No living node" in preview(bus, "run_schedule", name="hourly")["touches"][-1]
    answer = act(bus, "run_schedule", name="hourly", reason="now")
    [command] = bus.query("shop")
    assert answer["link"] == f"#/command/shop/{command.command_id}"
    assert answer["undo"]["body"]["target"] == {"commands": [["shop", str(command.command_id)]]}
    undo(bus, answer)
    assert bus.query("shop")[0].status == "CANCELED"
    kinds = [each for each in remarks(bus, "shop") if each[1]]
    assert kinds == [("SCHEDULE_PAUSED", "ann", "test"), ("SCHEDULE_RESUMED", "bob", "undone")]
    assert [e.operator for e in bus.audit("shop", command.command_id) if e.operator] == [
        *["ann", "bob"]
    ]
    with pytest.raises(InvalidOperationError, match="there is no schedule 'hourli'"):
        preview(bus, "run_schedule", name="hourli")


def test_a_removed_schedule_is_added_again_as_it_was(bus: CommandBus) -> None:
    options: dict[str, Any] = {"missed": "none", "jitter": 30, "priority": 0, "key": "box"}
    bus.schedules.add("sync", "mail", "Fetch", every="15m", data={"box": 3}, **options)
    bus.schedules.add("line", "mail", "Fetch", "0 3 * * *", timezone="Europe/Zurich")
    before = [(each.name, each.times, each.missed, each.jitter) for each in bus.schedules.list()]
    shown = preview(bus, "remove_schedule", name="sync")
    assert shown["touches"][-1] == "Nothing is sent by it any longer." and shown["grave"]
    answers = [act(bus, "remove_schedule", name=name) for name in ("sync", "line")]
    assert bus.schedules.list() == []
    for answer in answers:
        undo(bus, json.loads(json.dumps(answer)))
    records = bus.schedules.list()
    assert [(each.name, each.times, each.missed, each.jitter) for each in records] == before
    assert (records[1].priority, records[1].key) == (0, "box")
    assert bus.schedules.data("sync") == {"box": 3}
    assert [operator for _, operator, _ in remarks(bus, "mail")][-2:] == ["bob", "bob"]


def test_a_schedule_that_an_app_declares_is_removed_only_where_no_node_runs_it(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", NIGHTLY)
    shown = preview(bus, "remove_schedule", name="nightly")
    assert "when an app that declares it starts again" in shown["touches"][-1]
    connection.execute(f"INSERT INTO cmdbus.node (id, lease, renewed_at, types) {NODE}".encode())
    with pytest.raises(InvalidOperationError, match="pause it, or take it out of the app"):
        preview(bus, "remove_schedule", name="nightly")


def test_a_schedule_is_added_and_replaced(bus: CommandBus) -> None:
    shown = preview(bus, "add_schedule")
    names = [field["name"] for field in shown["fields"]]
    assert names[:3] == ["name", "domain", "type"] and "data" in names
    values = {"name": "sync", "domain": "mail", "type": "Fetch", "cron": "", "every": "15m"}
    added = act(bus, "add_schedule", values={**values, "data": '{"box": 1}', "timezone": ""})
    assert bus.schedules.data("sync") == {"box": 1}
    replacing = {"domain": "mail", "type": "Fetch", "cron": "0 3 * * *", "every": ""}
    assert "is replaced" in preview(bus, "add_schedule", name="sync")["touches"][-1]
    replaced = act(bus, "add_schedule", name="sync", values=replacing)
    assert bus.schedules.list()[0].cron == "0 3 * * *"
    undo(bus, replaced)
    assert bus.schedules.list()[0].every == 900 and bus.schedules.data("sync") == {"box": 1}
    undo(bus, added)
    assert bus.schedules.list() == []


@pytest.mark.parametrize(
    ("action", "body", "sentence"),
    [
        ("pause", {}, "target.domain must be a name, not None"),
        ("pause", {"target": []}, "target must be a JSON object, not "),
        ("pause", {"target": {"domain": 5}}, "target.domain must be a name, not 5"),
        ("pause", {"target": {"domain": "a b"}}, "domain must be a letter and up to 99 more"),
        ("pause", {"target": {"domains": "a"}}, "target has no 'domains': did you mean 'domain'?"),
        ("pause", {"targets": {}}, "the body has no 'targets': did you mean 'target'?"),
        ("pause", {"target": {"domain": "a"}, "values": {"x": 1}}, "values has no 'x'"),
        ("pause", {"target": {"domain": "a"}, "reason": 5}, "reason must be text of at most 2000"),
        ("cancel_batch", {"target": {"batch_id": "7"}}, "target.batch_id must be a UUID, not '7'"),
    ],
)
def test_a_wrong_body_gets_a_sentence(action: str, body: Mapping[str, Any], sentence: str) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        ACTIONS[action].perform(bus, body, "ann")


CONFIGURED = {"target": {"domain": "payments"}}


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"max_depth": "ten"}, "max_depth must be a whole number from 1 on, not 'ten'"),
    ({"max_depth": 0}, "max_depth must be a whole number from 1 on, not 0"),
    ({"max_depth": 2**40}, "max_depth must be a whole number from 1 to "),
    ({"max_depth": True}, "max_depth must be a whole number from 1 on, not True"),
    ({"keep": ""}, "keep must be a duration like 7d: it has no value for none"),
    ({"keep": "long"}, "keep must be a duration like 90s, 15m, 2h or 7d, not 'long'"),
    ({"keep": 1e300}, "keep is too long"),
    ({"keep": 10**400}, "keep must be a duration like 90s, 15m, 2h or 7d, not 1000"),
    ({"accepting": "maybe"}, "accepting must be True or False, not 'maybe'"),
    ({"paused": "yes"}, "values has no 'paused'"),
]


def test_wrong_settings_change_nothing(bus: CommandBus) -> None:
    for values, sentence in WRONG_SETTINGS:
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            ACTIONS["configure"].perform(bus, {**CONFIGURED, "values": values}, "ann")
    assert bus.domains("payments") == []


def test_values_of_forms_are_read_as_numbers_durations_and_json() -> None:
    names = ["a", "b", "c", "d", "e"]
    values = {"a": " 12 ", "b": "1.5h", "c": 3.0, "d": '{"x": [1]}', "e": " "}
    order = Order({"values": values}, [], names)
    assert (order.whole("a"), order.seconds("b"), order.whole("c")) == (12, 5400.0, 3)
    assert (order.json("d"), order.text("e"), order.whole("e")) == ({"x": [1]}, None, None)
    assert [order.seconds(name) for name in ("a", "c")] == [12.0, 3.0]
    with pytest.raises(ValueError, match="a is not JSON"):
        Order({"values": {"a": "{"}}, [], names).json("a")
