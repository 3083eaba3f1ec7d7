"""The page as a WSGI application: finds what a request asks for, and answers."""

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from cmdbus.checks import check_operator
from cmdbus.producer.bus import CommandBus
from cmdbus.web import assets
from cmdbus.web.action import Action, Turns
from cmdbus.web.failures import failure
from cmdbus.web.http.request import Request, TooLarge
from cmdbus.web.http.runner import place_of
from cmdbus.web.json_values import encode
from cmdbus.web.live import Feed, FeedFullError, watched
from cmdbus.web.query import BadQuery, NotFound, parse
from cmdbus.web.responses import Response, json_response, refusal, text_refusal, with_headers
from cmdbus.web.security.access import Access, LocalAccess, is_printable
from cmdbus.web.security.gate import OPERATOR, Entry, Gate, RefusedError, Role
from cmdbus.web.security.origins import HEADERS, foreign_origin, is_foreign_read
from cmdbus.web.security.tickets import Tickets
from cmdbus.web.security.token_access import TokenAccess
from cmdbus.web.session import session
from cmdbus.web.sign_in import SignIn
from cmdbus.web.view import Views, read, read_path

logger = logging.getLogger(__name__)

StartResponse = Callable[[str, list[tuple[str, str]]], object]

_CHANGES = ("api/preview/", "api/actions/", "api/sign-out")


