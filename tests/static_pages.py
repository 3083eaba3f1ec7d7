"""The files of the operators' page in a browser, with answers that a test gives."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from visits import Visit

from cmdbus.web import assets

if TYPE_CHECKING:
    from playwright.sync_api import Route

ADDRESS = "http://page.test"
SESSION = {
    "user": None,
    "operator": None,
    "role": "operator",
    "acts": True,
    "reads_data": True,
    "csrf": "token",
    "version": "0",
    "schema": "cmdbus",
    "database": "test",
    "live": "events",
}
#: As strict as that of the server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)


def serve(
    visit: Visit, answers: Mapping[str, Any] | None = None, modules: Mapping[str, str] | None = None
) -> None:
    """Answers by path below `api/`, and modules by their path below `static/`, may change later.

    An answer is a JSON value, text of an event stream, or a pair of a status and a value. What
    has none is not found.
    """
    api = {"session": SESSION} if answers is None else answers
    sources = modules or {}

    def respond(route: "Route") -> None:
        url = urlsplit(route.request.url)
        path = url.path.removeprefix("/")
        if path.startswith("api/"):
            _answer(route, api.get(path.removeprefix("api/"), (404, {"error": "not here"})))
            return
        name = "index.html" if not path else path.removeprefix("static/")
        headers = {"Content-Security-Policy": POLICY}
        if name in sources:
            route.fulfill(body=sources[name], content_type="text/javascript", headers=headers)
            return
        found = assets.find(name)
        if found is None or not isinstance(found.body, bytes):
            route.fulfill(status=HTTPStatus.NOT_FOUND, body="{}", content_type="application/json")
            return
        route.fulfill(body=found.body, content_type=found.type, headers=headers)

    visit.tab.route("**/*", respond)


def _answer(route: "Route", answer: Any) -> None:
    status, value = answer if isinstance(answer, tuple) else (200, answer)
    if isinstance(value, str):
        route.fulfill(status=status, body=value, content_type="text/event-stream")
    else:
        route.fulfill(status=status, body=json.dumps(value), content_type="application/json")
