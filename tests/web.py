"""Requests to the page without a socket, as a WSGI server makes them."""

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cmdbus.web.wsgi import Application


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    application: Application,
    path: str,
    *,
    method: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
    bare: bool = False,
    **environ: Any,
) -> Reply:
    """`path` with its query; a `body` of bytes as it is, and any other as JSON. A POST has the
    cookie and the token of the page's session, unless it is `bare`."""
    if method == "POST" and not bare:
        headers = {**entered(application, headers=headers, **environ), **(headers or {})}
    path, _, query = path.partition("?")
    content = (
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    )
    given = {f"HTTP_{name.upper().replace('-', '_')}": v for name, v in (headers or {}).items()}
    answered: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        answered.extend((int(status.split()[0]), dict(headers)))

    parts: Iterable[bytes] = application(
        {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": quote(query, safe="=&%+"),
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_LENGTH": str(len(content)) if content else "",
            "CONTENT_TYPE": "application/json" if content else "",
            "HTTP_HOST": "localhost",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(content),
            "wsgi.multithread": True,
            **given,
            **environ,
        },
        start_response,
    )
    content = b"".join(parts)
    [status, sent] = answered
    return Reply(status, sent, content)


def entered(
    application: Application, headers: Mapping[str, str] | None = None, **environ: Any
) -> dict[str, str]:
    """Fields of requests for changes, as the page sends them."""
    session = ask(application, "/api/session", headers=headers, **environ)
    if session.status != 200:
        return {}
    cookie = session.headers.get("Set-Cookie", "").partition(";")[0]
    return {"Cookie": cookie, "X-CSRF-Token": session.json["csrf"]}