class Application:
    def __init__(
        self,
        bus: CommandBus,
        views: Views,
        actions: Mapping[str, Action],
        *,
        role: Role = OPERATOR,
        access: Access | None = None,
        secret: bytes | None = None,
        operator: str | None = None,
    ) -> None:
        """`access`: for whom it is; without it, for this machine. `secret` signs the tickets, and
        without it they are taken by this object alone. `operator`: for the audit trail, where
        neither the access nor the page knows a name."""
        access = access or LocalAccess()
        self._bus, self._views, self._actions = bus, views, actions
        tickets = Tickets(secret or secrets.token_bytes(32))
        self._gate = Gate(access, tickets, role, is_shared=secret is not None)
        self._sign_in = None
        if isinstance(access, TokenAccess):
            self._sign_in = SignIn(access, assets.document("sign-in.html"))
        self._operator = operator
        self._turns = Turns()
        self._feed = Feed(lambda path: encode(read_path(bus, views, path)))

    def close(self) -> None:
        """Ends what streams to pages."""
        self._feed.close()

    def __call__(
        self, environ: Mapping[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        request = Request(environ)
        response = self.respond(request)
        headers = [("Content-Type", response.type), *HEADERS, *response.headers]
        body = response.body
        if isinstance(body, bytes):
            if response.status is not HTTPStatus.NOT_MODIFIED:
                headers.append(("Content-Length", str(len(body))))
            body = [b"" if request.method == "HEAD" else body]
        start_response(f"{response.status.value} {response.status.phrase}", headers)
        return body

    def respond(self, request: Request) -> Response:
        try:
            return self._routed(request)
        except RefusedError as refused:
            refuse = refusal if request.path.startswith("/api/") else text_refusal
            return refuse(refused.status, str(refused))
        except TooLarge as error:
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
        except Exception as error:
            answer = failure(error)
            if answer is None:
                logger.error("the page could not answer: %s", place_of(error))
                text = "the page failed: its log says where"
                return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, text)
            return json_response(answer[1], answer[0])

    def _routed(self, request: Request) -> Response:
        path = request.path.removeprefix("/")
        methods = _methods_of(path)
        if request.method not in methods:
            return _not_allowed(methods)
        if path.startswith("api/"):
            entry = self._gate.enter(request)
            rest = path.removeprefix("api/")
            if request.method == "POST":
                return self._changed(request, entry, rest)
            return self._read(request, entry, rest)
        self._gate.admit(request)
        if request.lacks_slash:
            return _redirect(request.quoted_prefix + "/")
        if path == "sign-in" and self._sign_in is not None:
            return self._signed_in(request, self._sign_in)
        if not path:
            # After a link on another site a browser sends no cookie: the page then asks for itself.
            if not self._gate.is_signed_in(request) and not is_foreign_read(request):
                return _redirect("sign-in")
            path = "static/index.html"
        is_asset = path.startswith("static/")
        found = self._asset(request, path.removeprefix("static/")) if is_asset else None
        return found or text_refusal(HTTPStatus.NOT_FOUND, "there is no such page")

    def _signed_in(self, request: Request, sign_in: SignIn) -> Response:
        if request.method != "POST":
            return _redirect("./") if self._gate.is_signed_in(request) else sign_in.form()
        if reason := foreign_origin(request):
            return refusal(HTTPStatus.FORBIDDEN, reason)
        return sign_in.check(request) or _redirect("./", self._gate.signed_in(request))

    def _asset(self, request: Request, name: str) -> Response | None:
        accepts, known = request.header("Accept-Encoding"), request.header("If-None-Match")
        return assets.find(name, accepts=accepts or "", known=known or "")

    def _read(self, request: Request, entry: Entry, path: str) -> Response:
        if path == "live":
            return self._live(request, entry)
        name, query = parse(path, request.query)
        if name == "session":
            query.check()
            return self._session(request, self._gate.renewed(entry))
        return json_response(read(self._bus, self._views, name, query))

    def _session(self, request: Request, entry: Entry) -> Response:
        value = session(
            self._bus,
            entry,
            csrf=self._gate.csrf(entry),
            operator=self._operator,
            threaded=request.is_threaded,
        )
        value["signs_out"] = self._sign_in is not None
        headers = (self._gate.cookie(request, entry),) if entry.is_new else ()
        return with_headers(json_response(value), *headers)

    def _live(self, request: Request, entry: Entry) -> Response:
        paths = watched(request.query)
        if not request.is_threaded or request.method == "HEAD":
            return json_response(self._feed.once(paths))
        stream: bytes | Iterable[bytes]
        try:
            stream = self._feed.subscribe(paths, owner=entry.ticket)
        except FeedFullError:
            stream = self._feed.brief(paths)
        # A proxy that collected the stream (nginx does) would show the page nothing.
        headers = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
        return Response(HTTPStatus.OK, "text/event-stream", stream, headers)

    def _changed(self, request: Request, entry: Entry, path: str) -> Response:
        self._gate.check_change(request, entry)
        if path == "sign-out":
            cookie = self._gate.sign_out(request, entry)
            return with_headers(json_response({"done": "signed out"}), cookie)
        self._gate.check_role(entry)
        what, _, called = path.partition("/")
        action = self._actions.get(called)
        if action is None:
            raise NotFound(f"there is no action {called!r}")
        body = request.json(action.body_bytes)
        if what == "preview":
            return json_response(action.preview(self._bus, body))
        operator = entry.visitor.user or body.get("operator") or self._operator
        if operator is None:
            raise BadQuery("the name of the operator is missing: the audit trail needs it")
        name = check_operator(operator)
        if not is_printable(name):
            raise BadQuery("the name of the operator has characters that are not printable")
        with self._turns.of(body.get("target")):
            return json_response(action.perform(self._bus, body, name))


def _methods_of(path: str) -> tuple[str, ...]:
    if path.startswith(_CHANGES):
        return ("POST",)
    return ("GET", "HEAD", "POST") if path == "sign-in" else ("GET", "HEAD")


def _not_allowed(methods: Iterable[str]) -> Response:
    allowed = ", ".join(methods)
    answer = refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"only {allowed}")
    return with_headers(answer, ("Allow", allowed))


def _redirect(location: str, *headers: tuple[str, str]) -> Response:
    """By GET; a browser keeps the hash of its address."""
    answer = refusal(HTTPStatus.SEE_OTHER, "it is elsewhere")
    return with_headers(answer, ("Location", location), *headers)
