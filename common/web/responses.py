"""What is sent back to a browser, as values."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from cmdbus.web.json_values import encode


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    type: str
    #: A stream has no length; it is closed after it was sent, or could not be.
    body: bytes | Iterable[bytes] = b""
    headers: tuple[tuple[str, str], ...] = field(default=())


def json_response(value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Of the API: never kept by a browser or a proxy."""
    headers = (("Cache-Control", "no-store"),)
    return Response(status, "application/json", encode(value).encode(), headers)


def refusal(status: HTTPStatus, sentence: str) -> Response:
    return json_response({"error": sentence}, status)


def text_refusal(status: HTTPStatus, sentence: str) -> Response:
    """A refusal that a browser shows in place of the page."""
    text = f"cmdbus: {sentence}.\n"
    headers = (("Cache-Control", "no-store"),)
    return Response(status, "text/plain; charset=utf-8", text.encode(), headers)


def with_headers(response: Response, *headers: tuple[str, str]) -> Response:
    return replace(response, headers=(*headers, *response.headers))
