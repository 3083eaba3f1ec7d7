"""A request as the WSGI server hands it over."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import quote

#: Bytes of a body, at most, unless more are asked for.
BODY_BYTES = 64 * 1024
_NO_OBJECT = "the body must be a JSON object"


class MalformedError(ValueError):
    """The request cannot be read; the text is a sentence."""


class TooLarge(Exception):
    """The body has more bytes than are read."""


class Request:
    def __init__(self, environ: Mapping[str, Any]) -> None:
        self.environ = environ
        self.method = str(environ["REQUEST_METHOD"])
        #: WSGI holds bytes as latin-1.
        self.path = _decoded(environ.get("PATH_INFO", "")) or "/"
        self.prefix = _decoded(environ.get("SCRIPT_NAME", "")).rstrip("/")
        #: Of a mount without the slash at its end: nothing below it can be named relatively.
        self.lacks_slash = bool(self.prefix) and not environ.get("PATH_INFO")
        self.query = str(environ.get("QUERY_STRING", ""))
        self.is_secure = environ.get("wsgi.url_scheme") == "https"
        self.is_threaded = bool(environ.get("wsgi.multithread"))

    @property
    def quoted_prefix(self) -> str:
        return quote(self.prefix, safe="/!$&'()*+,:@")

    def header(self, name: str) -> str | None:
        found = self.environ.get(f"HTTP_{name.upper().replace('-', '_')}")
        return None if found is None else str(found)

    @property
    def content_type(self) -> str:
        return str(self.environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()

    def cookies(self, name: str) -> Iterator[str]:
        """All of this name: one of a wider path may come first."""
        for pair in (self.header("Cookie") or "").split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                yield value.strip('"')

    def body(self, most: int = BODY_BYTES) -> bytes:
        length = str(self.environ.get("CONTENT_LENGTH") or "0")
        if not length.isascii() or not length.isdecimal():
            raise MalformedError("the length of the body is no number")
        if int(length[:18]) > most:
            raise TooLarge(f"the body has more than {most} bytes")
        stream: BinaryIO = self.environ["wsgi.input"]
        body = stream.read(int(length))
        if len(body) < int(length):
            raise MalformedError("the body is incomplete")
        return body

    def json(self, most: int = BODY_BYTES) -> dict[str, Any]:
        try:
            value = json.loads(self.body(most) or b"{}")
        except (ValueError, RecursionError):
            raise MalformedError(_NO_OBJECT) from None
        if not isinstance(value, dict):
            raise MalformedError(_NO_OBJECT)
        return value


def _decoded(text: object) -> str:
    return str(text).encode("latin-1", "replace").decode("utf-8", "replace")
