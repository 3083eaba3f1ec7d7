"""Signing in to the page in a browser."""

from collections.abc import Iterator

import pytest
from page_servers import show_by
from visits import Visit, Visiting
from web_server import serving

from cmdbus import CommandBus
from cmdbus.web.security.token_access import TokenAccess
from cmdbus.web.wsgi import Application

pytestmark = pytest.mark.long

TOKEN = "t" * 43
VIEW = """
export const title = () => "Seen";
export async function show(root) { root.append("all is well"); return {close() {}}; }
"""


@pytest.fixture
def page(visiting: Visiting) -> Iterator[Visit]:
    with CommandBus("host=/nonexistent") as bus:
        application = Application(bus, {}, {}, access=TokenAccess(TOKEN))
        with (
            serving(application) as server,
            visiting(f"http://127.0.0.1:{server.address[1]}") as visit,
        ):
            show_by(visit, {"seen": VIEW})
            yield visit


def sign_in(page: Visit, token: str) -> None:
    page.find("#token").fill(token)
    page.press("Enter")


def test_a_reader_signs_in_where_a_link_has_led_and_signs_out(page: Visit) -> None:
    page.open("#/seen?x=1")
    page.sees("cmdbus web --auth token", "form")
    assert page.barriers() == []
    sign_in(page, "wrong")
    page.sees("This is not the token.", "[role=alert]")
    page.excuse("403")
    sign_in(page, TOKEN)
    page.sees("all is well", "#view")
    assert page.tab.url.endswith("/#/seen?x=1") and TOKEN not in page.tab.url
    assert page.tab.context.cookies()[0].get("httpOnly")
    assert page.read("document.cookie") == ""
    page.open("sign-in#/seen")
    page.sees("all is well", "#view")
    page.find("button", "Sign out").click()
    page.sees("Token", "form")
    assert page.tab.context.cookies() == []


def test_a_link_on_another_site_leads_a_reader_who_is_signed_in_to_the_page(page: Visit) -> None:
    page.open("#/seen")
    sign_in(page, TOKEN)
    page.sees("all is well", "#view")
    link = f"<a href='{page.address}/#/seen'>the page</a>"
    page.tab.route(
        "http://other.example/", lambda route: route.fulfill(body=link, content_type="text/html")
    )
    page.tab.goto("http://other.example/")
    page.find("a").click()
    page.sees("all is well", "#view")
    page.excuse("other.example")
