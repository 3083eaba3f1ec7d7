"""Whatever commands, errors and names hold is text on the operators' page, and no markup."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from claiming import Claimer, ended
from page_processes import page_server
from visits import Visiting

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.outcomes import troubled

if TYPE_CHECKING:
    from playwright.sync_api import Dialog

pytestmark = pytest.mark.long

_MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>'\"><svg/onload=alert(3)>{{7*7}}"
_TEXTS = (
    _MARKUP,
    "\u202egnp.exe\u202d \u2066of\u2069 \u200b\u0007 \U0001f4a5",
    "javascript:alert(4)//" + "w" * 3000,
)
_FOUND = "document.querySelectorAll('main img, main script, main [onload], main [onerror]').length"
_WIDTH = 900


def hostile_views(bus: CommandBus, claimer: Claimer) -> list[str]:
    """Of each that shows them."""
    views = ["#/overview", "#/fleet", "#/commands", "#/limits", "#/breakers", "#/domain/payments"]
    for text in _TEXTS:
        name, key = text[:100], text[:200]
        headers = {"own": text, "N" * 100: text}
        id_ = bus.send("payments", "Debit", {text: [text]}, key=key, headers=headers)
        claim = claimer.claim_one()
        claimer.settle(ended(claim, troubled(name, text)))
        bus.troubleshooting.retry(
            "payments", id_, operator=name, reason=text[:1000], data={text: text}
        )
        claimer.settle(ended(claimer.claim_one(), troubled(name, text)))
        batch_id = bus.create_batch("mail", [SendRequest("mail", "Send", text)], name=key)
        process_id = bus.start_process("orders", "Purchase", {text: text})
        bus.signal_process(process_id, "hurry", {text: text})
        bus.pause("payments", operator=name, reason=text[:1000])
        bus.resume("payments", operator=name, reason=text[:1000])
        views += [
            f"#/command/payments/{id_}",
            f"#/batch/{batch_id}",
            f"#/process/{process_id}",
        ]
    bus.schedules.add("nightly", "mail", "Send", every="1d", data={_MARKUP: _MARKUP})
    return [*views, "#/troubleshooting", "#/batches", "#/processes", "#/schedules"]


def test_hostile_texts_are_shown_as_they_are(
    visiting: Visiting, bus: CommandBus, claimer: Claimer, dsn: str, tmp_path: Path
) -> None:
    views = hostile_views(bus, claimer)
    alerts: list[str] = []

    def dismiss(dialog: "Dialog") -> None:
        alerts.append(dialog.message)
        dialog.dismiss()

    with page_server(dsn, tmp_path) as page, visiting(page, width=_WIDTH) as visit:
        visit.tab.on("dialog", dismiss)
        for view in views:
            visit.open(view).settles()
            assert not visit.tab.locator(".problem-box").count(), visit.text("#view")
            assert visit.read(_FOUND) == 0, view
            assert visit.read("document.documentElement.scrollWidth") <= _WIDTH, view
        visit.open("#/troubleshooting").sees("<img src=x onerror=alert(1)>", "#view")
    assert not alerts
