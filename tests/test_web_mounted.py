"""The page below a path of an application with users of its own."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from django_support import set_up
from flask import Flask, session
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client, TestResponse

from cmdbus import CommandBus
from cmdbus.web import application

PAUSE: dict[str, Any] = {"target": {"domain": "mail"}, "values": {}, "reason": "mounted"}


@pytest.fixture
def client(bus: CommandBus) -> Client:
    """Of a shop whose user is signed in by opening /sign-in/NAME."""
    shop = Flask(__name__)
    shop.secret_key = "not one"

    @shop.get("/sign-in/<name>")
    def sign_in(name: str) -> str:
        session["user"] = name
        return name

    def user(environ: Mapping[str, Any]) -> str | None:
        with shop.request_context(dict(environ)):
            return session.get("user")

    page = application(bus, user=user, secret="the same in all processes")
    return Client(DispatcherMiddleware(shop, {"/ops/cmdbus": page}))


def acted(client: Client, csrf: str) -> TestResponse:
    return client.post("/ops/cmdbus/api/actions/pause", json=PAUSE, headers={"X-CSRF-Token": csrf})


def test_flask_mounts_it_for_its_own_users(client: Client, bus: CommandBus) -> None:
    bus.send("mail", "Greet")
    refused = client.get("/ops/cmdbus/")
    assert (refused.status_code, refused.mimetype) == (403, "text/plain"), "people read it"
    assert "you are not signed in" in refused.text
    client.get("/sign-in/ann")
    assert client.get("/ops/cmdbus").headers["Location"] == "/ops/cmdbus/"
    assert '<script type="module" src="static/' in client.get("/ops/cmdbus/").text
    assert client.get("/ops/cmdbus/static/app.js").mimetype == "text/javascript"
    begun = client.get("/ops/cmdbus/api/session")
    assert begun.json is not None and begun.json["user"] == "ann"
    assert "Path=/ops/cmdbus/;" in begun.headers["Set-Cookie"]
    assert acted(client, "").status_code == 403
    assert acted(client, begun.json["csrf"]).status_code == 200
    [event] = bus.domain_audit("mail")
    assert (event.kind, event.operator) == ("PAUSED", "ann")
    client.get("/sign-in/eve")
    assert acted(client, begun.json["csrf"]).status_code == 403


class DjangoUser:
    is_active = True

    def __init__(self, name: str, *, is_staff: bool, is_superuser: bool) -> None:
        self.name, self.is_staff, self.is_superuser = name, is_staff, is_superuser

    def get_username(self) -> str:
        return self.name


USERS = {
    "ann": DjangoUser("ann", is_staff=True, is_superuser=True),
    "bob": DjangoUser("bob", is_staff=True, is_superuser=False),
    "eve": DjangoUser("eve", is_staff=False, is_superuser=False),
}


def as_user(get_response: Any) -> Any:
    """A middleware like the one of django.contrib.auth."""

    def middleware(request: Any) -> Any:
        if name := request.headers.get("User"):
            request.user = USERS[name]
        return get_response(request)

    return middleware


@pytest.fixture
def django_client(django_dsn: str) -> Any:
    set_up()
    from django.test import Client, override_settings
    from django.urls import include, path

    from cmdbus.django.page import page_urls

    with CommandBus(django_dsn) as bus:
        urls = ModuleType("urls")
        urls.urlpatterns = [  # type: ignore[attr-defined]
            path("ops/", include(page_urls(bus))),
            path("own/", include(page_urls(user=lambda request: "cy", role="viewer"))),
        ]
        with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[f"{__name__}.as_user"]):
            yield Client(enforce_csrf_checks=True)


def test_django_shows_it_to_its_staff(django_client: Any, django_dsn: str) -> None:
    for name, status, acts in (("ann", 200, True), ("bob", 200, False), ("eve", 403, None)):
        assert django_client.get("/ops/", headers={"User": name}).status_code == status
        reply = django_client.get("/ops/api/session", headers={"User": name})
        assert reply.status_code == status and reply.json().get("acts") is acts
    assert django_client.get("/ops/").status_code == 403
    ann: Any = {"User": "ann"}
    session = django_client.get("/ops/api/session", headers=ann)
    [cookie] = django_client.cookies.values()
    assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == ("/ops/", True, "Strict")
    options: Any = {"data": PAUSE, "content_type": "application/json"}
    csrf = {**ann, "X-CSRF-Token": session.json()["csrf"]}
    with CommandBus(django_dsn) as bus:
        bus.send("mail", "Greet")
        assert (
            django_client.post("/ops/api/actions/pause", headers=ann, **options).status_code == 403
        )
        done = django_client.post("/ops/api/actions/pause", headers=csrf, **options)
        assert done.status_code == 200, done.content
        assert bus.domain_audit("mail")[-1].operator == "ann"
    live = django_client.get("/ops/api/live?view=none", headers=ann)
    assert live.headers["Content-Type"] == "text/event-stream" or live.json()["again"]
    if live.streaming:
        live.close()


def test_django_takes_the_database_of_its_settings(django_client: Any, django_dsn: str) -> None:
    session = django_client.get("/own/api/session").json()
    assert (session["user"], session["role"], session["schema"]) == ("cy", "viewer", "cmdbus")
    assert session["database"] in django_dsn
