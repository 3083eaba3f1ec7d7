"""The frame of the page in a browser: ways between views, states, and who may read it."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from page_servers import page_server, page_with, show_by
from visits import Visit, Visiting

from cmdbus import CommandBus
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.web.query import NotFound, Query

pytestmark = pytest.mark.long

#: A view that shows its parameters and what it watches, and counts how often it was closed.
_VIEW = """
import { h } from "../core/dom.js";
import { watch } from "../core/live.js";
export const title = ({ parts, domain }) => `Seen ${parts.join(" ")} ${domain ?? ""}`;
export async function show(root, { params, parts, signal }) {
  const value = h("p", { id: "value" });
  const state = h("p", { id: "failed" });
  const domain = h("input", { name: "domain", data: { filter: "" }, value: params.domain ?? "" });
  root.append(domain, value, state);
  signal.addEventListener("abort", () => (window.ended = (window.ended ?? 0) + 1));
  const stop = watch("seen", (seen) => (value.textContent = JSON.stringify(seen)),
    (name, { error }) => (state.textContent = name + " " + (error?.message ?? error ?? "")));
  return { close: stop };
}
"""
_PLAIN = """
export const title = () => "Plain";
export async function show(root, { keys, tools }) {
  keys([{ key: "r", label: "Retry it", run: () => (window.retried = true) }]);
  tools.append("a tool");
  return { close() {} };
}
"""
_MODULES = {"seen": _VIEW, "plain": _PLAIN}


class Seen:
    """What the view of the server says: a value, or an error."""

    def __init__(self) -> None:
        self.value: object = "first"

    def __call__(self, bus: CommandBus, query: Query) -> object:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def page(visiting: Visiting, seen: Seen) -> Iterator[Visit]:
    with page_with(visiting, {"seen": seen}, _MODULES) as visit:
        yield visit


def test_a_hash_names_the_view_and_its_parameters(page: Visit) -> None:
    page.open("#/seen/a%2Fb/c?domain=mail").sees("Seen a/b c mail", "h1")
    assert page.tab.title() == "Seen a/b c mail · cmdbus"
    page.read("location.hash = '#/plain'")
    page.sees("Plain", "h1")
    page.sees("a tool", "#view-tools")
    assert page.read("window.ended") == 1
    assert page.read("document.activeElement.id") == "heading"
    page.tab.go_back()
    page.sees("Seen a/b c mail", "h1")
    assert page.read("document.querySelector('#view-tools').textContent") == ""


def test_other_parameters_keep_the_place_of_the_reader(page: Visit) -> None:
    page.open("#/seen?domain=a").sees("Seen  a", "h1")
    page.find("input").focus()
    page.read("location.hash = '#/seen?domain=b'")
    page.sees("Seen  b", "h1")
    page.find("input[name=domain]:focus").wait_for()


def test_views_that_were_left_keep_nothing(page: Visit) -> None:
    page.open("#/seen").sees("first", "#value")
    counted = page.tab.context.new_cdp_session(page.tab)

    def go_round(times: int) -> dict[str, int]:
        for _ in range(times):
            page.read("location.hash = '#/plain'")
            page.sees("a tool", "#view-tools")
            page.read("location.hash = '#/seen'")
            page.sees("first", "#value")
        counted.send("HeapProfiler.collectGarbage")
        found: dict[str, int] = counted.send("Memory.getDOMCounters")
        return found

    before = go_round(5)
    after = go_round(25)
    assert after["nodes"] < before["nodes"] + 50, (before, after)
    assert after["jsEventListeners"] < before["jsEventListeners"] + 10, (before, after)


@pytest.mark.parametrize("view", ["nowhere", "..%2Fcore%2Fdom", "a<b>c", "__proto__"])
def test_an_unknown_view_is_said_in_the_place_of_the_one_before(page: Visit, view: str) -> None:
    page.open("#/plain")
    page.sees("a tool", "#view-tools")
    page.read("view => { location.hash = '#/' + view }", view)
    page.sees("Not found", "h2")
    assert page.text("#view-tools") == "", "its buttons would act on what is not shown any more"
    if view == "nowhere":
        page.excuse("nowhere.js")


def test_keys_lead_to_views_and_are_ignored_while_the_reader_types(page: Visit) -> None:
    page.open("#/seen").sees("Seen", "h1")
    page.tab.keyboard.press("/")
    page.find("input[name=domain]:focus").wait_for()
    page.tab.keyboard.type("g c?")
    assert page.find("input").input_value() == "g c?"
    page.tab.keyboard.press("Escape")
    page.read("location.hash = '#/plain'")
    page.sees("Plain", "h1")
    page.tab.keyboard.press("?")
    page.sees("Retry it", "dialog")
    page.tab.keyboard.press("r")
    page.tab.keyboard.press("Escape")
    page.find("dialog").wait_for(state="detached")
    assert not page.read("window.retried")
    page.tab.keyboard.press("r")
    assert page.read("window.retried")
    page.tab.keyboard.press("g")
    page.tab.keyboard.press("c")
    page.tab.wait_for_url("**/#/commands")


def test_postgresql_away_is_said_and_the_page_recovers(page: Visit, seen: Seen) -> None:
    page.open("#/seen").sees("first", "#value")
    page.sees("live", "#state")
    seen.value = DatabaseUnavailableError("no connection")
    page.sees(re.compile("PostgreSQL is away since .*: showing what was read then"), "#state")
    page.sees("first", "#value")
    seen.value = "second"
    page.sees("second", "#value")
    page.sees("live", "#state")


def test_a_view_that_cannot_be_read_says_why(page: Visit, seen: Seen) -> None:
    seen.value = NotFound("there is no batch")
    page.open("#/seen").sees("failed there is no batch", "#failed")
    seen.value = "found"
    page.sees("found", "#value")


def test_a_server_without_threads_is_polled(visiting: Visiting, seen: Seen) -> None:
    with page_with(visiting, {"seen": seen}, _MODULES, is_threaded=False) as page:
        page.open("#/seen").sees("first", "#value")
        page.sees("live", "#state")
        seen.value = "second"
        page.sees("second", "#value")


def test_a_page_without_its_server_says_so_and_recovers(visiting: Visiting, seen: Seen) -> None:
    with ExitStack() as first:
        address = first.enter_context(page_server({"seen": seen}))
        with visiting(address) as page:
            show_by(page, _MODULES)
            page.open("#/seen").sees("first", "#value")
            first.close()
            page.sees("offline since", "#state")
            page.read("location.hash = '#/limits'")
            page.sees("Offline", "h2")
            seen.value = "second"
            with page_server({"seen": seen}, port=urlsplit(address).port or 0):
                page.sees("Limits", "h1")
                page.read("location.hash = '#/seen'")
                page.sees("second", "#value")
                page.sees("live", "#state")
            page.excuse("ERR_")
            page.excuse("api/limits")


def test_the_theme_is_kept(page: Visit) -> None:
    page.open("#/plain").sees("Plain", "h1")
    for theme in ("light", "dark"):
        page.find("#theme").click()
        assert page.read("document.documentElement.dataset.theme") == theme
    page.tab.reload()
    assert page.read("getComputedStyle(document.documentElement).colorScheme") == "dark"


_ALL_PARTS = """
import { h } from "../core/dom.js";
import * as parts from "../core/parts.js";
import * as charts from "../core/charts.js";
import { table } from "../core/table.js";
import { toast } from "../core/toasts.js";
import { timeElement } from "../core/format.js";
export const title = () => "All parts";
export async function show(root, { tools }) {
  const tones = ["good", "warn", "bad", "info", "run", "muted"];
  const at = [0, 1, 2].map((m) => new Date(Date.UTC(2026, 0, 1, 10, m)).toISOString());
  const rows = table({
    label: "Commands", keyOf: (row) => row.id, link: (row) => "#/parts/" + row.id, selectable: true,
    columns: [{ key: "id", label: "Id", narrow: "title" },
      { key: "tone", label: "State", render: ({ tone }) => parts.tag(tone, tone) },
      { key: "at", label: "At", render: () => timeElement(at[0]) },
      { key: "text", label: "Error" }],
  });
  const text = "W".repeat(200) + "\\u202e<b>";
  await rows.update(tones.map((tone) => ({ id: tone, tone, text })));
  tools.append(parts.button("Pause", () => {}), parts.button("Go", () => {}, { tone: "primary" }),
    parts.button("Cancel all", () => {}, { tone: "danger" }),
    parts.button("Off", () => {}, { disabled: true }));
  root.append(
    parts.panel("Figures", h("div", { class: "numbers" }, tones.map((tone) =>
      parts.figure(tone, "1,204", { tone, href: "#/parts" }))), parts.facts([["Name", "x"]]),
      parts.choice("Span", [["hour", "Hour"], ["day", "Day"]], "hour", () => {})),
    parts.panel("Charts", charts.sparkline([1, 2], { label: "in" }),
      charts.lineChart([{ label: "in", values: [1, 2, 3] }], { label: "Rates", at }),
      charts.bar(tones.map((tone) => ({ label: tone, value: 1, tone })), { label: "All" }),
      charts.timeline([{ label: "ran", from: at[0], to: at[1] }], { label: "Times" })),
    rows.element, h("p", { class: "note" }, "A note"), h("p", { class: "note note-bad" }, "A note"),
    parts.payloadBlock({ text: '{"a": 1}', bytes: 8, cut: false }), parts.restrictedNote(),
    parts.empty("Nothing", "Send one.", "bus.send()"));
  toast("Done", { tone: "good", action: { label: "Undo", run() {} } });
  toast("Failed", { tone: "bad" });
  return { close() {} };
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_each_part_is_accessible(visiting: Visiting, scheme: Any, width: int) -> None:
    modules = {"parts": _ALL_PARTS}
    with page_with(visiting, {}, modules, scheme=scheme, width=width) as page:
        page.open("#/parts").sees("Nothing", "#view")
        assert page.read("document.documentElement.scrollWidth") <= width
        assert not page.barriers()
