"""The page as a WSGI application: what it answers to which path."""

import gzip
import re
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

import psycopg
import pytest
from roles import role
from web import ask
from web_server import Client, serving

from cmdbus import CommandBus
from cmdbus.errors import (
    CommandNotFoundError,
    DatabaseUnavailableError,
    InvalidOperationError,
    MissingRightError,
)
from cmdbus.producer.ids import new_id
from cmdbus.web import application, assets
from cmdbus.web.action import Action
from cmdbus.web.http.request import BODY_BYTES
from cmdbus.web.json_values import encode
from cmdbus.web.query import BadQuery, Query, parse_view
from cmdbus.web.views.payload_values import bounded
from cmdbus.web.wsgi import Application

NOWHERE = "host=/nonexistent"


def view(bus: CommandBus, query: Query) -> object:
    return {"parts": query.parts, "n": query.whole("n", 5, 1, 9), "at": query.time("at")}


def fails(bus: CommandBus, query: Query) -> object:
    raise ERRORS[query.part(0, "an error")]


def perform(bus: CommandBus, body: Mapping[str, Any], operator: str) -> dict[str, Any]:
    return {"done": f"{operator} did it", "count": 1}


ERRORS: dict[str, Exception] = {
    "missing": CommandNotFoundError("mail", new_id()),
    "state": InvalidOperationError("it runs"),
    "right": MissingRightError("no"),
    "away": DatabaseUnavailableError("no server"),
    "value": ValueError("wrong"),
    "slow": psycopg.errors.QueryCanceled("canceling statement due to statement timeout"),
    "shutdown": psycopg.errors.AdminShutdown("terminating connection"),
    "broken": psycopg.OperationalError("the connection is lost"),
    "refused": psycopg.errors.UndefinedColumn("no such column\nDETAIL: secret"),
    "misused": psycopg.ProgrammingError("the query has 1 placeholder"),
    "bug": KeyError("secret"),
}
ACTION = Action("poke", lambda bus, body: {"title": "Poke"}, perform)


def made() -> Application:
    bus = CommandBus(NOWHERE)
    views = {"seen": view, "fails": fails}
    return Application(bus, views, {"poke": ACTION}, role="operator")


def test_it_is_an_application_as_the_standard_of_wsgi_describes_it() -> None:
    page = made()
    with serving(validator(page)) as server, Client(server) as client:
        paths = ("/", "/static/app.js", "/api/session", "/api/seen", "/none")
        assert [client.get(path)[0] for path in paths] == [200, 200, 200, 200, 404]
        client.send(b"GET /api/live?view=seen HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.until(b"event: view\n").startswith(b"HTTP/1.1 200 OK\r\n")
    page.close()


def test_a_view_is_read_with_its_path_and_its_parameters() -> None:
    reply = ask(made(), "/api/seen/a/b?n=3&at=2026-01-01T01:00:00%2B01:00")
    assert reply.status == 200 and reply.headers["Cache-Control"] == "no-store"
    assert reply.json == {"parts": ["a", "b"], "n": 3, "at": "2026-01-01T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/api/seen?n=10", "n must be a whole number from 1 to 9"),
        ("/api/seen?n=x", "n must be a whole number from 1 to 9"),
        ("/api/seen?at=yesterday", "at must be a time with its offset"),
        ("/api/seen?at=2026-01-01", "at must be a time with its offset"),
        ("/api/seen?m=1", "there is no parameter 'm': there are at, n"),
        ("/api/seen?n=1&n=2", "a parameter is given twice"),
        ("/api/fails", "the path lacks an error"),
    ],
)
def test_a_malformed_question_is_answered_with_a_sentence(path: str, sentence: str) -> None:
    reply = ask(made(), path)
    assert reply.status == 400 and reply.json["error"].startswith(sentence)


@pytest.mark.parametrize(
    ("name", "status"),
    [("missing", 404), ("state", 409), ("right", 403), ("away", 503), ("value", 400)],
)
def test_each_error_of_the_bus_has_its_status_and_its_sentence(name: str, status: int) -> None:
    reply = ask(made(), f"/api/fails/{name}")
    assert (reply.status, reply.json["error"]) == (status, str(ERRORS[name]))
    assert reply.json.get("away", False) is (name == "away")


