"""The views of batches, processes, limits, breakers, schedules and domains in a browser, and what
operators do there, through to the database and the audit trail."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from eventually import eventually
from shop_days import Shop
from test_web_operating_views import monitor_of
from visits import Visit, Visiting
from web_server import serving

from cmdbus import CommandBus
from cmdbus.web import application

#: Many views: on a busy machine each takes some seconds.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def bus(shop: Shop) -> Iterator[CommandBus]:
    with CommandBus(shop.dsn) as bus:
        yield bus


@contextmanager
def page_of(bus: CommandBus, visiting: Visiting) -> Iterator[Visit]:
    served = application(bus, operator="ann")
    try:
        with (
            serving(served) as server,
            visiting(f"http://127.0.0.1:{server.address[1]}") as visit,
        ):
            yield visit
    finally:
        served.close()


@pytest.fixture
def visit(bus: CommandBus, visiting: Visiting) -> Iterator[Visit]:
    with page_of(bus, visiting) as visit:
        yield visit


def confirm(visit: Visit, button: str, *, reason: str = "", **fields: str) -> None:
    visit.find("dialog button:enabled.primary, dialog button:enabled.danger").wait_for()
    for name, text in fields.items():
        visit.tab.fill(f"dialog [name={name}]", text)
    if reason:
        visit.tab.fill("dialog #reason", reason)
    visit.find("dialog .buttons button", button).click()
    visit.tab.wait_for_selector("dialog", state="detached")


def test_each_view_shows_what_there_is_to_every_reader(shop: Shop, visit: Visit) -> None:
    seen = {
        "batches": "November newsletter",
        f"batch/{shop.day.batch}": "Sends at its end",
        "processes": "Purchase",
        f"process/{shop.day.purchases['undone']}": "undone",
        "limits": "1 of 2 places taken",
        "breakers": "open since",
        "breakers?name=bank": "Audit trail",
        "schedules": "nightly-close",
        "domain/payments": "Refund",
        "domain/nowhere": "Nothing waits or runs",
    }
    for width in (1280, 380):
        visit.tab.set_viewport_size({"width": width, "height": 800})
        for view, text in seen.items():
            visit.open(f"#/{view}").sees(text, "#view")
            visit.settles()
            assert visit.barriers() == [], view
            assert visit.read("document.documentElement.scrollWidth <= innerWidth"), view


def test_monitors_see_the_views_without_data_and_without_buttons(
    shop: Shop, visiting: Visiting
) -> None:
    seen = {
        "batches": "54",
        f"batch/{shop.day.batch}": "Progress",
        "processes": "Purchase",
        f"process/{shop.day.purchases['undone']}": "compensated",
        "limits": "1 of 2 places taken",
        "breakers": "open since",
        "schedules": "nightly-close",
        "domain/payments": "Refund",
    }
    with monitor_of(shop.dsn) as bus, page_of(bus, visiting) as visit:
        for view, text in seen.items():
            visit.open(f"#/{view}").sees(text, "#view")
            visit.settles()
            assert visit.find("#view-tools button, #view .card > .toolbar button").count() == 0
            assert "November newsletter" not in visit.text("#view")


def test_a_domain_is_paused_and_resumed_by_undo(bus: CommandBus, visit: Visit) -> None:
    visit.open("#/domain/payments").find("button", "Pause").click()
    visit.sees("wait and will not start", "dialog")
    confirm(visit, "Pause payments", reason="wrong prices")
    visit.sees("payments is paused", "#toasts")
    visit.sees("paused", "#view .tag-warn")
    assert bus.domains("payments")[0].paused
    visit.find("#toasts button", "Resume payments").click()
    eventually(lambda: not bus.domains("payments")[0].paused)
    audit = [(e.kind, e.operator, e.message) for e in bus.domain_audit("payments", latest=2)]
    assert audit == [("PAUSED", "ann", "wrong prices"), ("RESUMED", "ann", "undone")]


def test_settings_that_have_changed_meanwhile_are_not_overwritten(
    bus: CommandBus, visit: Visit
) -> None:
    visit.open("#/domain/payments").find("button", "Configure").click()
    visit.tab.fill("dialog [name=max_depth]", "100")
    bus.configure("payments", max_depth=70, operator="bob")
    visit.find("dialog button.primary", "Save").click()
    visit.sees("has changed since this was asked", "dialog .problem")
    visit.excuse("409")
    assert bus.domains("payments")[0].max_depth == 70
    visit.press("Escape")
    visit.find("button", "Configure").click()
    confirm(visit, "Save", warn_depth="", max_depth="200")
    [record] = bus.domains("payments")
    assert (record.max_depth, record.warn_depth) == (200, None)


def test_a_limit_is_set_and_cleared_and_a_breaker_closed(bus: CommandBus, visit: Visit) -> None:
    visit.open("#/limits").find("section.card", "printer").locator("button", has_text="Set").click()
    confirm(visit, "Set it", concurrency="7", reason="a second printer")
    visit.sees("7 at once", "#view")
    visit.sees("a second printer", "#view")
    visit.find("#toasts button", "Clear it again").click()
    eventually(lambda: "7 at once" not in visit.text("#view"))
    visit.open("#/breakers").sees("Breakers", "h1")
    visit.find("section.card button", "Close").click()
    confirm(visit, "Close it")
    visit.sees("closed", "#view .tag-good")
    assert [each.operator for each in bus.breakers.audit("bank")][-1] == "ann"


def test_a_batch_and_a_process_are_canceled(shop: Shop, bus: CommandBus, visit: Visit) -> None:
    visit.open(f"#/batch/{shop.day.batch}").find("button", "Cancel the batch").click()
    visit.sees("This cannot be undone", "dialog")
    confirm(visit, "Cancel the batch", reason="an error in the text")
    visit.sees("batch cancel requested", "#view")
    [event] = [e for e in bus.batch_audit(shop.day.batch) if e.operator]
    assert (event.operator, event.message) == ("ann", "an error in the text")
    process_id = shop.day.purchases["stopped"]
    visit.sees("is being canceled", "#view-tools")
    visit.open(f"#/process/{process_id}").sees("Steps", "#view")
    visit.find("#view-tools button", "Cancel").click()
    visit.sees("which is canceled", "dialog")
    confirm(visit, "Cancel the process")
    visit.sees("cancel requested", "#view")
    assert "ann" in {event.operator for event in bus.process_audit(process_id)}


def test_a_schedule_is_run_paused_and_added(bus: CommandBus, visit: Visit) -> None:
    row = visit.open("#/schedules").find("tr", "nightly-close")
    row.locator("button", has_text="Run now").click()
    confirm(visit, "Send it now")
    visit.sees("is sent", "#toasts")
    row.locator("button", has_text="Pause").click()
    confirm(visit, "Pause it")
    visit.sees("paused", "#view .tag-warn")
    visit.find("button", "Add a schedule").click()
    named = {"name": "sweep", "domain": "stock", "type": "Count", "every": "2h"}
    confirm(visit, "Add it", **named)
    visit.sees("every 2h", "#view")
    found = {each.name: each for each in bus.schedules.list()}
    assert found["nightly-close"].paused and found["sweep"].added is not None
    assert found["sweep"].added.operator == "ann"
