"""The page's search for commands, and what operators do with what they find."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from acting import act, preview, undo
from queries import claim_by_hand, move_to_troubleshooting
from test_searching import commands as commands
from test_web_operating_views import monitor_of
from web import ask

from cmdbus import CommandBus, CommandNotFoundError, InvalidOperationError, SendRequest
from cmdbus.web import application
from cmdbus.web.query import parse_view
from cmdbus.web.views import VIEWS


def read(bus: CommandBus, query: str = "") -> Any:
    reply = ask(application(bus), f"/api/commands{query}")
    assert reply.status == 200, reply.body
    return reply.json


def names(value: Any, ids: dict[str, UUID]) -> list[str]:
    known = {str(id_): name for name, id_ in ids.items()}
    return [known[each["command_id"]] for each in value["commands"]]


def test_commands_are_shown_page_by_page(bus: CommandBus, commands: dict[str, UUID]) -> None:
    first = read(bus, "?limit=3")
    assert names(first, commands) == ["ready", "running", "limited"]
    assert (first["stopped"], first["restricted"]) == (None, False)
    second = read(bus, f"?limit=100&after={first['next']}")
    assert names(second, commands) == ["scheduled", "trouble", "canceled", "failed", "completed"]
    assert second["next"] is None and "data" not in second["commands"][0]
    failed, finished = second["commands"][1], second["commands"][-1]
    assert failed["error_message"] == "account of ANN is gone"
    assert finished["waited"] == 0 and finished["ran"] > 0
    assert (first["commands"][1]["waited"] > 0, first["commands"][1]["ran"]) == (True, None)


def test_commands_are_shown_by_each_condition(bus: CommandBus, commands: dict[str, UUID]) -> None:
    for query, expected in (
        ("domain=old&status=FAILED", ["failed"]),
        ("type=Credit", ["limited", "failed"]),
        ("error_code=GONE", ["trouble"]),
        ("key=other", ["ready"]),
        ("text=ann", ["trouble", "completed"]),
        (f"id={commands['ready']}", ["ready"]),
        (f"correlation={commands['completed']}&status=PENDING", ["ready"]),
        (f"batch={uuid4()}", []),
        ("until=2026-01-01T00:00:00%2B00:00", []),
    ):
        assert names(read(bus, "?" + query), commands) == expected, query
    assert read(bus, "/names") == {
        "domains": {"old": ["Credit", "Debit"], "payments": ["Credit", "Debit"]}
    }


#: With the status of the answer, and what it says.
WRONG = [
    ("?status=DONE", 400, "status must be one of PENDING, "),
    ("?id=7", 400, "id must be"),
    ("?after=7", 400, "after must be the `next` of a search"),
    ("?limit=1001", 400, "limit must be"),
    ("?nothing=1", 400, "nothing"),
    ("/x", 404, "commands are found by conditions"),
]


def test_wrong_conditions_are_refused_in_a_sentence(bus: CommandBus) -> None:
    for query, status, sentence in WRONG:
        reply = ask(application(bus), f"/api/commands{query}")
        assert (reply.status, sentence in reply.json["error"]) == (status, True), query


def test_a_search_that_stops_says_so(bus: CommandBus) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 3)
    page = bus.search(type="Credit", max_seconds=1e-9)
    assert page.stopped
    _, query = parse_view("commands?type=Credit")
    value: Any = VIEWS["commands"](_Stopping(bus), query)  # type: ignore[arg-type]
    assert value["stopped"]["read"] == 1000 and value["next"]
    assert value["stopped"]["sentence"].startswith("The search has stopped after about 1,000 ")


class _Stopping:
    """A bus whose searches have no time."""

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus

    def search(self, **conditions: Any) -> Any:
        return self._bus.search(**{**conditions, "max_seconds": 1e-9})


def named(*ids: UUID) -> dict[str, Any]:
    return {"commands": [["payments", str(id_)] for id_ in ids]}


def test_commands_that_wait_are_canceled(bus: CommandBus) -> None:
    first, *rest = bus.send_many([SendRequest("payments", "Debit")] * 4)
    shown = preview(bus, "cancel", **named(first))
    assert shown["title"] == f"Cancel payments/Debit {first}" and shown["fields"] == []
    assert (shown["count"], shown["grave"], shown["undo"]) == (1, True, None)
    answer = act(bus, "cancel", **named(first), state=shown["state"], reason="sent twice")
    assert (answer["done"], answer["count"]) == ("1 command canceled", 1)
    event = bus.audit("payments", first)[-1]
    assert (event.kind, event.operator, event.message) == ("CANCELED", "ann", "sent twice")
    with pytest.raises(InvalidOperationError, match=f"{first} is CANCELED"):
        preview(bus, "cancel", **named(first))
    shown = preview(bus, "cancel", **named(first, *rest))
    assert shown["touches"][-1] == "1 command stays as it is."
    answer = act(bus, "cancel", **named(first, *rest))
    assert answer["done"].startswith("3 commands canceled; 1 not: command ")
    with pytest.raises(CommandNotFoundError):
        preview(bus, "cancel", **named(uuid4()))


def test_a_command_in_progress_is_canceled_where_that_is_wanted(dsn: str, bus: CommandBus) -> None:
    running, waiting = bus.send_many([SendRequest("payments", "Debit")] * 2)
    claim_by_hand(dsn, running)
    shown = preview(bus, "cancel", **named(running, waiting))
    assert [each["name"] for each in shown["fields"]] == ["running"]
    assert shown["fields"][0]["value"] is False
    assert preview(bus, "cancel", **named(running))["fields"][0]["value"] is True
    answer = act(bus, "cancel", **named(running, waiting), values={"running": False})
    assert answer["count"] == 1 and "is in progress" in answer["done"]
    assert act(bus, "cancel", **named(running), values={"running": True})["count"] == 1
    record = bus.get("payments", running)
    assert record and record.status == "CANCELED"


def test_a_command_that_has_moved_since_the_preview_stays(dsn: str, bus: CommandBus) -> None:
    id_ = bus.send("payments", "Debit")
    shown = preview(bus, "cancel", **named(id_))
    claim_by_hand(dsn, id_)
    with pytest.raises(InvalidOperationError, match="was PENDING and is IN_PROGRESS now"):
        act(bus, "cancel", **named(id_), state=shown["state"], values={"running": True})


def test_a_command_is_rescheduled_and_given_back_its_time(bus: CommandBus) -> None:
    id_ = bus.send("payments", "Debit", delay=3600)
    before = bus.get("payments", id_)
    shown = preview(bus, "reschedule", **named(id_))
    assert shown["title"] == f"Reschedule payments/Debit {id_}" and shown["undo"]
    assert [each["name"] for each in shown["fields"]] == ["now", "run_at", "priority"]
    values = {"now": True, "run_at": None, "priority": "high"}
    answer = act(bus, "reschedule", **named(id_), values=values, state=shown["state"])
    after = bus.get("payments", id_)
    assert before and after and after.priority == 0
    assert after.due_at < datetime.now(UTC) + timedelta(seconds=1)
    assert (answer["done"], answer["undone"]) == ("1 command rescheduled", None)
    bus.reschedule("payments", id_, priority="low", operator="eve")
    with pytest.raises(InvalidOperationError, match="its priority was 0 and is 10 now"):
        undo(bus, answer)
    bus.reschedule("payments", id_, priority="high", operator="eve")
    undo(bus, answer)
    again = bus.get("payments", id_)
    assert again and (again.priority, again.due_at) == (before.priority, before.due_at)
    event = bus.audit("payments", id_)[-1]
    assert (event.kind, event.operator) == ("RESCHEDULED", "bob")


def test_many_commands_are_rescheduled(dsn: str, bus: CommandBus) -> None:
    ids = bus.send_many([SendRequest("payments", "Debit")] * 3)
    claim_by_hand(dsn, ids[0])
    shown = preview(bus, "reschedule", **named(*ids))
    assert (shown["count"], shown["undo"]) == (2, None)
    run_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    answer = act(bus, "reschedule", **named(*ids), values={"run_at": run_at, "priority": "3"})
    assert answer["count"] == 2 and "; 1 not: command " in answer["done"]
    assert {each.priority for each in bus.find([("payments", id_) for id_ in ids[1:]])} == {3}
    with pytest.raises(InvalidOperationError, match="only a command that waits"):
        preview(bus, "reschedule", **named(ids[0]))


WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing is to be changed"),
    ({"now": True, "run_at": "2030-01-01T00:00:00Z"}, "choose either a time or"),
    ({"run_at": "tomorrow"}, "run_at must be a time with its offset"),
    ({"priority": "urgent"}, "priority must be"),
    ({"priority": 11}, "priority must be"),
    ({"unknown": 1}, "values has no 'unknown'"),
]


def test_wrong_values_change_nothing(bus: CommandBus) -> None:
    id_ = bus.send("payments", "Debit")
    for values, sentence in WRONG_VALUES:
        with pytest.raises(ValueError, match=sentence):
            act(bus, "reschedule", **named(id_), values=values)
    assert len(bus.audit("payments", id_)) == 1


def test_all_that_match_are_canceled_but_for_those_sent_since(dsn: str, bus: CommandBus) -> None:
    bus.send_many([SendRequest("payments", "Debit", key="k")] * 3)
    move_to_troubleshooting(dsn)
    bus.send_many([SendRequest("payments", "Debit", key="k")] * 5)
    bus.send("payments", "Debit", delay=60, key="k")
    bus.send("payments", "Credit", key="k")
    match = {"domain": "payments", "type": "Debit", "key": "k"}
    shown = preview(bus, "cancel_all", match=match)
    assert (shown["count"], shown["grave"]) == (6, True)
    assert shown["title"] == "Cancel all 6 commands of payments of type Debit of key k"
    bus.send("payments", "Debit", key="k")
    answer = act(bus, "cancel_all", match=match, state=shown["state"], reason="wrong template")
    assert (answer["done"], answer["count"]) == ("6 commands canceled", 6)
    assert preview(bus, "cancel_all", match=match)["count"] == 1
    [event] = [
        bus.audit("payments", each.command_id)[-1]
        for each in bus.search("payments", "CANCELED", limit=1).commands
    ]
    assert (event.operator, event.message) == ("ann", "wrong template")
    with pytest.raises(InvalidOperationError, match="no command of mail waits"):
        preview(bus, "cancel_all", match={"domain": "mail"})
    wrongs: list[Any] = [{}, {"type": "Debit"}, {"domain": "payments", "text": "x"}, None, []]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"name it|target\.match must be"):
            preview(bus, "cancel_all", match=wrong)


def test_a_monitors_page_searches_without_keys_and_messages(
    dsn: str, bus: CommandBus, commands: dict[str, UUID]
) -> None:
    with monitor_of(dsn) as monitor:
        value = read(monitor, "?error_code=GONE")
        assert names(value, commands) == ["trouble"] and value["restricted"]
        assert (value["commands"][0]["key"], value["commands"][0]["error_message"]) == (None, None)
        assert len(read(monitor)["commands"]) == len(commands)
        for private in ("text=ann", "key=k"):
            reply = ask(application(monitor), f"/api/commands?{private}")
            assert reply.status == 403 and "roles of the kind operator" in reply.json["error"]
