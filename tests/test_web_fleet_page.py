"""The view `fleet` of the page in a browser, for fleets that a test describes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from page_servers import page_with
from visits import Visit, Visiting

from cmdbus import CommandBus
from cmdbus.web.query import Query

pytestmark = pytest.mark.long

_ID = "0190b3c4-0000-7000-8000-00000000000{}"


class FakeFleet:
    """What the view gives; tests change it while the page is open."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.has_slots = True
        self.asked: list[tuple[str, ...]] = []
        self.lock = threading.Lock()

    def read(self, bus: CommandBus, query: Query) -> object:
        with self.lock:
            self.asked.append(query.parts)
            if query.parts[1:] == ("stacks",):
                return {"stacks": {"1": 'Thread 0x1\n  File "<b>evil</b>"'}}
            if query.parts:
                return {"node": next(n for n in self.nodes if n["node"] == query.parts[0])}
            nodes = self.nodes
            if not self.has_slots:
                nodes = [
                    {**n, "seats": [{**seat, "slots": None} for seat in n["seats"]]} for n in nodes
                ]
            return {"nodes": nodes, "has_slots": self.has_slots}


def at(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def busy(
    number: int, *, since: float = -5, due: float = 25, type_: str = "Charge"
) -> dict[str, Any]:
    return {
        "slot": number,
        "phase": "running",
        "since": at(since),
        "due": at(due),
        "command_id": _ID.format(number % 10),
        "domain": "payments",
        "type": type_,
        "attempt": 1,
    }


def seat(number: int, slots: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    values = {
        "seat": number,
        "pid": 100 + number,
        "generation": 1,
        "health": "HEALTHY",
        "reasons": [],
        "since": at(-60),
        "memory": 50 * 2**20,
        "threads": 4,
        "min_threads": 4,
        "max_threads": 4,
        "phases": "".join("r" if "command_id" in slot else "i" for slot in slots),
        "slots": slots,
    }
    return values | more


def idle(number: int) -> dict[str, Any]:
    return {"slot": number, "phase": "idle"}


def node(number: int, seats: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    values = {
        "node": str(2**62 + number),
        "name": "shop",
        "host": f"host-{number}",
        "published_at": at(0),
        "gone": False,
        "stopped": False,
        "pid": 10,
        "state": "running",
        "started_at": at(-3600),
        "version": "0.1.0",
        "python": "3.12.1",
        "schema": 1,
        "postgresql": 170002,
        "tags": [],
        "priorities": [0, 10],
        "age_share": 0,
        "wanted": len(seats),
        "memory": 300 * 2**20,
        "restarts": {},
        "undead": 0,
        "seats": seats,
        "steward": {"pid": 11, "generation": 1, "listening": True, "armed": True},
        "quarantine": None,
        "exits": [],
        "cut": False,
    }
    return values | more


KILL = {
    "number": 1,
    "at": at(-30),
    "role": "worker",
    "seat": 1,
    "pid": 99,
    "generation": 1,
    "verdict": "hung",
    "signal": "SIGKILL",
    "code": None,
    "reason": "was killed: its main thread hung",
    "commands": [
        {
            "domain": "payments",
            "type": "<i>Hang</i>",
            "command_id": _ID.format(9),
            "attempt": 2,
            "charged": True,
        }
    ],
}


@contextmanager
def page_of(visiting: Visiting, fleet: FakeFleet, **options: Any) -> Iterator[Visit]:
    with page_with(visiting, {"fleet": fleet.read}, {}, **options) as visit:
        yield visit


def test_a_fleet_is_shown_and_goes_on_by_itself(visiting: Visiting) -> None:
    fleet = FakeFleet()
    fleet.nodes = [
        node(
            1,
            [
                seat(0, [busy(0), busy(1, since=-100, due=-5), idle(2)]),
                seat(1, [idle(0)], health="DEGRADED", reasons=["11 failures in a row"]),
            ],
            exits=[KILL],
            restarts={"hung": 1},
        ),
        node(2, [seat(0, [idle(0)])], gone=True),
    ]
    with page_of(visiting, fleet) as page:
        page.open("#/fleet").sees("shop on host-1", "section.node h2")
        page.sees("11 failures in a row", "section.node")
        page.sees("PostgreSQL 17.2", "section.node")
        page.sees(r"2 of 4", ".numbers")
        late = page.find("a.slot-late")
        assert late.get_attribute("href") == f"#/command/payments/{_ID.format(1)}"
        page.sees("Charge", "a.slot-late")
        before = page.find("a.slot .slot-time").inner_text()
        page.tab.wait_for_function(
            "before => document.querySelector('a.slot .slot-time').textContent !== before",
            arg=before,
        )
        # What is of an exit is text.
        page.find("details summary", "kill or crash").click()
        page.sees("its main thread hung", ".exits")
        page.sees("<i>Hang</i>", ".exits")
        page.find(".exits button", "Stack").click()
        page.sees("<b>evil</b>", ".exits pre")
        page.sees("1 node is gone")
        # A thread that has taken another command has another link; the cells beside it stay.
        page.read("() => { window.kept = document.querySelectorAll('a.slot')[1] }")
        with fleet.lock:
            fleet.nodes = [
                node(1, [seat(0, [busy(3, type_="Other"), busy(1, since=-102, due=-7), busy(2)])])
            ]
            fleet.nodes[0]["seats"][0]["slots"][0]["slot"] = 0
        page.sees("Other", "a.slot")
        assert page.read("() => window.kept.isConnected")
        page.sees("3 of 3", ".numbers")
        page.find("input[type=search]").fill("nothing of this name")
        page.sees("No node matches")


def test_a_node_that_publishes_no_more_is_silent_before_it_is_gone(visiting: Visiting) -> None:
    fleet = FakeFleet()
    fleet.nodes = [
        node(1, [seat(0, [idle(0)])]),
        node(2, [seat(0, [idle(0)])], published_at=at(-8)),
        node(3, [seat(0, [idle(0)])], published_at=at(-30), steward=None),
    ]
    with page_of(visiting, fleet) as page:
        page.open("#/fleet")
        page.find("section.node", "host-2").wait_for()
        assert not page.find("section.node .tag:visible", "silent").count()
        with fleet.lock:
            fleet.nodes = [{**fleet.nodes[0], "published_at": at(0)}, *fleet.nodes[1:]]
        page.find("section.node.late", "host-2").wait_for(timeout=20_000)
        page.sees("silent", "section.node.late")
        # One that polls publishes once a minute.
        assert not page.tab.locator("section.node.late", has_text="host-3").count()
        with fleet.lock:
            fleet.nodes = [{**n, "published_at": at(0)} for n in fleet.nodes]
        page.find("section.node:not(.late)", "host-2").wait_for()


def test_an_empty_fleet_says_what_to_do(visiting: Visiting) -> None:
    with page_of(visiting, FakeFleet()) as page:
        page.open("#/fleet").sees("cmdbus-supervise --app")


def test_the_threads_of_many_are_squares_until_a_node_is_opened(visiting: Visiting) -> None:
    fleet = FakeFleet()
    fleet.has_slots = False
    fleet.nodes = [
        node(n, [seat(s, [busy(t) for t in range(8)]) for s in range(16)]) for n in range(40)
    ]
    with page_of(visiting, fleet) as page:
        page.open("#/fleet").sees("5,120 of 5,120", ".numbers")
        assert page.read("() => document.querySelectorAll('.slots.small i').length") == 5120
        took = min(page.read(_UPDATE) for _ in range(5))
        assert took < 200, f"{took} ms for an update"
        page.find("section.node button", "Show threads").click()
        page.sees("Charge", "section.node a.slot")
        assert page.read("() => document.querySelectorAll('a.slot').length") == 128
        page.find("section.node button", "Hide threads").click()
        page.tab.wait_for_function("() => !document.querySelector('a.slot')")


#: Milliseconds that all of 40 nodes take that have published anew.
_UPDATE = """async () => {
  const value = await (await fetch("api/fleet")).json();
  const nodes = [...document.querySelectorAll("section.node")];
  const began = performance.now();
  nodes.forEach((element, index) => element.update(
    {...value.nodes[index], published_at: new Date().toISOString()}));
  document.body.offsetHeight;
  return performance.now() - began;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_screen_and_everyone_can_read_it(visiting: Visiting, scheme: str) -> None:
    fleet = FakeFleet()
    late, sick = busy(0, since=-90, due=-5), {"health": "CRITICAL", "reasons": ["4 stuck threads"]}
    fleet.nodes = [node(1, [seat(0, [busy(0), idle(1)]), seat(1, [late], **sick)], exits=[KILL])]
    with page_of(visiting, fleet, width=380, scheme=scheme) as page:
        page.open("#/fleet").sees("Charge", "a.slot")
        assert page.read("() => document.documentElement.scrollWidth <= innerWidth")
        page.find("details summary").click()
        assert not page.barriers()
