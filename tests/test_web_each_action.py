"""Each action of the operators' page in a browser, through to the audit trail."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psycopg
import pytest
from eventually import eventually
from page_processes import page_server
from pgmq_queues import create_queues, install_pgmq
from psycopg.sql import SQL, Identifier
from shop_days import Shop
from visits import Visit, Visiting

from cmdbus import CommandBus
from cmdbus.web.actions import ACTIONS

#: Many views: on a busy machine each takes some seconds.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

#: Of each audit trail.
_TRAILS = """
SELECT table_name FROM information_schema.columns
WHERE table_schema = 'cmdbus' AND column_name IN ('operator', 'message') AND table_name ~ 'event$'
GROUP BY table_name HAVING count(*) = 2
"""
_OPERATOR = "ann"


class Step(NamedTuple):
    action: str
    view: str
    button: str
    #: Where the button is.
    within: str = "#view-tools"
    #: A text beside it.
    beside: str = ""
    fields: Mapping[str, str] = MappingProxyType({})


def steps(shop: Shop) -> Iterator[Step]:
    day = shop.day
    with CommandBus(shop.dsn) as bus:
        expired = bus.troubleshooting.list("payments", error_code="CARD_EXPIRED")
    other = next(each.command_id for each in expired if each.command_id != day.wrong)
    yield Step("pause", "domain/payments", "Pause")
    yield Step("resume", "domain/payments", "Resume")
    yield Step("configure", "domain/payments", "Configure", fields={"warn_depth": "3500"})
    for action, button, fields in (
        ("set_limit", "Set", {"concurrency": "7"}),
        ("clear_limit", "Clear", {}),
    ):
        yield Step(action, "limits", button, "section.card", "printer", fields)
    for action, button, fields in (
        ("set_breaker", "Terms", {"failures": "9"}),
        ("clear_breaker", "Clear terms", {}),
        ("close_breaker", "Close", {}),
        ("open_breaker", "Open", {}),
        ("reset_breaker", "Reset", {}),
    ):
        yield Step(action, "breakers", button, "section.card", "bank", fields)
    added = {"name": "sweep", "domain": "stock", "type": "Count", "every": "2h"}
    yield Step("add_schedule", "schedules", "Add a schedule", fields=added)
    for action, button, name in (
        ("pause", "Pause", "nightly-close"),
        ("resume", "Resume", "nightly-close"),
        ("run", "Run now", "nightly-close"),
        ("remove", "Remove", "sweep"),
    ):
        yield Step(f"{action}_schedule", "schedules", button, "tbody tr", name)
    later = f"command/reports/{day.later}"
    yield Step("reschedule", later, "Run now or later", fields={"priority": "high"})
    yield Step("cancel", later, "Cancel")
    yield Step("retry", f"command/parcels/{day.failing}", "Retry")
    yield Step("complete", f"command/payments/{day.wrong}", "Complete")
    yield Step("cancel_trouble", f"command/payments/{other}", "Cancel")
    yield Step("cancel_all", "commands?status=PENDING&domain=audits", "Cancel all", "#view")
    yield Step("cancel_batch", f"batch/{day.batch}", "Cancel the batch")
    packing = f"process/{day.purchases['packing']}"
    yield Step("signal_process", packing, "Signal", fields={"name": "hurry"})
    yield Step("cancel_process", packing, "Cancel")
    yield Step("retry_process", f"process/{day.purchases['stopped']}", "Retry")


def remove_a_bridge(visit: Visit, connection: psycopg.Connection) -> None:
    """And add it again, which is offered nowhere else."""
    reason = "reason to remove_bridge"
    take(visit, Step("remove_bridge", "bridges", "Remove", "tbody tr", "orders-in"), reason)
    eventually(partial(is_on_record, connection, reason))
    visit.find("#toasts button", "Add it again").click()
    eventually(partial(is_on_record, connection, "undone"))


def is_on_record(connection: psycopg.Connection, reason: str) -> bool:
    """As that of something which the operator has done."""
    names = [name for (name,) in connection.execute(_TRAILS)]
    assert len(names) > 3
    query = SQL(" UNION ALL ").join(
        SQL("SELECT message FROM cmdbus.{} WHERE operator = %(operator)s").format(Identifier(name))
        for name in names
    )
    return (reason,) in connection.execute(query, {"operator": _OPERATOR}).fetchall()


def take(visit: Visit, step: Step, reason: str) -> None:
    from playwright.sync_api import TimeoutError

    visit.open(f"#/{step.view}")
    if step.view.startswith(("command/", "process/")):
        visit.sees(step.view[-8:], "h1")  # until then the one before is shown
    buttons = visit.find(step.within, step.beside).locator("button:enabled")
    buttons.filter(has_text=step.button).first.click()
    confirm = visit.find("dialog .buttons button:enabled:is(.primary, .danger)")
    try:
        confirm.wait_for()
    except TimeoutError as error:
        raise AssertionError(f"{step}: {visit.text('dialog')}") from error
    for name, text in step.fields.items():
        visit.tab.fill(f"dialog [name={name}]", text)
    visit.tab.fill("dialog #reason", reason)
    confirm.click()
    visit.tab.wait_for_selector("dialog", state="detached")


def test_each_action_is_done_and_on_record(visiting: Visiting, shop: Shop, tmp_path: Path) -> None:
    done = []
    with (
        page_server(shop.dsn, tmp_path, "--operator", _OPERATOR) as page,
        visiting(page) as visit,
        psycopg.connect(shop.dsn, autocommit=True) as connection,
    ):
        install_pgmq(connection)
        create_queues(connection, "orders")
        with CommandBus(shop.dsn) as bus:
            bus.bridges.add("orders", "payments", "Charge")
        visit.tab.on("request", lambda request: done.append(request.url.rpartition("/actions/")))
        for number, step in enumerate(steps(shop)):
            reason = f"reason {number} to {step.action}"
            take(visit, step, reason)
            eventually(partial(is_on_record, connection, reason))
        remove_a_bridge(visit, connection)
    assert {name for _, found, name in done if found} == {*ACTIONS}
