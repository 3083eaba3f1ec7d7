"""The view of commands in a browser: filters, pages, what is selected, and what is new."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from benches.paging import fill
from queries import move_to_troubleshooting
from test_searching import commands as commands
from test_web_operating_views import monitor_of
from visits import Visit, Visiting
from web_server import serving

from cmdbus import CommandBus, SendRequest
from cmdbus.web import application

pytestmark = pytest.mark.long

ROW = "#view tbody tr"


@contextmanager
def page_of(visiting: Visiting, bus: CommandBus, view: str = "", **options: Any) -> Iterator[Visit]:
    """The view of commands with these filters in its address."""
    app = application(bus)
    try:
        with serving(app) as server:
            address = f"http://127.0.0.1:{server.address[1]}"
            with visiting(address, **options) as visit:
                visit.open(f"#/commands{view}")
                settled(visit)
                yield visit
    finally:
        app.close()


def shown(page: Visit) -> int:
    return page.tab.locator(ROW).count()


def count_of(page: Visit, number: int) -> None:
    from playwright.sync_api import expect

    expect(page.tab.locator(ROW)).to_have_count(number)


def settled(page: Visit) -> None:
    """What the address asks for is shown."""
    from playwright.sync_api import expect

    expect(page.tab.locator("#view .table")).to_have_count(1)
    expect(page.tab.locator("[aria-busy=true]")).to_have_count(0)


def confirm(page: Visit, label: str | re.Pattern[str]) -> None:
    dialog = page.find("dialog")
    dialog.get_by_label("Your name").fill("ann")
    dialog.get_by_role("button", name=label).click()


def test_commands_are_filtered_and_every_filter_is_in_the_address(
    visiting: Visiting, bus: CommandBus, commands: dict[str, UUID]
) -> None:
    with page_of(visiting, bus) as page:
        count_of(page, 8)
        page.press("/")
        page.tab.keyboard.type("ANN")
        page.press("Enter")
        count_of(page, 2)
        assert "text=ANN" in page.tab.url
        page.find("button", "In trouble").click()
        count_of(page, 1)
        page.sees("account of ANN is gone", "#view")
        page.find("a", "Clear filters").click()
        count_of(page, 8)
        page.press("/")
        page.tab.keyboard.type(str(commands["failed"]))
        page.press("Enter")
        count_of(page, 1)
        page.sees("NO_MONEY", "#view")
        page.tab.go_back()
        count_of(page, 8)
        domain = page.tab.get_by_label("Domain")
        domain.focus()
        page.tab.wait_for_selector("#known-domains option", state="attached")
        domain.fill("old")
        page.press("Enter")
        count_of(page, 2)
        page.open("#/commands?status=PENDING&error_code=NO")
        page.sees("Nothing matches")
        assert page.tab.get_by_label("Error code").input_value() == "NO"
        assert page.barriers() == []


def test_pages_are_turned_back_and_forth(visiting: Visiting, bus: CommandBus) -> None:
    bus.send_many([SendRequest("payments", "Debit", n) for n in range(250)])
    with page_of(visiting, bus) as page:
        count_of(page, 100)
        first = page.text(ROW)
        page.find("a", "Older").click()
        page.sees("First page", "#view")
        settled(page)
        count_of(page, 100)
        page.find("a", "Older").click()
        page.sees("Newer", "#view")
        count_of(page, 50)
        page.find("a", "Newer").click()
        count_of(page, 100)
        page.find("a", "First page").click()
        page.tab.wait_for_url(re.compile("#/commands$"))
        settled(page)
        assert page.text(ROW).split()[:3] == first.split()[:3]
        page.find("select[aria-label='Commands on a page']").select_option("1000")
        count_of(page, 250)
        page.find("thead input").click()
        page.sees("250 selected")
        page.open("#/commands?after=x")
        page.sees("after must be the `next` of a search", "[role=alert]")
        # Shown by the stream, or by a request of its own if that is quicker.
        page.complaints[:] = [text for text in page.complaints if "400" not in text]


def test_what_is_new_comes_by_itself_and_never_under_the_readers_hand(
    visiting: Visiting, bus: CommandBus
) -> None:
    with page_of(visiting, bus) as page:
        page.sees("No command has been sent yet")
        page.sees("bus.send(", "pre")
        [first] = bus.send_many([SendRequest("payments", "Debit")])
        count_of(page, 1)
        before = len(page.shifts())
        page.find(f"{ROW} input").click()
        page.sees("1 selected")
        bus.send("payments", "Credit")
        page.sees("1 newer command: show")
        bus.cancel("payments", first)
        page.sees("canceled", ROW)
        assert shown(page) == 1
        assert page.shifts()[before:] == []
        page.find("button", "1 newer command").click()
        count_of(page, 2)


def test_selected_commands_are_acted_on(dsn: str, visiting: Visiting, bus: CommandBus) -> None:
    failed = bus.send_many([SendRequest("payments", "Debit")] * 3)
    move_to_troubleshooting(dsn)
    waiting = bus.send_many([SendRequest("payments", "Debit", delay=3600)] * 3)
    with page_of(visiting, bus) as page:
        count_of(page, 6)
        page.press("j", "x", "j", "x", "j", "j", "x")
        page.sees("3 selected")
        page.find("button", "Cancel open: 2").click()
        page.sees("Cancel 2 commands", "dialog")
        assert page.barriers() == []
        confirm(page, "Cancel 2 commands")
        page.sees("2 commands canceled", "#toasts")
        page.sees("canceled", "#view")
        assert [event.operator for event in bus.audit("payments", waiting[2])] == [None, "ann"]
        page.find(f"{ROW} input >> nth=3").click()
        page.press("r")
        page.sees("Retry payments/Debit", "dialog")
        page.find("dialog button", "Retry it").click()
        page.sees("1 command retried", "#toasts")
        page.open("#/commands?status=PENDING&domain=payments")
        count_of(page, 2)
        page.find("button", "Cancel all that match").click()
        page.sees("Cancel all 2 commands of payments", "dialog")
        page.find("dialog button", "Cancel 2 commands").click()
        page.sees("Nothing matches")
        assert len(bus.search(status="CANCELED").commands) == 4
        page.open("#/commands?status=IN_TROUBLESHOOTING_QUEUE")
        page.find("thead input").check()
        page.sees("2 selected", "#view")
        page.find("button", "Complete all that match").click()
        page.find("dialog button", "Complete 2 commands").click()
        page.sees("2 commands completed", "#toasts")
    assert {each.status for each in bus.find([("payments", id_) for id_ in failed])} == {
        "COMPLETED",
        "CANCELED",
    }


def test_a_search_that_stops_goes_on_by_a_button(
    visiting: Visiting, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = bus.send("payments", "Rare")
    bus.send_many([SendRequest("payments", "Debit", n) for n in range(6000)])
    search = bus.search
    monkeypatch.setattr(bus, "search", lambda **given: search(**{**given, "max_rows": 1000}))
    with page_of(visiting, bus, "?type=Rare") as page:
        page.sees("The search has looked at about", "#view")
        page.sees("Nothing found so far")
        page.find("button", "Search on").click()
        page.tab.wait_for_selector(ROW)
        page.sees(str(rare)[-8:], ROW)


@pytest.mark.timeout(240)
def test_a_million_commands_are_searched_as_quickly_as_a_few(
    visiting: Visiting, bus: CommandBus, connection: psycopg.Connection
) -> None:
    fill(connection, "cmdbus", 1_000_000)
    with page_of(visiting, bus) as page:
        count_of(page, 100)
        page.sees("pending", ROW)
        for _ in range(3):
            page.find("a", "Older").click()
            settled(page)
            count_of(page, 100)
        page.open("#/commands?status=FAILED&rows=1000")
        count_of(page, 1000)
        page.open("#/commands?text=999000%7D")
        count_of(page, 1)
        page.open("#/commands?text=nowhere")
        page.sees("The search has looked at about", "#view")
        assert max(page.long_tasks(), default=0) < 500
    began = time.perf_counter()
    assert len(bus.search(status="FAILED").commands) == 100
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize(("scheme", "width"), [("light", 380), ("dark", 768)])
def test_it_fits_a_narrow_screen(
    visiting: Visiting, bus: CommandBus, commands: dict[str, UUID], scheme: str, width: int
) -> None:
    with page_of(visiting, bus, width=width, scheme=scheme) as page:
        count_of(page, 8)
        assert page.read("document.documentElement.scrollWidth") <= width
        rows = "(rows => rows.scrollWidth - rows.clientWidth)(document.querySelector('.rows'))"
        assert page.read(rows) <= 0
        assert page.barriers() == []


def test_hostile_texts_are_no_markup(dsn: str, visiting: Visiting, bus: CommandBus) -> None:
    hostile = "<img src=x onerror=alert(1)>\u202e"
    bus.send("payments", "Debit", key=hostile)
    move_to_troubleshooting(dsn, hostile, hostile)
    with page_of(visiting, bus) as page:
        page.sees("<img src=x onerror=alert(1)>\\u202e", "#view")
        page.open("#/commands?text=%3Cimg%20src%3Dx%3E")
        page.sees("Nothing matches")
        assert page.read("document.querySelectorAll('#view img').length") == 0


def test_a_monitors_page_finds_ids_and_asks_for_no_text(
    visiting: Visiting, dsn: str, commands: dict[str, UUID]
) -> None:
    with monitor_of(dsn) as monitor, page_of(visiting, monitor) as page:
        count_of(page, 8)
        page.press("/")
        page.tab.keyboard.type("ann")
        page.press("Enter")
        assert "whole id" in page.read("document.activeElement.validationMessage")
        assert "ann" not in page.tab.url
        page.find("[name=text]").fill(str(next(iter(commands.values()))))
        page.press("Enter")
        count_of(page, 1)
