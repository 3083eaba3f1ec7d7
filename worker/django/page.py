"""The operators' page below a path of a project, for users whom the project has signed in."""

import io
from collections.abc import Callable, Mapping
from functools import cache
from http.client import responses
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import URLPattern, re_path
from django.views.decorators.csrf import csrf_exempt

from cmdbus.database.dsn import with_defaults
from cmdbus.django.buses import bus_in
from cmdbus.django.dsn import dsn_of
from cmdbus.producer.bus import CommandBus
from cmdbus.web.security.gate import OPERATOR, VIEWER

_REQUEST = "cmdbus.django.request"
_SECRET_BYTES = 16


def staff(request: HttpRequest) -> str | None:
    """The name of a user whom Django's admin would let in, too."""
    user = getattr(request, "user", None)
    return user.get_username() if user is not None and user.is_active and user.is_staff else None


def superusers_operate(request: HttpRequest) -> str:
    """Superusers are operators, and all others viewers."""
    return OPERATOR if request.user.is_superuser else VIEWER


def page_urls(
    bus: CommandBus | None = None,
    *,
    user: Callable[[HttpRequest], str | None] = staff,
    role: str | Callable[[HttpRequest], str] = superusers_operate,
) -> list[URLPattern]:
    """For `path("ops/", include(page_urls()))`.

    `user` returns the name of who asks, for the audit trail, or None for those whom the page is
    not for; `role` is "operator" or "viewer", or returns one of them. Without a `bus` it is that of
    the settings, in sessions of its own.
    """

    @cache
    def application() -> Callable[..., Any]:
        from cmdbus.web import application

        secret = settings.SECRET_KEY.encode().ljust(_SECRET_BYTES, b"\0")
        return application(
            bus or _bus(),
            user=lambda environ: user(environ[_REQUEST]),
            role=role if isinstance(role, str) else lambda environ: role(environ[_REQUEST]),
            secret=secret,
        )

    @csrf_exempt  # The page has a token of its own, which is not the project's.
    def view(request: HttpRequest, path: str) -> HttpResponseBase:
        return _answered(application(), request, path)

    return [re_path(r"^(?P<path>.*)$", view, name="cmdbus_page")]


def _bus() -> CommandBus:
    from cmdbus.web.serving import DSN_DEFAULTS

    found = bus_in(None)
    dsn = with_defaults(dsn_of(found.using), **DSN_DEFAULTS)
    return CommandBus(dsn, schema=found.schema)


def _answered(application: Callable[..., Any], request: HttpRequest, path: str) -> HttpResponseBase:
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        started[:] = int(status.split()[0]), headers

    body = application(_environ(request, path), start_response)
    status, headers = started
    response: HttpResponseBase
    if isinstance(body, list):
        response = HttpResponse(b"".join(body), status=status, reason=responses[status])
    else:
        response = StreamingHttpResponse(body, status=status)
    for name, value in headers:
        if name == "Set-Cookie":
            response.cookies.load(value)
        else:
            response.headers[name] = value
    return response


def _environ(request: HttpRequest, path: str) -> Mapping[str, Any]:
    """Of the WSGI or ASGI server; without threads of its own, which an ASGI server does not have
    for a stream, the page asks again and again."""
    whole = request.META.get("SCRIPT_NAME", "") + request.path_info
    return {
        **request.META,
        "SCRIPT_NAME": _as_wsgi(whole.removesuffix(path).rstrip("/")),
        "PATH_INFO": _as_wsgi(f"/{path}"),
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.url_scheme": request.scheme,
        "wsgi.multithread": request.META.get("wsgi.multithread", False),
        "wsgi.multiprocess": True,
        _REQUEST: request,
    }


def _as_wsgi(text: str) -> str:
    return text.encode().decode("latin-1")