@pytest.mark.parametrize(
    ("name", "status", "sentence"),
    [
        ("slow", 504, "the database did not answer in time"),
        ("shutdown", 503, "terminating connection"),
        ("broken", 503, "the connection is lost"),
        ("refused", 500, "the database answered: no such column"),
        ("misused", 500, "the page failed"),
    ],
)
def test_an_error_of_the_database_is_a_sentence(name: str, status: int, sentence: str) -> None:
    reply = ask(made(), f"/api/fails/{name}")
    assert reply.status == status and reply.json["error"].startswith(sentence)
    assert "secret" not in reply.json["error"]
    assert reply.json.get("away", False) is (status == 503)


def test_a_defect_is_logged_by_its_place_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    reply = ask(made(), "/api/fails/bug")
    assert reply.status == 500 and b"secret" not in reply.body
    assert "KeyError in test_web_application.py:" in caplog.text and "secret" not in caplog.text
    assert len(caplog.text.splitlines()) == 1


@pytest.mark.parametrize(
    "path", ["/api/none", "/none", "/static/../wsgi.py", "/static/none.js", "/static/", "/api/"]
)
def test_what_does_not_exist_is_not_found(path: str) -> None:
    assert ask(made(), path).status == 404


def test_only_methods_that_a_path_knows_are_allowed() -> None:
    assert ask(made(), "/", method="POST").headers["Allow"] == "GET, HEAD"
    assert ask(made(), "/api/seen", method="DELETE").status == 405
    assert ask(made(), "/api/actions/poke").headers["Allow"] == "POST"
    head = ask(made(), "/api/seen", method="HEAD")
    assert (head.status, head.body) == (200, b"") and int(head.headers["Content-Length"]) > 0


def test_files_are_sent_with_their_type_and_not_again_to_a_browser_that_has_them() -> None:
    page = ask(made(), "/")
    assert page.status == 200 and page.headers["Content-Type"] == "text/html; charset=utf-8"
    script = ask(made(), "/static/app.js")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    again = ask(made(), "/static/app.js", headers={"If-None-Match": script.headers["ETag"]})
    assert (again.status, again.body) == (HTTPStatus.NOT_MODIFIED, b"")


def test_files_that_the_page_names_are_kept_by_a_browser_until_one_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(assets.FOLDER, tmp_path / "static")
    monkeypatch.setattr(assets, "FOLDER", tmp_path / "static")
    assets._names.cache_clear()
    try:
        page = ask(made(), "/")
        [name] = re.findall(rb'src="(static/[0-9a-f]{12}/app\.js)"', page.body)
        script = ask(made(), f"/{name.decode()}")
        assert "immutable" in script.headers["Cache-Control"]
        (tmp_path / "static/style.css").write_text("")
        assert name not in ask(made(), "/").body
        old = ask(made(), f"/{name.decode()}")
        assert (old.status, old.body) == (200, script.body)
        assert old.headers["Cache-Control"] == page.headers["Cache-Control"] == "no-cache"
    finally:
        assets._names.cache_clear()


def test_large_files_are_compressed_for_browsers_that_can_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = ask(made(), "/")
    small = ask(made(), "/", headers={"Accept-Encoding": "br, gzip"})
    body = gzip.decompress(small.body) if "Content-Encoding" in small.headers else small.body
    assert body == plain.body


def test_an_action_is_previewed_and_performed_in_the_name_of_an_operator() -> None:
    preview = ask(made(), "/api/preview/poke", method="POST", body={})
    assert preview.json == {"title": "Poke"}
    done = ask(made(), "/api/actions/poke", method="POST", body={"operator": "ann"})
    assert done.json == {"done": "ann did it", "count": 1}
    assert ask(made(), "/api/actions/poke", method="POST", body={}).status == 400
    assert ask(made(), "/api/actions/none", method="POST", body={}).status == 404


