"""The view `overview` of the page in a browser, for domains that a test describes."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from page_servers import page_with
from visits import Visit, Visiting

from cmdbus import CommandBus
from cmdbus.web.action import Action
from cmdbus.web.query import Query

pytestmark = pytest.mark.long

_NONE = {"p50": None, "p95": None, "p99": None}
_HOSTILE = '"><img src=x onerror=alert(1)>'


def domain(name: str, **fields: Any) -> dict[str, Any]:
    states = dict.fromkeys(("waiting", "limited", "later", "running", "in_trouble"), 0)
    rest = {"paused": False, "accepting": True, "oldest_age": 0.0, "rate_in": 0.0, "rate_out": 0.0}
    times = {"waited": _NONE, "ran": _NONE}
    return {"domain": name, **states, **rest, **times, **fields}


class FakeOverview:
    """What the views give; tests change it while the page is open."""

    def __init__(self) -> None:
        self.domains: list[dict[str, Any]] = []
        self.attention: list[dict[str, Any]] = []
        self.live = 1
        self.error: Exception | None = None
        self.asked: list[Mapping[str, Any]] = []
        self.performed: list[tuple[str, Any]] = []
        self.lock = threading.Lock()

    def read(self, bus: CommandBus, query: Query) -> object:
        names = ("waiting", "limited", "later", "running", "in_trouble", "oldest_age")
        if self.error is not None:
            raise self.error
        with self.lock:
            sums = {name: sum(each[name] for each in self.domains) for name in names}
            return {
                "domains": self.domains,
                "hidden": 0,
                "totals": {**sums, "rate_in": 12.0, "rate_out": 11.0},
                "attention": self.attention,
                "more": 0,
                "nodes": {"live": self.live, "gone": 0},
                "live": True,
                "restricted": False,
            }

    def history(self, bus: CommandBus, query: Query) -> object:
        begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
        if query.parts:
            counts: list[int | None] = [None, *range(59)]
            lines = {each["domain"]: {"out": counts} for each in self.domains}
            return {"from": begin, "step_seconds": 60, "domains": lines}
        asked = {"domain": query.text("domain"), "span": query.text("span")}
        with self.lock:
            self.asked.append(asked)
        points = [self._point(begin + timedelta(minutes=n), n) for n in range(60)]
        return {**asked, "step_seconds": 60, "from": begin, "points": points}

    def _point(self, at: datetime, number: int) -> dict[str, Any]:
        names = ["in", "out", "failed", "retried", "waiting", "limited", "running", "in_trouble"]
        names += [f"{kind}_{p}" for kind in ("waited", "ran") for p in ("p50", "p95", "p99")]
        known = None if number < 10 else number
        return {"at": at, **dict.fromkeys([*names, "oldest_age"], known)}

    def action(self, name: str) -> Action:
        def preview(bus: CommandBus, body: Mapping[str, Any]) -> dict[str, Any]:
            title = f"{name} {body['target']['domain']}"
            return {"title": title, "touches": "It.", "fields": [], "undo": None, "confirm": "Do"}

        def perform(bus: CommandBus, body: Mapping[str, Any], operator: str) -> dict[str, Any]:
            self.performed.append((name, body["target"]["domain"]))
            return {"done": f"done by {operator}", "count": 1, "undo": None, "undone": "No."}

        return Action(name, preview, perform)


@pytest.fixture
def shown() -> FakeOverview:
    fake = FakeOverview()
    fake.domains = [
        domain("mail", waiting=3, limited=2, rate_in=12.5, rate_out=11.0, paused=True),
        domain("payments", in_trouble=4, oldest_age=400.0, ran={"p50": 0.02, "p95": 1, "p99": 60}),
        domain(_HOSTILE, running=7),
    ]
    fake.attention = [
        {
            "level": "bad",
            "what": "payments: 4 commands in troubleshooting",
            "why": _HOSTILE,
            "link": "#/troubleshooting?domain=payments",
            "action": None,
        },
        {
            "level": "warn",
            "what": "mail is paused",
            "why": "3 wait.",
            "link": "#/domain/mail",
            "action": {"name": "resume", "label": "Resume", "body": {"target": {"domain": "mail"}}},
        },
    ]
    return fake


@contextmanager
def page_of(visiting: Visiting, fake: FakeOverview, **options: Any) -> Iterator[Visit]:
    views = {"overview": fake.read, "history": fake.history}
    actions = {name: fake.action(name) for name in ("pause", "resume", "configure")}
    with page_with(visiting, views, {}, actions, operator="ann", **options) as visit:
        yield visit


def test_domains_are_shown_and_change_while_the_page_is_open(
    visiting: Visiting, shown: FakeOverview
) -> None:
    with page_of(visiting, shown) as page:
        page.open("#/overview").sees("mail is paused", "#view")
        page.sees("2 at limits", "tr:has-text('mail')")
        page.sees("20 ms · 1.0 s · ≥ 60 s", "tr:has-text('payments')")
        page.sees(_HOSTILE, "tbody")
        assert page.find("a", "payments: 4").get_attribute("href") == (
            "#/troubleshooting?domain=payments"
        )
        page.settles()
        assert not page.barriers()
        page.find("a", "payments: 4").focus()
        with shown.lock:
            first, *rest = shown.attention
            shown.attention = [{**first, "what": "payments: 5 commands in troubleshooting"}, *rest]
        page.sees("payments: 5", "#view")
        assert page.read("document.activeElement.textContent").startswith("payments: 5")
        with shown.lock:
            shown.domains = [{**shown.domains[0], "waiting": 98}]
            shown.attention = [{**first, "what": f"{letter} waits"} for letter in "abcdefghijkl"]
        page.find("button", "Show 4 more").click()
        page.sees("l waits", ".events")
        page.find("button", "Show fewer").click()
        page.find("button", "Show 4 more").wait_for()
        assert page.tab.locator(".events li").count() == 8
        with shown.lock:
            shown.attention = []
        page.sees("100", "tr:has-text('mail')")
        page.sees("Nothing does", "#view")
        assert page.tab.locator("tbody tr").count() == 1


def test_charts_are_those_of_the_span_and_the_domain(
    visiting: Visiting, shown: FakeOverview
) -> None:
    with page_of(visiting, shown) as page:
        page.open("#/overview?span=day").sees("History", "#view")
        page.find("button", "7 days").click()
        page.tab.wait_for_url("**span=week")
        page.find("select[name=domain]").select_option("payments")
        page.tab.wait_for_url("**domain=payments")
        last = {"domain": "payments", "span": "week"}
        page.tab.wait_for_function("document.querySelectorAll('svg.chart').length === 6")
        page.settles()
        assert {"domain": None, "span": "day"} in shown.asked
        assert last in shown.asked
        chart = page.find("svg.chart")
        chart.focus()
        page.press("End")
        page.sees("arrived", ".readout")
        labels = page.tab.locator("svg.chart text.axis").all_text_contents()
        assert labels and not [each for each in labels if each.count(":") > 1], "whole minutes"


def test_domains_are_paused_resumed_and_configured(visiting: Visiting, shown: FakeOverview) -> None:
    with page_of(visiting, shown) as page:
        page.open("#/overview").sees("mail is paused", "#view")
        for within, label in (
            ("tr:has-text('payments')", "Pause"),
            ("tr:has-text('payments')", "Settings"),
            ("li:has-text('mail is paused')", "Resume"),
        ):
            page.find(f"{within} button", label).click()
            page.find("dialog button", "Do").click()
            page.tab.wait_for_selector("dialog", state="detached")
        assert shown.performed == [
            *(("pause", "payments"), ("configure", "payments"), ("resume", "mail"))
        ]


def test_a_count_that_takes_too_long_is_told_and_tried_again(
    visiting: Visiting, shown: FakeOverview
) -> None:
    with page_of(visiting, shown) as page:
        shown.error = ValueError("too much to count")
        page.open("#/overview").sees("too much to count", ".note-bad")
        shown.error = None
        page.sees("mail is paused", "#view")
        assert not page.find(".note-bad").is_visible()
        # Of a request that the page makes where its stream is slow to begin.
        page.complaints[:] = [text for text in page.complaints if "400" not in text]


def test_a_new_schema_says_what_to_do_first(visiting: Visiting) -> None:
    fake = FakeOverview()
    fake.live = 0
    with page_of(visiting, fake) as page:
        page.open("#/overview").sees("bus.send(", "#view")
        page.sees("cmdbus-supervise", "#view")
        assert not page.find("h2", "Needs attention").is_visible()
        with fake.lock:
            fake.domains = [domain("mail", waiting=1)]
        page.sees("mail", "tbody")
        assert not page.find("pre", "cmdbus-supervise").is_visible()


def test_the_overview_is_usable_on_a_small_screen(visiting: Visiting, shown: FakeOverview) -> None:
    with page_of(visiting, shown, width=380, scheme="dark") as page:
        page.open("#/overview").sees("mail is paused", "#view")
        page.settles()
        assert page.read("document.documentElement.scrollWidth") <= 380
        assert not page.barriers()


def test_two_hundred_domains_are_drawn_without_a_stutter(visiting: Visiting) -> None:
    fake = FakeOverview()
    fake.domains = [domain(f"domain{number:03}", waiting=number) for number in range(200)]
    with page_of(visiting, fake) as page:
        page.open("#/overview").sees("domain199", "tbody")
        page.settles()
        for turn in range(3):
            with fake.lock:
                fake.domains = [{**each, "waiting": each["waiting"] + 1} for each in fake.domains]
            page.sees(str(200 + turn), "tbody tr:last-child")
        assert sum(page.read("observed.shifts.map(([value]) => value)")) < 0.05
