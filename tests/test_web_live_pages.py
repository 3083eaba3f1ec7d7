"""The operators' page in a browser while things happen: fleets, outages, several viewers."""

import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from eventually import eventually
from fleet import kill
from page_processes import page_server
from proxy import Proxy
from shop_days import Shop, shop_fleet
from visits import Visit, Visiting

from cmdbus import CommandBus

pytestmark = pytest.mark.long

_HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
#: Notes when the overview was read, of each reading that the page hears of.
_HEARD = """
window.heard = [];
window.EventSource = class extends EventSource {
  constructor(...given) {
    super(...given);
    this.addEventListener("view", ({data}) => {
      const {view, at} = JSON.parse(data);
      if (view === "overview") heard.push(at);
    });
  }
};
"""
#: The number of readings that are compared, and the seconds in which they come on a busy machine:
#: the longer one takes, the later is the next one.
_READINGS, _READ_WITHIN_S = 4, 120.0
#: Seconds without a request after which nothing is read any more.
_QUIET_S = 5.0


def test_the_page_says_that_postgresql_is_away_and_goes_on_by_itself(
    visiting: Visiting, shop: Shop, tmp_path: Path
) -> None:
    with (
        Proxy(shop.dsn) as proxy,
        page_server(proxy.dsn, tmp_path) as page,
        visiting(page) as visit,
        CommandBus(shop.dsn) as bus,
    ):
        visit.open("#/commands").sees("Newsletter", "#view")
        visit.sees("live", "#state")
        with proxy.away():
            visit.sees("PostgreSQL is away since", "#state")
            visit.sees("Newsletter", "#view")
            bus.send("payments", "SentMeanwhile")
        visit.sees("live", "#state")
        visit.open("#/commands?type=SentMeanwhile").sees("PENDING".capitalize(), "#view")


def test_a_page_that_is_opened_while_postgresql_is_away_shows_its_view_once_it_is_back(
    visiting: Visiting, shop: Shop, tmp_path: Path
) -> None:
    with (
        Proxy(shop.dsn) as proxy,
        page_server(proxy.dsn, tmp_path) as page,
        visiting(page) as visit,
    ):
        with proxy.away():
            visit.open("#/batches").sees("PostgreSQL is away")
        visit.sees("November newsletter", "#view")
        visit.excuse("503")


def cost_of_reading(visit: Visit, requests: list[float]) -> int:
    """The number of requests between two readings of the overview, the smallest of some: there may
    be readings between them of which the page did not hear, or of what is read rarely."""
    before = len(visit.read("heard"))
    eventually(lambda: len(visit.read("heard")) >= before + _READINGS, _READ_WITHIN_S)
    times = [datetime.fromisoformat(at).timestamp() for at in visit.read("heard")[before:]]
    return min(sum(begin < at <= end for at in requests) for begin, end in pairwise(times))


@pytest.mark.timeout(600)
def test_two_viewers_cost_one_set_of_queries_and_a_hidden_tab_none(
    visiting: Visiting, shop: Shop, tmp_path: Path
) -> None:
    """A reading and the requests for it are in order, by the clock of this machine."""
    requests = list[float]()

    def note(data: bytes) -> bytes:
        requests.append(time.time())
        return data

    def is_quiet() -> bool:
        before, end = len(requests), time.monotonic() + _QUIET_S
        eventually(lambda: time.monotonic() > end)
        return len(requests) == before

    with (
        Proxy(shop.dsn, note) as proxy,
        page_server(proxy.dsn, tmp_path) as page,
        visiting(page) as first,
        visiting(page) as second,
    ):
        for visit in (first, second):
            visit.tab.add_init_script(_HEARD)
        first.open("#/overview").sees("payments", "#view")
        of_one = cost_of_reading(first, requests)
        assert of_one > 0
        second.open("#/overview").sees("payments", "#view")
        second.sees("live", "#state")
        assert cost_of_reading(second, requests) <= 1.5 * of_one
        assert len({*first.read("heard")} & {*second.read("heard")}) > 1, "they share readings"
        for visit in (first, second):
            visit.read(_HIDE, True)
            visit.sees("paused", "#state")
        until_paused = len(requests)
        eventually(is_quiet, _READ_WITHIN_S)
        assert len(requests) - until_paused <= _READINGS * of_one
        first.read(_HIDE, False)
        first.sees("live", "#state")
        eventually(lambda: not is_quiet())


def test_many_windows_of_one_browser_all_show_what_happens(
    visiting: Visiting, shop: Shop, tmp_path: Path
) -> None:
    """It opens six connections to a server: as many streams would leave it none."""
    with (
        page_server(shop.dsn, tmp_path) as page,
        visiting(page) as visit,
        CommandBus(shop.dsn) as bus,
    ):
        windows = [visit, *(Visit(visit.tab.context.new_page(), page) for _ in range(8))]
        for window in windows:
            window.open("#/commands?type=SentMeanwhile").sees("Nothing matches", "#view")
        bus.send("payments", "SentMeanwhile")
        for window in windows:
            window.sees("Pending", "#view")
            window.sees("live", "#state")
            assert not window.complaints


def test_a_fleet_is_shown_while_it_runs_is_killed_and_comes_back(
    visiting: Visiting, dsn: str, tmp_path: Path
) -> None:
    with (
        shop_fleet(dsn, tmp_path / "fleet") as fleet,
        page_server(dsn, tmp_path) as page,
        visiting(page) as visit,
        CommandBus(dsn) as bus,
    ):
        visit.open("#/fleet").sees("No node has run here", "#view")
        fleet.start()
        pids = fleet.wait_until_ready()
        visit.sees(str(fleet.pid), "#view")
        for pid in pids.values():
            visit.sees(str(pid), "#view")
        bus.send("reports", "Export", {"seconds": 600})
        visit.sees("Export", "#view")
        (busy,) = eventually(lambda: fleet.executing("Export"))
        kill(busy)
        successors = fleet.await_successors([busy])
        visit.sees("SIGKILL", "#view")
        for pid in successors.values():
            visit.sees(str(pid), "#view")
        fleet.end()
        fleet.start()
        fleet.wait_until_ready()
        visit.sees(str(fleet.pid), "#view")
        fleet.end()  # a command that lasts would hold a stop up