def test_changes_of_one_target_come_one_after_another() -> None:
    """Else two operators, or two clicks, would both find what their previews have shown."""
    seen: list[str] = []
    first_begun, second_begun, other_ends = threading.Event(), threading.Event(), threading.Event()

    def wait(bus: CommandBus, body: Mapping[str, Any], operator: str) -> dict[str, Any]:
        seen.append(f"{operator} begins")
        if operator == "first":
            first_begun.set()
            assert other_ends.wait(20)
            second_begun.wait(0.2)
        elif operator == "second":
            second_begun.set()
        else:
            other_ends.set()
        seen.append(f"{operator} ends")
        return {"done": operator}

    action = Action("wait", lambda bus, body: {}, wait)
    page = Application(CommandBus(NOWHERE), {}, {"wait": action}, role="operator")

    def act(operator: str, domain: str) -> int:
        body = {"operator": operator, "target": {"domain": domain}}
        return ask(page, "/api/actions/wait", method="POST", body=body).status

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(act, "first", "mail")
        assert first_begun.wait(10)
        second = threads.submit(act, "second", "mail")
        assert act("other", "orders") == first.result(20) == second.result(20) == 200
    assert seen.index("first ends") < seen.index("second begins")


@pytest.mark.parametrize("name", ["a\nb", "\u202eann", "a\tb"])
def test_a_name_that_does_not_read_as_what_it_is_names_no_operator(name: str) -> None:
    reply = ask(made(), "/api/actions/poke", method="POST", body={"operator": name})
    assert (reply.status, "not printable" in reply.json["error"]) == (400, True)


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 30_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    assert ask(made(), "/api/actions/poke", method="POST", body=body).status == 400


def test_a_body_is_bounded_and_whole() -> None:
    large = ask(made(), "/api/actions/poke", method="POST", body=b" " * (BODY_BYTES + 1))
    assert large.status == 413
    for length in ("9" * 30, "-1", "x", "5"):
        reply = ask(made(), "/api/actions/poke", method="POST", body=b"{}", CONTENT_LENGTH=length)
        assert reply.status in (400, 413)


def test_the_page_starts_while_the_database_is_away() -> None:
    class Away(CommandBus):
        def rights(self, **_: object) -> Any:
            raise DatabaseUnavailableError("no server there")

    reply = ask(application(Away(NOWHERE)), "/api/session")
    assert reply.status == 200 and reply.json["away"] == "no server there"


def test_the_session_says_what_the_database_role_may_do(dsn: str, bus: CommandBus) -> None:
    reply = ask(application(bus), "/api/session")
    assert reply.json["acts"] and reply.json["reads_data"] and reply.json["schema"] == "cmdbus"
    assert not ask(application(bus, role="viewer"), "/api/session").json["acts"]
    for kind, reads, operates in (("monitor", False, False), ("operator", True, True)):
        with role(dsn, kind) as connection:
            rights = bus.rights(connection=connection)
        assert (rights.reads_data, rights.operates) == (reads, operates)


def test_another_role_is_refused() -> None:
    with pytest.raises(ValueError, match="role must be one of operator, viewer, not 'root'"):
        application(CommandBus(NOWHERE), role="root")


def test_paths_of_subscriptions_are_those_of_requests() -> None:
    name, query = parse_view("command/mail/a%2Fb?n=3&at=")
    assert (name, query.parts) == ("command", ("mail", "a/b"))
    assert query.whole("n", 0, 0, 9) == 3 and query.time("at") is None
    with pytest.raises(BadQuery):
        parse_view("x?" + "a&" * 50)


def test_values_have_one_form_in_json() -> None:
    value = {"at": datetime(2026, 1, 1, tzinfo=UTC), "for": timedelta(minutes=1), "x": float("nan")}
    assert encode(value) == '{"at":"2026-01-01T00:00:00+00:00","for":60.0,"x":null}'
    assert encode({"t": "\ud800\u2028"}) == '{"t":"\\ud800\\u2028"}'
    with pytest.raises(TypeError):
        encode(object())


def test_a_payload_is_cut_between_characters() -> None:
    assert bounded('"äö"', 4) == {"text": '"ä', "bytes": 6, "cut": True}
    assert bounded('"ä"', 4) == {"text": '"ä"', "bytes": 4, "cut": False}
