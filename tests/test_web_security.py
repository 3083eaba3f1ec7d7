"""Who may use the page, and what keeps other pages from using it."""

from collections.abc import Mapping
from typing import Any

import pytest
from web import Reply, ask, entered

from cmdbus import CommandBus
from cmdbus.web import application
from cmdbus.web.action import Action
from cmdbus.web.security import tickets
from cmdbus.web.security.access import HeaderAccess, LocalAccess, check_header
from cmdbus.web.security.tickets import LIFETIME, Tickets
from cmdbus.web.security.token_access import Guesses, TokenAccess
from cmdbus.web.wsgi import Application

NOWHERE = "host=/nonexistent"
TOKEN = "t" * 43
FORM: dict[str, Any] = {"CONTENT_TYPE": "application/x-www-form-urlencoded"}


def perform(bus: CommandBus, body: Mapping[str, Any], operator: str) -> dict[str, Any]:
    return {"done": operator}


POKE = Action("poke", lambda bus, body: {"title": "Poke"}, perform)


def page(**options: Any) -> Application:
    views = {"seen": lambda bus, query: {"text": "<script>"}}
    return Application(CommandBus(NOWHERE), views, {"poke": POKE}, **options)


def poked(application: Application, **options: Any) -> Reply:
    return ask(application, "/api/actions/poke", method="POST", body={"operator": "ann"}, **options)


def sign_in(application: Application, token: str = TOKEN, **options: Any) -> Reply:
    body = f"token={token}".encode()
    return ask(application, "/sign-in", method="POST", bare=True, body=body, **FORM, **options)


def cookie_of(reply: Reply) -> dict[str, str]:
    return {"Cookie": reply.headers["Set-Cookie"].partition(";")[0]}


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/seen", "/api/none", "/none"])
def test_each_response_forbids_other_pages_to_use_it(path: str) -> None:
    headers = ask(page(), path).headers
    policy = headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= {*policy}
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert ("no-store" in headers["Cache-Control"]) is path.startswith(("/api", "/none"))
    assert "Access-Control-Allow-Origin" not in headers


LOCAL: list[tuple[dict[str, Any], int]] = [
    ({"HTTP_HOST": "localhost:8080"}, 200),
    ({"HTTP_HOST": "127.0.0.1:8080"}, 200),
    ({"HTTP_HOST": "[::1]:8080", "REMOTE_ADDR": "::1"}, 200),
    ({"HTTP_HOST": "ops.localhost", "REMOTE_ADDR": "::ffff:127.0.0.1"}, 200),
    ({"HTTP_HOST": "ops"}, 200),
    ({"HTTP_HOST": "evil.example"}, 403),
    ({"HTTP_HOST": "localhost.evil.example"}, 403),
    ({"HTTP_HOST": "localhost:80@evil.example"}, 403),
    ({"HTTP_HOST": ""}, 403),
    ({"REMOTE_ADDR": "10.0.0.7"}, 403),
    ({"REMOTE_ADDR": ""}, 403),
    ({"HTTP_X_FORWARDED_FOR": "10.0.0.7"}, 403),
    ({"HTTP_FORWARDED": "for=10.0.0.7"}, 403),
    ({"SERVER_PROTOCOL": "HTTP/1.0"}, 403),
]


@pytest.mark.parametrize(("environ", "status"), LOCAL)
def test_without_a_sign_in_it_is_for_this_machine_alone(
    environ: dict[str, Any], status: int
) -> None:
    for path in ("/", "/static/app.js", "/api/seen"):
        assert ask(page(access=LocalAccess("ops")), path, **environ).status == status


CHANGES: list[tuple[dict[str, Any], int]] = [
    ({}, 200),
    ({"HTTP_ORIGIN": "http://localhost"}, 200),
    ({"HTTP_ORIGIN": "http://localhost:80", "HTTP_SEC_FETCH_SITE": "same-origin"}, 200),
    ({"HTTP_ORIGIN": "http://evil.example"}, 403),
    ({"HTTP_ORIGIN": "http://localhost:81"}, 403),
    ({"HTTP_ORIGIN": "null"}, 403),
    ({"HTTP_ORIGIN": "http://[evil"}, 403),
    ({"HTTP_SEC_FETCH_SITE": "cross-site"}, 403),
    ({"HTTP_SEC_FETCH_SITE": "same-site"}, 403),
    ({"HTTP_SEC_FETCH_SITE": "none"}, 403),
    ({"CONTENT_TYPE": "text/plain"}, 415),
    ({"CONTENT_TYPE": "application/x-www-form-urlencoded"}, 415),
    ({"HTTP_X_CSRF_TOKEN": ""}, 403),
    ({"HTTP_X_CSRF_TOKEN": "\xe4"}, 403),
    ({"HTTP_COOKIE": ""}, 403),
    ({"HTTP_COOKIE": "cmdbus_web_80=a.9.b; cmdbus_web_80=.."}, 403),
]


