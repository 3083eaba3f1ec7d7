"""Who may use the operators' page, in a browser: viewers, those with a token, users of a proxy."""

from pathlib import Path

import pytest
from page_processes import page_process, page_server
from shop_days import Shop
from test_web_usable_views import views_of
from visits import Visiting

from cmdbus import CommandBus

#: Many views: on a busy machine each takes some seconds.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

#: What buttons that change something say.
_ACTS = {
    *("Pause", "Resume", "Configure", "Cancel", "Retry", "Complete", "Signal", "Settings"),
    *("Set", "Clear", "Open", "Close", "Reset", "Terms", "Run now", "Remove", "Add a schedule"),
}
_POST = """async () => {
  const session = await (await fetch("api/session")).json();
  const answer = await fetch("api/actions/pause", {
    method: "POST",
    headers: {"Content-Type": "application/json", "X-CSRF-Token": session.csrf},
    body: JSON.stringify({target: {domain: "payments"}, values: {}, reason: "", operator: "ann"}),
  });
  return [answer.status, (await answer.json()).error];
}"""


def test_a_viewer_sees_everything_and_can_change_nothing(
    visiting: Visiting, shop: Shop, tmp_path: Path
) -> None:
    with page_server(shop.dsn, tmp_path, "--role", "viewer") as page, visiting(page) as visit:
        for view, text in views_of(shop).items():
            visit.open(view).sees(text, "#view")
            visit.settles()
            buttons = visit.tab.locator("main button").all_inner_texts()
            assert not _ACTS & {*buttons}, view
        visit.sees("viewer", "#tools")
        status, error = visit.read(_POST)
        assert status == 403 and "viewer" in error
        visit.excuse("403")
    with CommandBus(shop.dsn) as bus:
        assert not bus.domains("payments")[0].paused


def test_a_token_signs_in_and_is_in_no_address_and_in_no_reach_of_scripts(
    visiting: Visiting, shop: Shop, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    options = ["--auth", "token", "--token-file", str(file)]
    with page_process(shop.dsn, tmp_path, *options) as (page, server):
        token = file.read_text().strip()
        assert token in server.output and file.stat().st_mode & 0o777 == 0o600
        with visiting(page) as visit:
            visit.open("#/batches").tab.fill("[name=token]", "a guess")
            visit.press("Enter")
            visit.sees("This is not the token.", "[role=alert]")
            visit.excuse("403")
            assert visit.barriers() == []
            visit.tab.fill("[name=token]", token)
            visit.press("Enter")
            visit.sees("November newsletter", "#view")
            assert token not in visit.tab.url and visit.read("document.cookie") == ""
            visit.find("button", "Sign out").click()
            visit.tab.wait_for_selector("[name=token]")
        with visiting(page) as stranger:
            stranger.open("api/overview")
            assert "payments" not in stranger.text("body")
            stranger.excuse("40[134]")


def test_the_user_that_a_proxy_names_is_in_the_audit_trail(
    visiting: Visiting, shop: Shop, tmp_path: Path
) -> None:
    options = ["--auth", "header:X-Forwarded-User"]
    with page_server(shop.dsn, tmp_path, *options) as page:
        with visiting(page, extra_http_headers={"X-Forwarded-User": "mary"}) as visit:
            visit.open("#/domain/audits").sees("mary", "#tools")
            visit.find("#view-tools button", "Resume").click()
            visit.sees("The audit trail will name mary", "dialog")
            visit.find("dialog button", "Resume audits").click()
            visit.sees("audits is resumed", "#toasts")
        with visiting(page) as stranger:
            stranger.open()
            assert "payments" not in stranger.text("body")
            stranger.excuse("403")
    with CommandBus(shop.dsn) as bus:
        assert [event.operator for event in bus.domain_audit("audits")] == ["ann", "mary"]
