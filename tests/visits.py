"""The operators' page in a browser: what one visit shows, and whatever the browser complains of."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

import psutil
import pytest
from eventually import eventually
from lab.browsers import MISSING, find_browser, started_browser
from leftovers import assert_soon_empty, children, shared_processes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

#: The browser starts and draws on a machine that is busy with other tests.
_WITHIN_MS = 15_000
#: Counts what the user would notice, from the first moment of the document on.
_OBSERVERS = """
window.observed = {shifts: [], longTasks: []};
new PerformanceObserver(list => list.getEntries().forEach(entry => {
  const moved = entry.sources.map(source => source.node?.outerHTML?.slice(0, 120));
  if (!entry.hadRecentInput) observed.shifts.push([entry.value, ...moved]);
})).observe({type: "layout-shift", buffered: true});
new PerformanceObserver(list => list.getEntries().forEach(entry =>
  observed.longTasks.push(entry.duration)
)).observe({type: "longtask", buffered: true});
"""
_AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_AXE = """rules => axe.run(document, {runOnly: rules, resultTypes: ["violations"]}).then(found =>
  found.violations.map(({id, help, nodes}) =>
    [id, help, ...nodes.map(node => `${node.target} ${node.failureSummary}`)].join("\\n  ")))"""
_OF_NO_HOST = ("data:", "blob:")

Visiting = Callable[..., AbstractContextManager["Visit"]]


class Visit:
    """A tab with the page of `address`, in a browser that has no cookies yet."""

    def __init__(self, tab: "Page", address: str) -> None:
        self.tab = tab
        self.address = address.rstrip("/")
        #: Errors, requests for another host, and what the Content-Security-Policy refuses, which
        #: the browser reports as an error.
        self.complaints: list[str] = []
        tab.add_init_script(_OBSERVERS)
        tab.on("console", self._note_message)
        tab.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        tab.on("request", self._note_request)

    def _note_message(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location})")

    def _note_request(self, request: "Request") -> None:
        if not request.url.startswith((self.address + "/", *_OF_NO_HOST)):
            self.complaints.append(f"a request for {request.url}")

    def open(self, view: str = "") -> "Visit":
        """With the part of the address that names a view: `#/overview`."""
        self.tab.goto(f"{self.address}/{view}")
        return self

    def find(self, selector: str, text: str | re.Pattern[str] = "") -> "Locator":
        return self.tab.locator(selector, has_text=text or None).first

    def sees(self, text: str | re.Pattern[str], within: str = "body") -> None:
        """As soon as it is there; the page's errors say more than that it is not."""
        from playwright.sync_api import TimeoutError, expect

        try:
            expect(self.find(within)).to_contain_text(text)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}\n{self.complaints}") from error

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)

    def background(self) -> str:
        return str(self.read("getComputedStyle(document.body).backgroundColor"))

    def text(self, selector: str) -> str:
        return self.find(selector).inner_text()

    def settles(self) -> None:
        """Until what the view asked for has come, and two frames have been drawn."""
        self.awaits("!document.querySelector('[aria-busy=true]')")
        self.read("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def read(self, script: str, argument: object = None) -> Any:
        """The value of an expression or function of JavaScript in the page."""
        return self.tab.evaluate(script, argument)

    def shifts(self) -> list[object]:
        """How far its layout has jumped by itself, and what has."""
        return list(self.read("observed.shifts"))

    def long_tasks(self) -> list[float]:
        """Milliseconds of each that took more than 50."""
        return list(self.read("observed.longTasks"))

    def first_paint(self) -> float:
        """Milliseconds from the navigation to the first content."""
        script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        return float(self.awaits(script))

    def barriers(self) -> list[str]:
        """What keeps people from using the page, by axe."""
        if not self.read("'axe' in window"):
            axe = resources.files("axe_playwright_python") / "axe.min.js"
            self.read(axe.read_text(encoding="utf-8"))
        return list(self.read(_AXE, _AXE_RULES))

    def awaits(self, script: str, argument: object = None) -> Any:
        """The value of it, once that is true. playwright's own way needs `eval` in the page."""
        return eventually(lambda: self.read(script, argument), _WITHIN_MS / 1000)

    def excuse(self, pattern: str) -> None:
        """Complaints that are expected, of which there is one at least."""
        left = [text for text in self.complaints if not re.search(pattern, text)]
        assert len(left) < len(self.complaints), f"none of {pattern!r} in {self.complaints}"
        self.complaints[:] = left


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """The tests of a module share it; each visit has its own cookies, storage and cache."""
    executable = find_browser()
    if executable is None:
        pytest.skip(MISSING)
    before = children()
    with started_browser(executable) as browser:
        from playwright.sync_api import expect

        expect.set_options(timeout=_WITHIN_MS)
        drivers = {child.pid for child in psutil.Process().children()}
        shared_processes.update(drivers)
        try:
            yield browser
        finally:
            shared_processes.difference_update(drivers)
    assert_soon_empty("processes of the browser left", lambda: children() - before)


@pytest.fixture
def visiting(browser: "Browser") -> Visiting:
    """Visits of an address, which fail in the end if the browser has complained."""

    @contextmanager
    def visiting(
        address: str,
        *,
        width: int = 1280,
        height: int = 800,
        scheme: Literal["light", "dark"] = "light",
        **options: Any,
    ) -> Iterator[Visit]:
        with browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id=os.environ["TZ"],
            **options,
        ) as context:
            context.set_default_timeout(_WITHIN_MS)
            visit = Visit(context.new_page(), address)
            yield visit
            assert not visit.complaints, "\n".join(visit.complaints)

    return visiting