@pytest.mark.parametrize(("environ", "status"), CHANGES)
def test_a_change_comes_from_this_page_alone(environ: dict[str, Any], status: int) -> None:
    application = page()
    headers = entered(application)
    given: dict[str, Any] = {"HTTP_COOKIE": headers["Cookie"]}
    given["HTTP_X_CSRF_TOKEN"] = headers["X-CSRF-Token"]
    for what in ("preview", "actions"):
        reply = ask(
            application,
            f"/api/{what}/poke",
            method="POST",
            body={"operator": "ann"},
            bare=True,
            **{**given, **environ},
        )
        assert reply.status == status


def test_another_page_cannot_make_a_browser_read() -> None:
    assert ask(page(), "/api/seen", headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert ask(page(), "/", headers={"Sec-Fetch-Site": "cross-site"}).status == 200


def test_the_cookie_is_for_this_page_alone() -> None:
    reply = ask(page(), "/api/session", SCRIPT_NAME="/ops page", SERVER_PORT="8080")
    cookie = reply.headers["Set-Cookie"]
    assert cookie.startswith("cmdbus_web_8080=")
    assert "; Path=/ops%20page/; " in cookie and "Secure" not in cookie
    assert cookie.endswith("; HttpOnly; SameSite=Strict")
    environs: list[dict[str, Any]] = [
        {"wsgi.url_scheme": "https"},
        {"HTTP_X_FORWARDED_PROTO": "https"},
    ]
    for environ in environs:
        secure = ask(page(), "/api/session", **environ).headers["Set-Cookie"]
        assert secure.endswith("; SameSite=Strict; Secure")


def test_a_ticket_is_renewed_when_the_page_is_loaded_an_hour_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    application = page()
    cookie = cookie_of(ask(application, "/api/session"))
    assert "Set-Cookie" not in ask(application, "/api/session", headers=cookie).headers
    now = tickets._seconds()
    monkeypatch.setattr(tickets, "_seconds", lambda: now + 3601)
    assert "Set-Cookie" in ask(application, "/api/session", headers=cookie).headers


def test_processes_with_one_secret_take_each_others_tickets() -> None:
    first, second, other = page(secret=b"s" * 16), page(secret=b"s" * 16), page(secret=b"o" * 16)
    headers = entered(first)
    assert poked(second, headers=headers, bare=True).status == 200
    assert poked(other, headers=headers, bare=True).status == 403
    lonely = page()
    reply = poked(lonely, **{"wsgi.multiprocess": True})
    assert reply.status == 403 and "secret=" in reply.json["error"]
    with pytest.raises(ValueError, match="at least 16 bytes"):
        application(CommandBus(NOWHERE), secret="short")


def test_a_viewer_changes_nothing() -> None:
    viewer = page(role="viewer")
    for what in ("preview", "actions"):
        reply = ask(viewer, f"/api/{what}/poke", method="POST", body={"operator": "ann"})
        assert reply.status == 403 and "a viewer changes nothing" in reply.json["error"]
    assert ask(viewer, "/api/seen").status == 200
    by_name = page(role=lambda environ: str(environ["ops.role"]))
    assert poked(by_name, **{"ops.role": "viewer"}).status == 403
    assert poked(by_name, **{"ops.role": "operator"}).status == 200


def test_the_name_of_the_user_is_that_of_the_operator() -> None:
    def user(environ: Mapping[str, Any]) -> str | None:
        name = environ.get("ops.user")
        return None if name is None else str(name)

    mounted = application(CommandBus(NOWHERE), user=user)
    for name in (None, "", " ", "a\nb", "a\x1b[1mb", "x" * 1000):
        for path in ("/", "/api/session", "/static/app.js"):
            named: dict[str, Any] = {"ops.user": name}
            assert ask(mounted, path, **named).status == 403
    ann: dict[str, Any] = {"ops.user": "ann", "REMOTE_ADDR": "10.0.0.7"}
    session = ask(mounted, "/api/session", **ann)
    assert (session.json["user"], session.json["operator"]) == ("ann", "ann")
    headers = {**cookie_of(session), "X-CSRF-Token": session.json["csrf"]}
    stolen = poked(mounted, headers=headers, bare=True, **{"ops.user": "eve"})
    assert stolen.status == 403


def test_a_proxy_names_the_user() -> None:
    proxied = page(access=HeaderAccess("X-Forwarded-User"))
    far: dict[str, Any] = {"REMOTE_ADDR": "10.0.0.7", "HTTP_HOST": "ops.example"}
    assert ask(proxied, "/", **far).status == 403
    assert "X-Forwarded-User" in ask(proxied, "/api/seen", **far).json["error"]
    assert ask(proxied, "/api/seen", headers={"X-Forwarded-User": "a\tb"}, **far).status == 403
    named: dict[str, Any] = {
        "HTTP_X_FORWARDED_USER": "J\xc3\xbcrg",
        "HTTP_ORIGIN": "https://ops.example",
    }
    assert poked(proxied, **far, **named).json == {"done": "Jürg"}
    renamed = {**far, **named, "HTTP_HOST": "inner:8080", "HTTP_X_FORWARDED_HOST": "ops.example"}
    assert poked(proxied, **renamed).status == 200


@pytest.mark.parametrize("name", ["", "X_User", "X-User:", "Host", "cookie", "X" * 200, "Ü"])
def test_only_a_header_of_a_proxy_names_users(name: str) -> None:
    with pytest.raises(ValueError):
        check_header(name)


def test_a_token_signs_in_and_out() -> None:
    application = page(access=TokenAccess(TOKEN))
    assert ask(application, "/api/seen").status == 401
    assert ask(application, "/api/live?view=seen").status == 401
    assert poked(application).status == 401
    redirected = ask(application, "/")
    assert (redirected.status, redirected.headers["Location"]) == (303, "sign-in")
    assert b'type="password"' in ask(application, "/sign-in").body
    wrong = sign_in(application, "x")
    assert wrong.status == 403 and b"This is not the token." in wrong.body
    signed_in = sign_in(application)
    assert (signed_in.status, signed_in.headers["Location"]) == (303, "./")
    assert TOKEN not in str(signed_in.headers)
    cookie = cookie_of(signed_in)
    assert ask(application, "/", headers=cookie).status == 200
    assert ask(application, "/sign-in", headers=cookie).headers["Location"] == "./"
    session = ask(application, "/api/session", headers=cookie).json
    assert session["signs_out"] and session["user"] is None
    headers = {**cookie, "X-CSRF-Token": session["csrf"]}
    assert poked(application, headers=headers, bare=True).status == 200
    options: Any = {"method": "POST", "body": {}, "bare": True}
    assert ask(application, "/api/sign-out", headers=cookie, **options).status == 403
    done = ask(application, "/api/sign-out", headers=headers, **options)
    assert done.status == 200 and "=; Path=/; Max-Age=0" in done.headers["Set-Cookie"]
    assert ask(application, "/api/session", headers=cookie).status == 401, "nor is a copy taken"


def test_the_form_takes_the_token_from_this_page_alone() -> None:
    application = page(access=TokenAccess(TOKEN))
    for name, value in (("ORIGIN", "http://evil.example"), ("SEC_FETCH_SITE", "cross-site")):
        assert sign_in(application, **{f"HTTP_{name}": value}).status == 403
    assert ask(application, f"/sign-in?token={TOKEN}").headers.get("Set-Cookie") is None
    large = ask(application, "/sign-in", method="POST", bare=True, body=b"x" * 5000, **FORM)
    assert large.status == 413
    odd = ask(application, "/sign-in", method="POST", bare=True, body=b"{}")
    assert odd.status == 415
    assert ask(page(), "/sign-in").status == 404


def test_a_ticket_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tickets(b"s" * 32)
    ticket = made.issue("")
    assert made.expiry(ticket, "") == LIFETIME and made.expiry(ticket, "user:ann") is None
    assert made.expiry(f"{ticket}x", "") is None and made.expiry("", "") is None
    assert made.expiry(ticket.replace(".1", ".2", 1), "") is None
    now = tickets._seconds()
    monkeypatch.setattr(tickets, "_seconds", lambda: now + LIFETIME + 1)
    assert made.expiry(ticket, "") is None


def test_wrong_tokens_are_counted_by_address() -> None:
    now = [0.0]
    guesses = Guesses(lambda: now[0])
    for _ in range(10):
        assert guesses.too_many("a") == 0
        guesses.note("a")
    assert guesses.too_many("a") == 60 and guesses.too_many("b") == 0
    now[0] = 60.0
    assert guesses.too_many("a") == 0
    for number in range(2000):
        guesses.note(str(number))
    assert len(guesses._wrong) == 1000
    application = page(access=TokenAccess(TOKEN))
    statuses = [sign_in(application, "x", REMOTE_ADDR="10.0.0.7").status for _ in range(11)]
    assert statuses == [403] * 10 + [429]
    assert sign_in(application, REMOTE_ADDR="10.0.0.7").status == 429
    assert sign_in(application).status == 303


def test_a_mount_without_its_slash_leads_to_the_page() -> None:
    reply = ask(page(), "", SCRIPT_NAME="/ops page")
    assert (reply.status, reply.headers["Location"]) == (303, "/ops%20page/")
    assert ask(page(), "").status == 200
