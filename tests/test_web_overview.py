"""The views `overview` and `history` of a real bus."""

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from handlers import handling, running
from queries import move_to_troubleshooting
from test_history import EXECUTOR, record
from test_web_operating_views import monitor_of

from cmdbus import CommandBus, SendRequest
from cmdbus.web.json_values import encode
from cmdbus.web.query import BadQuery, NotFound
from cmdbus.web.view import read_path
from cmdbus.web.views import VIEWS


def view(bus: CommandBus, path: str) -> Any:
    return json.loads(encode(read_path(bus, VIEWS, path)))


def test_a_new_schema_has_an_overview_without_domains(bus: CommandBus) -> None:
    seen = view(bus, "overview")
    assert (seen["domains"], seen["attention"]) == ([], [])
    assert seen["nodes"] == {"live": 0, "gone": 0}
    assert seen["totals"]["waiting"] == 0
    assert view(bus, "history/minutes") == {"from": None, "step_seconds": 60, "domains": {}}


def test_the_overview_shows_each_domain_and_what_needs_an_operator(
    bus: CommandBus, dsn: str
) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 2)
    move_to_troubleshooting(dsn)
    bus.send_many([SendRequest("mail", "Send")] * 3)
    bus.configure("mail", max_depth=3)
    bus.pause("mail", operator="ann", reason="the server is full")
    seen = view(bus, "overview")
    counts = [(each["domain"], each["waiting"], each["in_trouble"]) for each in seen["domains"]]
    assert counts == [("mail", 3, 0), ("payments", 0, 2)]
    assert seen["totals"]["waiting"] == 3
    assert [each["what"] for each in seen["attention"]] == [
        "No fleet runs, and 3 commands wait",
        "mail is full",
        "payments: 2 commands in troubleshooting",
        "mail is paused",
    ]
    assert "by ann: the server is full" in seen["attention"][-1]["why"]


def test_a_monitor_sees_the_overview_without_reasons(bus: CommandBus, dsn: str) -> None:
    bus.pause("mail", operator="ann", reason="a secret")
    bus.send("mail", "Send")
    with monitor_of(dsn) as monitor:
        seen = view(monitor, "overview")
        assert seen["restricted"]
        assert [each["domain"] for each in seen["domains"]] == ["mail"]
        assert "secret" not in json.dumps(seen)
        assert view(monitor, "history")["points"]
        assert view(monitor, "history/minutes")["domains"] == {}


def test_a_domain_that_was_busy_within_the_hour_is_shown(bus: CommandBus, dsn: str) -> None:
    with running(dsn, handling()):
        for id_ in bus.send_many([SendRequest("payments", "Debit")] * 3):
            bus.wait("payments", id_)
    [seen] = view(bus, "overview")["domains"]
    assert (seen["domain"], seen["waiting"]) == ("payments", 0)
    assert seen["rate_out"] == pytest.approx(3 / 60, rel=0.1)
    sparks = view(bus, "history/minutes")["domains"]
    assert sparks["payments"]["out"][-1] == 3
    assert sparks["payments"]["out"][0] is None
    assert sparks[""]["out"] == sparks["payments"]["out"]


def test_a_history_has_null_where_nothing_is_known(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    [now] = connection.execute("SELECT clock_timestamp()").fetchone() or ()
    for minute, done in ((3, 10), (2, 30)):
        then = now - timedelta(minutes=minute)
        record(connection, {"mail": done}, now=then, age=240.0 - 60 * minute)
        EXECUTOR.value(connection, "sample_depths", now=then)
    seen = view(bus, "history?domain=mail")
    assert (seen["domain"], seen["span"], seen["step_seconds"]) == ("mail", "hour", 60)
    assert len(seen["points"]) == 60
    known = [point for point in seen["points"] if point["out"] is not None]
    assert [point["out"] for point in known] == [10, 20]
    assert [point["in"] for point in known] == [None, 20]
    assert [point["waiting"] for point in known] == [0, 0]
    assert len(view(bus, "history?span=day")["points"]) == 144
    assert len(view(bus, "history?span=week")["points"]) == 168


def test_questions_that_make_no_sense_are_refused(bus: CommandBus) -> None:
    for path in ("history?span=year", "history?domain=a%00b", "history?days=3", "overview?x=1"):
        with pytest.raises(BadQuery):
            view(bus, path)
    with pytest.raises(NotFound):
        view(bus, "history/else")
