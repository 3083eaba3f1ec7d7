"""What each action of the page asks in a browser, what it performs, and how it is taken back."""

from collections.abc import Mapping
from typing import Any

import pytest
from page_servers import page_with
from visits import Visiting

from cmdbus import CommandBus
from cmdbus.errors import InvalidOperationError
from cmdbus.web.action import Action

pytestmark = pytest.mark.long

#: A view in which actions are asked for.
_MODULES = {
    "plain": """
export const title = () => "Plain";
export async function show(root) { return { close() {} }; }
"""
}
_FIELDS: list[object] = [
    {"name": "data", "label": "Data", "kind": "json", "required": True, "value": '{"n": 1}'},
    {"name": "depth", "label": "Depth", "kind": "number", "value": None},
    {"name": "until", "label": "Until", "kind": "time", "value": None},
    {"name": "how", "label": "How", "kind": "choice", "value": "b", "choices": ["a", "b"]},
]
_PREVIEW = {
    "title": "Pause payments",
    "touches": "1,204 commands wait, 8 run and will finish.",
    "count": 1204,
    "undo": "Resume undoes it.",
    "confirm": "Pause",
    "grave": True,
}
_DONE = {
    "done": "payments is paused.",
    "count": 1,
    "undo": {"action": "resume", "body": {"target": {"domain": "payments"}}, "label": "Undo"},
}
_ASK = """const app = document.querySelector("script[type=module]").src;
import(new URL("core/confirm.js", app)).then(({confirmAction}) => {
    window.done = [];
    confirmAction("pause", {target: {domain: "payments"}}, {onDone: (it) => done.push(it.done)});
})"""


class Performed:
    """Actions that note their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any], str]] = []
        self.fields: list[object] = []
        self.error: Exception | None = None

    def preview(self, bus: CommandBus, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**_PREVIEW, "fields": self.fields}

    def pause(self, bus: CommandBus, body: Mapping[str, Any], operator: str) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.calls.append(("pause", body, operator))
        return _DONE

    def resume(self, bus: CommandBus, body: Mapping[str, Any], operator: str) -> dict[str, Any]:
        self.calls.append(("resume", body, operator))
        return {"done": "payments is resumed.", "undo": None, "undone": None}

    @property
    def actions(self) -> dict[str, Action]:
        return {
            name: Action(name, self.preview, getattr(self, name)) for name in ("pause", "resume")
        }


def test_an_action_asks_says_what_it_touches_and_can_be_undone(visiting: Visiting) -> None:
    performed = Performed()
    performed.fields = _FIELDS
    with page_with(visiting, {}, _MODULES, performed.actions) as page:
        page.open("#/plain").sees("Plain", "h1")
        page.read(_ASK)
        page.sees("1,204 commands wait, 8 run and will finish.", "dialog")
        confirm = page.find("dialog .danger", "Pause")
        page.find("dialog textarea").fill('{"n": 12345678901234567890,')
        confirm.click()
        page.sees("Data is not JSON", ".problem")
        page.find("dialog textarea").fill('{"n": 12345678901234567890}')
        confirm.click()
        page.sees("Your name is needed", ".problem")
        page.tab.get_by_label("Your name").fill(" ada ")
        page.tab.get_by_label("Reason").fill("too many")
        page.tab.get_by_label("Depth").fill("5")
        page.tab.get_by_label("Until").fill("2026-01-01T10:00:00")
        confirm.click()
        page.sees("payments is paused.", ".toasts")
        page.sees("ada", "#tools")
        page.find(".toast button", "Undo").click()
        page.sees("payments is resumed.", ".toasts")
        assert page.read("done") == ["payments is paused.", "payments is resumed."]
    (first, paused, operator), (second, resumed, again) = performed.calls
    assert (first, second, operator, again) == ("pause", "resume", "ada", "ada")
    assert paused["target"] == resumed["target"] == {"domain": "payments"}
    assert paused["reason"] == "too many"
    assert paused["values"] == {
        "data": '{"n": 12345678901234567890}',
        "depth": 5,
        "until": paused["values"]["until"],
        "how": "b",
    }
    assert paused["values"]["until"].endswith("Z")


def test_a_refused_action_says_why_and_stays_open(visiting: Visiting) -> None:
    performed = Performed()
    with page_with(visiting, {}, _MODULES, performed.actions, operator="ada") as page:
        page.open("#/plain").sees("Plain", "h1")
        page.sees("ada", "#tools")
        performed.error = InvalidOperationError("it is paused already")
        page.read(_ASK)
        page.find("dialog .danger", "Pause").click()
        page.sees("it is paused already", ".problem")
        assert page.find("dialog .danger").is_enabled()
        page.tab.keyboard.press("Escape")
        page.find("dialog").wait_for(state="detached")
        page.read(_ASK.replace("pause", "nothing"))
        page.sees("there is no action", "dialog")
        page.excuse("status of 40[49]")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 380)])
def test_what_an_action_asks_is_accessible(visiting: Visiting, scheme: Any, width: int) -> None:
    performed = Performed()
    performed.fields = _FIELDS
    with page_with(visiting, {}, _MODULES, performed.actions, scheme=scheme, width=width) as page:
        page.open("#/plain").sees("Plain", "h1")
        page.read(_ASK)
        page.sees("1,204 commands wait", "dialog")
        assert not page.barriers()
