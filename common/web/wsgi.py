"""The page as a WSGI application: finds what a request asks for, and answers."""

import logging
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.web import assets
from cmdbus.web.action import Action
from cmdbus.web.failures import failure
from cmdbus.web.http.runner import place_of
from cmdbus.web.json_values import encode
from cmdbus.web.live import Feed, FeedFullError, watched
from cmdbus.web.query import BadQuery, NotFound, parse
from cmdbus.web.request import Request, TooLarge
from cmdbus.web.responses import Response, json_response, refusal
from cmdbus.web.session import ROLES, session
from cmdbus.web.view import Views, read, read_path

logger = logging.getLogger(__name__)

StartResponse = Callable[[str, list[tuple[str, str]]], object]

_POSTS = ("preview/", "actions/")


class Application:
    def __init__(
        self,
        bus: CommandBus,
        views: Views,
        actions: Mapping[str, Action],
        *,
        role: str,
        operator: str | None = None,
    ) -> None:
        if role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, not {role!r}")
        self._bus, self._views, self._actions, self._role = bus, views, actions, role
        self._operator = operator
        self._feed = Feed(lambda path: encode(read_path(bus, views, path)))

    def close(self) -> None:
        """Ends what streams to pages."""
        self._feed.close()

    def __call__(
        self, environ: Mapping[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        request = Request(environ)
        response = self.respond(request)
        headers = [("Content-Type", response.type), *response.headers]
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
        except TooLarge as error:
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
        except Exception as error:
            answer = failure(error)
            if answer is None:
                logger.error("the page could not answer: %s", place_of(error))
                text = "the page failed: its log says why"
                return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, text)
            return json_response(answer[1], answer[0])

    def _routed(self, request: Request) -> Response:
        path = request.path.removeprefix("/")
        in_api = path.startswith("api/")
        rest = path.removeprefix("api/")
        if in_api and rest.startswith(_POSTS):
            if request.method != "POST":
                return _not_allowed("POST")
            return self._acted(request, *rest.split("/", 1))
        if request.method not in ("GET", "HEAD"):
            return _not_allowed("GET, HEAD")
        if in_api:
            return self._read(request, rest)
        name = "index.html" if not path else path.removeprefix("static/")
        is_asset = not path or path.startswith("static/")
        found = self._asset(request, name) if is_asset else None
        return found or refusal(HTTPStatus.NOT_FOUND, "there is no such page")

    def _asset(self, request: Request, name: str) -> Response | None:
        accepts, known = request.header("Accept-Encoding"), request.header("If-None-Match")
        return assets.find(name, accepts=accepts or "", known=known or "")

    def _read(self, request: Request, path: str) -> Response:
        if path == "live":
            return self._live(request)
        name, query = parse(path, request.query)
        if name == "session":
            query.check()
            value = session(
                self._bus, self._role, operator=self._operator, threaded=request.is_threaded
            )
            return json_response(value)
        return json_response(read(self._bus, self._views, name, query))

    def _live(self, request: Request) -> Response:
        paths = watched(request.query)
        if not request.is_threaded or request.method == "HEAD":
            return json_response(self._feed.once(paths))
        try:
            stream = self._feed.subscribe(paths)
        except FeedFullError as error:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        # A proxy that collected the stream (nginx does) would show the page nothing.
        headers = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
        return Response(HTTPStatus.OK, "text/event-stream", stream, headers)

    def _acted(self, request: Request, what: str, name: str) -> Response:
        action = self._actions.get(name)
        if action is None:
            raise NotFound(f"there is no action {name!r}")
        body = request.json(action.body_bytes)
        if what == "preview":
            return json_response(action.preview(self._bus, body))
        operator = body.get("operator") or self._operator
        if not isinstance(operator, str) or not operator.strip():
            raise BadQuery("the name of the operator is missing: the audit trail needs it")
        return json_response(action.perform(self._bus, body, operator))


def _not_allowed(methods: str) -> Response:
    answer = refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"only {methods}")
    return Response(answer.status, answer.type, answer.body, (("Allow", methods), *answer.headers))
