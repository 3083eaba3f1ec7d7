"""Troubleshooting and one command of the page in a browser: what an operator sees, and decides."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from eventually import eventually
from handlers import found, running
from psycopg.conninfo import make_conninfo
from queries import move_to_troubleshooting
from roles import role
from visits import Visit, Visiting
from web_server import serving

from cmdbus import Command, CommandBus, Context, HandlerRegistry, SendRequest, Status
from cmdbus.web import application

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=window.hurt=1></script> \u202e \u0007 \U0001f600 " + "w" * 400


@contextmanager
def served(bus: CommandBus) -> Iterator[str]:
    page = application(bus)
    try:
        with serving(page) as server:
            yield f"http://127.0.0.1:{server.address[1]}"
    finally:
        page.close()


@pytest.fixture
def address(bus: CommandBus) -> Iterator[str]:
    with served(bus) as address:
        yield address


def fail(dsn: str, bus: CommandBus, count: int = 1, code: str = "GONE", **given: Any) -> list[UUID]:
    given = {"domain": "payments", "type": "Debit", "data": {"n": 1}, **given}
    ids = bus.send_many([SendRequest(**given)] * count)
    assert move_to_troubleshooting(dsn, code, f"{code}: {HOSTILE}") == count
    return ids


def confirm(visit: Visit, button: str) -> None:
    visit.tab.fill("#operator", "Ann")
    visit.tab.fill("#reason", "fixed")
    visit.tab.get_by_role("dialog").get_by_role("button", name=button).click()


def test_data_is_edited_before_a_retry_and_the_trail_shows_what_changed(
    dsn: str, bus: CommandBus, visiting: Visiting, address: str
) -> None:
    [id_] = fail(dsn, bus, data={"amount": 12345678901234567890, "text": HOSTILE})
    with visiting(address) as visit:
        visit.open(f"#/command/payments/{id_}").sees("GONE", "#view")
        visit.press("e")
        visit.sees("The data is the same", "dialog")
        text = visit.tab.input_value("#data")
        visit.tab.fill("#data", text.replace("12345678901234567890", "12345678901234567891,"))
        visit.sees("It is not JSON", "dialog [role=alert]")
        send = visit.tab.get_by_role("button", name="Retry with this data")
        assert send.is_disabled()
        visit.tab.fill("#data", text.replace("12345678901234567890", "12345678901234567891"))
        visit.sees('"amount": 12345678901234567891', "dialog .added")
        send.click()
        visit.sees("the audit trail keeps both", "dialog")
        assert visit.barriers() == []
        confirm(visit, "Retry it")
        visit.sees("1 command retried", "#toasts")
        visit.sees("operator retry", ".events")
        visit.tab.get_by_text("Data before and after").click()
        visit.sees('"amount": 12345678901234567890', ".events .removed")
        assert visit.read("window.hurt") is None
    assert found(bus, id_).data == {"amount": 12345678901234567891, "text": HOSTILE}
    *_, event = bus.audit("payments", id_)
    assert (event.operator, event.message) == ("Ann", "fixed")


def test_a_group_and_some_commands_are_decided_about(
    dsn: str, bus: CommandBus, visiting: Visiting, address: str
) -> None:
    ids = fail(dsn, bus, 3)
    busy = fail(dsn, bus, 2, "BUSY")
    with visiting(address) as visit:
        visit.open("#/troubleshooting").sees("5 commands wait for an operator")
        assert visit.barriers() == []
        visit.press("/")
        visit.tab.keyboard.type("busy")
        errors = visit.tab.locator("table[aria-label=Errors] tbody tr")
        eventually(lambda: errors.count() == 1)
        assert visit.tab.url.endswith("#/troubleshooting?q=busy")
        visit.press("Escape", "j", "Enter")
        visit.sees("Commands with BUSY of payments/Debit")
        visit.tab.get_by_role("button", name="Retry all of these").click()
        visit.sees("Retry all 2 commands of payments of type Debit with BUSY", "dialog")
        confirm(visit, "Retry 2 commands")
        visit.sees("2 commands retried", "#toasts")
        visit.sees("3 commands wait for an operator")
        visit.tab.get_by_role("link", name="All errors").first.click()
        visit.sees("All commands, the latest first")
        rows = visit.tab.locator("table[aria-label=Commands] tbody tr")
        rows.first.focus()
        visit.press("x", "j", "x")
        visit.sees("2 commands selected")
        visit.press("r")
        visit.sees("Retry 2 commands", "dialog")
        confirm(visit, "Retry them")
        visit.sees("1 command waits for an operator")
        visit.tab.get_by_role("checkbox", name="Select", exact=True).check()
        visit.tab.get_by_role("button", name="Complete", exact=True).click()
        visit.tab.fill("textarea", '{"paid": true}')
        confirm(visit, "Complete it")
        visit.sees("Nothing waits for an operator")
    assert {found(bus, id_).status for id_ in busy} == {Status.PENDING}
    statuses = sorted(found(bus, id_).status for id_ in ids)
    assert statuses == [Status.COMPLETED, Status.PENDING, Status.PENDING]


def test_a_command_is_followed_while_it_runs(
    dsn: str, bus: CommandBus, visiting: Visiting, address: str
) -> None:
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        raise ValueError(HOSTILE)

    id_ = bus.send("payments", "Debit", max_attempts=1)
    with visiting(address) as visit:
        visit.open(f"#/command/payments/{id_}").sees("pending", "#view")
        with running(dsn, registry):
            eventually(lambda: found(bus, id_).status.name == "IN_TROUBLESHOOTING_QUEUE", 20)
        visit.sees("failed for good", "#view details")
        visit.sees("in debit", "#view details pre")
        visit.sees("in trouble", "#view .tag")
        assert visit.barriers() == []
        assert visit.read("window.hurt") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_texts_fit_a_narrow_screen(
    dsn: str, bus: CommandBus, visiting: Visiting, address: str, scheme: str
) -> None:
    data = {HOSTILE: [HOSTILE, {"__proto__": 1}], "long": "x" * 200_000}
    [id_, *_] = fail(dsn, bus, 3, "<b>CODE</b>", data=data, key=HOSTILE[:200], reply_to="orders")
    wide = "document.documentElement.scrollWidth > innerWidth"
    with visiting(address, width=380, scheme=scheme) as visit:
        for path, text in (
            ("troubleshooting", "3 commands wait"),
            (f"command/payments/{id_}", "CODE"),
        ):
            visit.open(f"#/{path}").sees(text)
            visit.settles()
            assert not visit.read(wide), path
            assert visit.barriers() == []
        visit.sees("\\u202e", "#view")
        visit.sees("the beginning of", "#view")
        assert visit.read("window.hurt") is None


def test_a_monitor_sees_groups_and_commands_and_no_data(
    dsn: str, bus: CommandBus, visiting: Visiting
) -> None:
    [id_] = fail(dsn, bus, data={"secret": 1})
    with role(dsn, "monitor") as monitor:
        [[name]] = monitor.execute("SELECT current_user::text").fetchall()
        with (
            CommandBus(make_conninfo(dsn, options=f"-c role={name}")) as limited,
            served(limited) as address,
            visiting(address) as visit,
        ):
            visit.open("#/troubleshooting").sees("cannot read data")
            visit.sees("GONE", "table")
            visit.open(f"#/command/payments/{id_}").sees("cannot read data")
            visit.sees("No other command has its correlation id")
            assert visit.tab.get_by_role("button", name="Retry").count() == 0
            visit.press("r", "e")
            assert visit.tab.locator("dialog").count() == 0
            assert visit.barriers() == []


def test_a_comparison_of_lines_keeps_what_is_the_same(visiting: Visiting, address: str) -> None:
    script = """([before, after]) => import("./static/core/diff.js")
        .then(({diffLines}) => diffLines(before, after).map(([mark, line]) => mark + line))"""
    with visiting(address) as visit:
        visit.open("#/troubleshooting").sees("Nothing waits")

        def compared(before: str, after: str) -> str:
            lines = visit.read(script, [before.split(), after.split()])
            return " ".join(line.strip() for line in lines)

        assert compared("a b c d e", "a x c d f e") == "a -b +x c d +f e"
        assert compared("a a", "a a a") == "a a +a"
        assert compared("", "a") == "+a"
        many = " ".join(map(str, range(1000)))
        assert compared(f"x {many} y", f"z {many} y").split()[:2] == ["-x", "+z"]
