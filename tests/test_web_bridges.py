"""What the page shows of bridges, and what operators do to them there."""

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from acting import act, preview, undo
from bridges import bridge_round, move_all, send_messages
from eventually import eventually
from page_processes import page_server
from pgmq_queues import create_queues
from pgmq_queues import pgmq_dsn as pgmq_dsn
from test_web_operating_views import monitor_of, view
from visits import Visiting

from cmdbus import CommandBus, InvalidOperationError


@pytest.fixture(autouse=True)
def bridges(pgmq_dsn: str, bus: CommandBus, connection: psycopg.Connection) -> None:
    """Into shop, where a message has come, and out of shop.answers, whose queue was dropped."""
    create_queues(connection, "orders", "answers")
    options: dict[str, Any] = {"reply_to": "shop.answers", "batch_size": 7}
    bus.bridges.add("orders", "shop", "Order", **options, operator="eve", reason="a move")
    bus.bridges.add("answers", "shop.answers", direction="out")
    send_messages(connection, "orders", {"n": 1})
    bus.send("shop.answers", "Reply")
    connection.execute("SELECT pgmq.drop_queue('answers')")
    move_all(bridge_round(), connection)


def names(found: Any) -> list[str]:
    return [each["name"] for each in found["bridges"]]


def test_bridges_are_shown_with_what_they_moved_and_why_they_do_not(
    pgmq_dsn: str, bus: CommandBus
) -> None:
    out, in_ = view(bus, "bridges")["bridges"]
    assert (in_["queue"], in_["direction"], in_["domain"], in_["type"], in_["reply_to"]) == (
        *("orders", "in", "shop", "Order"),
        "shop.answers",
    )
    assert (in_["moved"], in_["refused"], in_["error"], in_["failed_at"]) == (1, 0, None, None)
    assert in_["moved_at"] and (in_["added"]["operator"], in_["added"]["reason"]) == (
        *("eve", "a move"),
    )
    assert (out["direction"], out["type"], out["moved_at"]) == ("out", None, None)
    assert "the queue 'answers' does not exist" in out["error"] and out["failed_at"]
    assert names(view(bus, "bridges?name=orders-in")) == ["orders-in"]
    assert names(view(bus, "bridges?domain=shop.answers")) == ["answers-out", "orders-in"]
    assert names(view(bus, "bridges?queue=answers")) == ["answers-out"]
    assert names(view(bus, "domain/shop")) == ["orders-in"]
    [entry] = [e for e in view(bus, "overview")["attention"] if e["what"].startswith("Bridge")]
    assert (entry["level"], entry["why"], entry["link"]) == (
        *("warn", out["error"]),
        "#/bridges?name=answers-out",
    )
    with monitor_of(pgmq_dsn) as monitor:
        assert len(view(monitor, "bridges")["bridges"]) == 2


def test_a_removed_bridge_is_added_again_as_it_was(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    [_, before] = bus.bridges.list()
    shown = preview(bus, "remove_bridge", name="orders-in")
    assert shown["touches"] == [
        "It moves messages of the queue orders into commands shop/Order.",
        "It has moved 1.",
        "Messages that come stay in their queue.",
    ]
    assert shown["grave"] and shown["undo"]
    answer = json.loads(json.dumps(act(bus, "remove_bridge", name="orders-in")))
    assert len(bus.bridges.list()) == 1
    with pytest.raises(InvalidOperationError, match="there is no bridge 'orders-in'"):
        preview(bus, "remove_bridge", name="orders-in")
    target = {"name": "orders-in", "domain": "shop"}
    assert preview(bus, "restore_bridge", **target)["touches"][0] == shown["touches"][0]
    again = undo(bus, answer)
    [_, after] = bus.bridges.list()
    terms = "name", "queue", "direction", "domain", "type", "reply_to", "batch_size"
    assert [getattr(after, term) for term in terms] == [getattr(before, term) for term in terms]
    assert (after.moved, after.operator, after.reason) == (0, "bob", "undone")
    kinds = [(event.kind, event.operator) for event in bus.domain_audit("shop")]
    assert kinds == [("BRIDGE_ADDED", "eve"), ("BRIDGE_REMOVED", "ann"), ("BRIDGE_ADDED", "bob")]
    with pytest.raises(InvalidOperationError, match="no bridge 'orders-in' of shop was removed"):
        undo(bus, answer)
    undo(bus, again)
    assert len(bus.bridges.list()) == 1


def test_a_bridge_that_was_replaced_meanwhile_is_not_removed(bus: CommandBus) -> None:
    state = preview(bus, "remove_bridge", name="orders-in")["state"]
    bus.bridges.remove("orders-in")
    bus.bridges.add("orders", "shop", "Refund")
    with pytest.raises(InvalidOperationError, match="has changed since this was asked"):
        act(bus, "remove_bridge", name="orders-in", state=state)
    assert len(bus.bridges.list()) == 2


def test_a_bridge_is_seen_removed_and_added_again(
    pgmq_dsn: str, bus: CommandBus, visiting: Visiting, tmp_path: Path
) -> None:
    with page_server(pgmq_dsn, tmp_path, "--operator", "ann") as page, visiting(page) as visit:
        visit.open("#/overview").sees("Bridge answers-out has been failing", "#view")
        visit.open("#/bridges").sees("the queue 'answers' does not exist", "#view")
        for width in (1280, 380):
            visit.tab.set_viewport_size({"width": width, "height": 800})
            visit.settles()
            assert visit.barriers() == []
            assert visit.read("document.documentElement.scrollWidth <= innerWidth")
        row = visit.find("tr", "orders-in")
        row.locator("button", has_text="Remove").click()
        visit.sees("Messages that come stay in their queue.", "dialog")
        visit.find("dialog button.danger", "Remove it").click()
        visit.sees("the bridge orders-in is removed", "#toasts")
        eventually(lambda: len(bus.bridges.list()) == 1)
        visit.find("#toasts button", "Add it again").click()
        eventually(lambda: len(bus.bridges.list()) == 2)
        visit.open("#/domain/shop").sees("from queue orders", "#view")
