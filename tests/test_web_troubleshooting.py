"""What the page shows of commands that wait for an operator, and what operators do there."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from acting import act, preview
from handlers import found, kinds
from queries import move_to_troubleshooting
from web import ask

from cmdbus import CommandBus, CommandNotFoundError, InvalidOperationError, SendRequest, Status
from cmdbus.web import application
from cmdbus.web.actions import troubleshooting

HOSTILE = "<img src=x onerror=alert(1)> \u202e \u0007 \U0001f600"

Target = dict[str, Any]


def troubled(
    bus: CommandBus, dsn: str, count: int = 1, type_: str = "Debit", code: str = "GONE", **more: Any
) -> list[UUID]:
    request = SendRequest("payments", type_, {"n": 1}, **more)
    ids = bus.send_many([request] * count)
    assert move_to_troubleshooting(dsn, code, f"{code} {HOSTILE}") == count
    return ids


def read(bus: CommandBus, query: str = "") -> Any:
    reply = ask(application(bus), f"/api/troubleshooting{query}")
    assert reply.status == 200, reply.body
    return reply.json


def one(id_: UUID) -> dict[str, Any]:
    return {"commands": [["payments", str(id_)]]}


def test_groups_and_the_commands_of_one_are_shown_page_by_page(dsn: str, bus: CommandBus) -> None:
    ids = troubled(bus, dsn, 5, key="k")
    [busy] = troubled(bus, dsn, code="BUSY")
    value = read(bus)
    assert [(g["type"], g["error_code"], g["count"]) for g in value["groups"]] == [
        ("Debit", "BUSY", 1),
        ("Debit", "GONE", 5),
    ]
    assert (value["total"], value["complete"], value["restricted"]) == (6, True, False)
    assert value["groups"][1]["message"] == f"GONE {HOSTILE}"
    assert value["commands"][0]["command_id"] == str(busy)
    assert "data" not in value["commands"][0]
    group = "?domain=payments&type=Debit&error_code=GONE&limit=3"
    first = read(bus, group)
    second = read(bus, f"{group}&after={first['next'].replace('+', '%2B')}")
    seen = [c["command_id"] for page in (first, second) for c in page["commands"]]
    assert seen == [str(record.command_id) for record in bus.troubleshooting.list(key="k")]
    assert {c["reason"] for c in first["commands"]} == {"PERMANENT"} and second["next"] is None
    assert len(seen) == len(ids)
    reply = ask(application(bus), "/api/troubleshooting?after=x")
    assert (reply.status, "after must be the next" in reply.json["error"]) == (400, True)


def test_one_command_is_retried_with_its_operator_and_reason(dsn: str, bus: CommandBus) -> None:
    [id_] = troubled(bus, dsn)
    shown = preview(bus, "retry", **one(id_))
    assert shown["title"] == f"Retry payments/Debit {id_}"
    assert shown["touches"][0].startswith(f"It failed after 3 attempts with GONE: GONE {HOSTILE}.")
    assert (shown["count"], shown["grave"], shown["undo"]) == (1, False, None)
    answer = act(bus, "retry", **one(id_), reason="fixed", state=shown["state"])
    assert (answer["done"], answer["count"], answer["undo"]) == ("1 command retried", 1, None)
    *_, event = bus.audit("payments", id_)
    assert (event.kind, event.operator, event.message) == ("OPERATOR_RETRY", "ann", "fixed")
    for call in (preview, act):
        with pytest.raises(InvalidOperationError, match="cannot be retried: it is PENDING"):
            call(bus, "retry", **one(id_))
        with pytest.raises(CommandNotFoundError):
            call(bus, "retry", **one(uuid4()))


def test_data_is_edited_as_text_that_keeps_long_numbers(dsn: str, bus: CommandBus) -> None:
    [id_] = troubled(bus, dsn)
    values = {"data": ' {"amount": 12345678901234567890, "a": null} '}
    shown = preview(bus, "retry", **one(id_), values=values)
    assert "audit trail keeps both" in shown["touches"][1]
    act(bus, "retry", **one(id_), values=values)
    assert found(bus, id_).data == {"amount": 12345678901234567890, "a": None}
    assert bus.audit("payments", id_)[-1].details["data_before"] == {"n": 1}
    move_to_troubleshooting(dsn)
    act(bus, "retry", **one(id_), values={"data": "null"})
    assert found(bus, id_).data is None


def test_edited_data_may_be_as_long_as_any(dsn: str, bus: CommandBus) -> None:
    [id_] = troubled(bus, dsn)
    body = {"target": one(id_), "values": {"data": '"' + '\\"' * 500_000 + '"'}}
    page = application(bus)
    assert ask(page, "/api/preview/retry", method="POST", body=body).status == 200
    assert ask(page, "/api/preview/pause", method="POST", body=body).status == 413
    body["values"] = {"data": "x" * 5_000_000}
    assert ask(page, "/api/preview/retry", method="POST", body=body).status == 413


REFUSED = (
    ("{", "data is not JSON"),
    ("NaN", "data is nan: JSON has no such number"),
    ('"\\u0000"', "data contains a NUL character"),
    ('"\\ud800"', "half of a surrogate pair"),
    ("[" * 201 + "]" * 201, "nested deeper than 200"),
    ("[" * 100_000, "data is not JSON"),
    ('"' + "x" * 1_048_576 + '"', "at most 1048576"),
)


def test_edited_data_is_checked_as_that_of_a_send(dsn: str, bus: CommandBus) -> None:
    [id_] = troubled(bus, dsn)
    for data, sentence in REFUSED:
        with pytest.raises(ValueError, match=sentence):
            act(bus, "retry", **one(id_), values={"data": data})
    assert found(bus, id_).status is Status.IN_TROUBLESHOOTING_QUEUE


def test_data_that_was_read_before_another_retry_is_not_written(dsn: str, bus: CommandBus) -> None:
    [id_] = troubled(bus, dsn)
    state = {"latest_attempt": "2026-01-01T00:00:00+00:00"}
    with pytest.raises(InvalidOperationError, match="has changed since this was asked"):
        act(bus, "retry", **one(id_), values={"data": "1"}, state=state)
    assert kinds(bus, id_)[-1] == "MOVED_TO_TROUBLESHOOTING_QUEUE"


def test_commands_are_canceled_and_completed_with_their_replies(dsn: str, bus: CommandBus) -> None:
    first, second = troubled(bus, dsn, 2, reply_to="orders")
    shown = preview(bus, "cancel_trouble", **one(first))
    assert shown["grave"] and "reply" in shown["touches"][0]
    act(bus, "cancel_trouble", **one(first), reason="sent twice")
    assert found(bus, first).status is Status.CANCELED
    [field] = preview(bus, "complete", **one(second))["fields"]
    assert (field["name"], field["kind"], field["required"]) == ("result", "json", False)
    act(bus, "complete", **one(second), values={"result": '{"paid": true}'})
    assert (found(bus, second).status, found(bus, second).result) == (
        Status.COMPLETED,
        {"paid": True},
    )
    assert [reply.data["outcome"] for reply in bus.query("orders")] == ["SUCCESS", "CANCELED"]


def test_of_some_commands_those_that_have_moved_are_reported(dsn: str, bus: CommandBus) -> None:
    ids = troubled(bus, dsn, 3)
    target: Target = {"commands": [["payments", str(id_)] for id_ in [*ids, ids[0]]]}
    assert preview(bus, "retry", **target)["count"] == 3
    bus.troubleshooting.cancel("payments", ids[1], operator="bob")
    answer = act(bus, "retry", **target)
    assert answer["count"] == 2
    assert answer["done"].startswith("2 commands retried; 1 not: command ")
    assert answer["done"].endswith("it is CANCELED, and not in the troubleshooting queue")
    with pytest.raises(InvalidOperationError):
        act(bus, "retry", **target)


def test_all_of_a_group_are_retried_but_those_that_came_after_the_preview(
    dsn: str, bus: CommandBus
) -> None:
    troubled(bus, dsn, 4)
    troubled(bus, dsn, 1, "Credit")
    group = {"group": {"domain": "payments", "type": "Debit", "error_code": "GONE"}}
    shown = preview(bus, "retry", **group)
    assert shown["title"] == "Retry all 4 commands of payments of type Debit with GONE"
    assert (shown["count"], shown["grave"]) == (4, True)
    [late] = troubled(bus, dsn)
    answer = act(bus, "retry", **group, state=shown["state"], reason="fixed")
    assert answer["done"] == "4 commands retried"
    assert found(bus, late).status is Status.IN_TROUBLESHOOTING_QUEUE
    assert bus.troubleshooting.count() == 2
    assert act(bus, "cancel_trouble", match={"type": "Credit"})["count"] == 1
    assert act(bus, "complete", match={}, values={"result": "7"})["count"] == 1
    assert found(bus, late).result == 7
    with pytest.raises(InvalidOperationError, match="no command waits for an operator of payments"):
        preview(bus, "retry", **group)


def test_very_many_are_resolved_in_several_goes(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubled(bus, dsn, 5)
    monkeypatch.setattr(troubleshooting, "MAX_MATCHED", 2)
    shown = preview(bus, "retry", match={})
    assert shown["touches"][-1] == "The 2 oldest are first; then it can be repeated."
    answers = [act(bus, "retry", match={}, state=shown["state"]) for _ in range(3)]
    assert [answer["done"] for answer in answers] == [
        "2 commands retried; 3 of them still wait: repeat it",
        "2 commands retried; 1 of them still wait: repeat it",
        "1 command retried",
    ]


BAD: list[tuple[Target, Any, str]] = [
    ({}, None, "target must be one of commands, group and match"),
    ({"commands": [], "match": {}}, None, "target must be one of"),
    ({"commands": []}, None, "a list of 1 to 1000 commands"),
    ({"commands": [["payments", str(uuid4())]] * 1001}, None, "a list of 1 to 1000 commands"),
    ({"commands": "all"}, None, "a list of 1 to 1000 commands"),
    ({"commands": [["payments"]]}, None, "a command is its domain and its id"),
    ({"commands": [["pay'ments", str(uuid4())]]}, None, "domain must be a letter"),
    ({"commands": [["payments", "7"]]}, None, "command_id must be a UUID"),
    ({"group": {"domain": "payments"}}, None, "a group has a domain, a type and an error code"),
    ({"group": 7}, None, "target.group must be an object"),
    ({"match": {"text": "x"}}, None, "target.match must be an object with domain, type"),
    ({"match": {"since": "now"}}, None, "target.match.since must be a time with its offset"),
    ({"match": {"domain": 7}}, None, "domain must be a letter"),
    ({"match": {}}, {"data": "1"}, "other data is for one command"),
    ({"match": {}}, {"x": 1}, "values has no 'x'"),
    ({"others": 1}, None, "target has no 'others'"),
]


@pytest.mark.parametrize(("target", "values", "sentence"), BAD)
@pytest.mark.parametrize("call", [preview, act])
def test_what_names_no_commands_is_refused_with_a_sentence(
    call: Callable[..., Any], target: Target, values: Any, sentence: str
) -> None:
    bus = CommandBus("host=/nonexistent")
    with pytest.raises(ValueError, match=sentence):
        call(bus, "retry", **target, values=values)
