"""What the page shows of all nodes."""

from typing import Any
from uuid import UUID

import pytest
from handlers import connect
from published import NODE, publish
from queries import rows, scalar
from roles import refused, role
from web import ask

from cmdbus import CommandBus, DatabaseUnavailableError
from cmdbus.web import application
from cmdbus.web.fleet_watch import watch_fleet
from cmdbus.web.views import fleet


@pytest.fixture
def published(dsn: str) -> None:
    with connect(dsn) as connection:
        publish(connection, "<b>")


def value(bus: CommandBus, path: str = "", status: int = 200) -> Any:
    reply = ask(application(bus), f"/api/fleet{path}")
    assert reply.status == status, reply.body
    return reply.json


def test_a_fleet_without_nodes_is_empty_and_watched(bus: CommandBus, dsn: str) -> None:
    assert value(bus) == {"nodes": [], "has_slots": True}
    watched = "SELECT count(*) FROM cmdbus.fleet_watch WHERE watched_until > clock_timestamp()"
    assert rows(dsn, watched) == [(1,)]


@pytest.mark.usefixtures("published")
def test_a_node_is_shown_with_its_threads_and_exits(bus: CommandBus) -> None:
    [node] = value(bus)["nodes"]
    assert (node["node"], node["name"], node["host"]) == (str(NODE), "shop", "<b>")
    assert (node["state"], node["gone"], node["memory"]) == ("running", False, 5 * 2**20)
    [seat] = node["seats"]
    assert seat["phases"] == "ri"
    running, idle = seat["slots"]
    assert (running["domain"], running["type"]) == ("domain1", "Odd")
    assert running["command_id"] == str(UUID(int=1)) and running["due"] == running["since"]
    assert idle == {"slot": 1, "phase": "idle"}
    [exited] = node["exits"]
    assert (exited["signal"], exited["commands"][0]["type"]) == ("SIGSEGV", "Odd")
    assert value(bus, f"/{NODE}")["node"] == node
    assert value(bus, f"/{NODE}/stacks") == {"stacks": {"1": "a stack"}}


@pytest.mark.usefixtures("published")
def test_many_threads_are_shown_one_node_at_a_time(
    bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_MAX_SLOTS", 1)
    found = value(bus)
    [seat] = found["nodes"][0]["seats"]
    assert (found["has_slots"], seat["phases"], seat["slots"]) == (False, "ri", None)
    assert len(value(bus, f"/{NODE}")["node"]["seats"][0]["slots"]) == 2


def test_a_database_that_is_away_is_waited_for_once() -> None:
    with (
        CommandBus("host=127.0.0.1 port=1") as bus,
        pytest.raises(DatabaseUnavailableError, match="refused"),
    ):
        watch_fleet(bus)


def test_what_is_no_node_is_refused(bus: CommandBus) -> None:
    value(bus, "/5", 404)
    value(bus, "/x", 400)
    value(bus, "/99999999999999999999999", 400)
    value(bus, "/9999999999999999999", 400)
    value(bus, "/5/else", 404)
    value(bus, "?domain=x", 400)


@pytest.mark.usefixtures("published")
def test_a_role_that_may_not_watch_sees_what_is_published(dsn: str) -> None:
    with role(dsn, "monitor") as monitor, connect(dsn) as owner:
        name = scalar(monitor, "SELECT current_user")
        owner.execute(f"REVOKE ALL ON FUNCTION cmdbus.watch_fleet FROM {name}".encode())
        assert refused(monitor, "SELECT cmdbus.watch_fleet(10)")

        class AsMonitor(CommandBus):
            def watch_fleet(self, seconds: float = 10.0) -> None:
                self._connections.rows(monitor, "watch_fleet", "monitor", seconds=seconds)

        with AsMonitor(dsn) as own:
            assert len(value(own)["nodes"]) == 1
