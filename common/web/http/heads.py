"""Heads of requests and responses: parsed strictly, as a proxy in front must not read them another
way. Pure."""

import io
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

MAX_FIELDS = 100
HEAD_END = b"\r\n\r\n"
#: Digits of a length of a body.
_MAX_DIGITS = 12

_REQUEST = re.compile(rb"([A-Z]{1,20}) ([!-~]{1,8000}) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)
#: Fields that a request has once: with two, a proxy may have looked at the other one.
_SINGLE = {"authorization", "content-length", "content-type", "host", "origin", "x-csrf-token"}


class BadRequestError(Exception):
    """The request cannot be answered but with this status; its connection is closed."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    method: str
    path: bytes
    query: str
    minor: int
    fields: dict[str, str]
    body_bytes: int

    @property
    def keeps(self) -> bool:
        """Whether the client may send another request on this connection."""
        asked = self.fields.get("connection", "").lower()
        return self.minor == 1 and "close" not in asked

    @property
    def waits(self) -> bool:
        """Whether the client waits for 100 Continue before it sends the body."""
        return self.minor == 1 and self.fields.get("expect", "").lower() == "100-continue"


def parse_head(head: bytes, single: Iterable[str] = ()) -> Head:
    """Without the empty line at its end. `single`: further fields that may not be repeated."""
    first, *lines = head.split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise _bad("the request line is malformed")
    target = _ABSOLUTE.sub(b"", request[2], count=1) or b"/"
    if not target.startswith(b"/"):
        raise _bad("the target of the request is malformed")
    path, _, query = target.partition(b"#")[0].partition(b"?")
    if len(lines) > MAX_FIELDS:
        raise BadRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"there are more than {MAX_FIELDS} fields"
        )
    fields = _fields(lines, _SINGLE.union(single))
    minor = int(request[3])
    if minor == 1 and "host" not in fields:
        raise _bad("the field Host is missing")
    if "transfer-encoding" in fields:
        raise BadRequestError(HTTPStatus.LENGTH_REQUIRED, "a body must have its Content-Length")
    decoded = unquote_to_bytes(path)
    if b"\0" in decoded:
        raise _bad("the path has a NUL character")
    length = fields.get("content-length", "0")
    if not re.fullmatch(rf"[0-9]{{1,{_MAX_DIGITS}}}", length):
        raise _bad("the Content-Length is malformed")
    return Head(
        request[1].decode(), decoded, query.decode("ascii"), minor, fields, body_bytes=int(length)
    )


def _fields(lines: Iterable[bytes], single: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise _bad("a field of the head is malformed")
        name, value = field[1].decode().lower(), field[2].decode("latin-1").strip()
        if "_" in name:  # WSGI could not tell it from the one with a hyphen.
            continue
        if name in found:
            if name in single:
                raise _bad(f"the field {name} is given twice")
            value = f"{found[name]}{'; ' if name == 'cookie' else ', '}{value}"
        found[name] = value
    return found


def _bad(sentence: str) -> BadRequestError:
    return BadRequestError(HTTPStatus.BAD_REQUEST, sentence)


def environ_of(head: Head, body: bytes, *, server: tuple[str, int], peer: str) -> dict[str, Any]:
    """As PEP 3333 wants it; `server` is the name and the port that it listens at."""
    fields = {
        f"HTTP_{name.upper().replace('-', '_')}": value
        for name, value in head.fields.items()
        if name not in ("content-length", "content-type")
    }
    return {
        "REQUEST_METHOD": head.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": head.path.decode("latin-1"),
        "QUERY_STRING": head.query,
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "SERVER_PROTOCOL": f"HTTP/1.{head.minor}",
        "REMOTE_ADDR": peer,
        "CONTENT_TYPE": head.fields.get("content-type", ""),
        "CONTENT_LENGTH": str(head.body_bytes) if head.body_bytes else "",
        **fields,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def response_head(status: str, fields: Iterable[tuple[str, str]], *, keeps: bool) -> bytes:
    """A ValueError where a field would begin another one."""
    lines = [f"HTTP/1.1 {status}"]
    for name, value in [*fields, ("Connection", "keep-alive" if keeps else "close")]:
        if re.search(r"[\r\n\0]", f"{name}{value}"):
            raise ValueError(f"the field {name!r} of a response has a line break")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def plain_response(status: HTTPStatus, sentence: str) -> bytes:
    """A whole one, after which the connection is closed."""
    body = f"{sentence}\n".encode()
    fields = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Security-Policy", "default-src 'none'"),
    ]
    return response_head(f"{status.value} {status.phrase}", fields, keeps=False) + body
