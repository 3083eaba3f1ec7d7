"""The form that takes a token."""

import html
from http import HTTPStatus
from urllib.parse import parse_qs

from cmdbus.web.http.request import Request
from cmdbus.web.responses import Response
from cmdbus.web.security.token_access import TokenAccess

_FORM_BYTES = 4096
_FORM = "application/x-www-form-urlencoded"
_MESSAGE = b"<!-- message -->"


class SignIn:
    def __init__(self, access: TokenAccess, template: bytes) -> None:
        """`template`: a page of HTML with a place for a message."""
        self._access, self._template = access, template

    def form(self, status: HTTPStatus = HTTPStatus.OK, message: str = "") -> Response:
        """With a sentence about the last try."""
        note = f'<p role="alert">{html.escape(message)}</p>' if message else ""
        body = self._template.replace(_MESSAGE, note.encode())
        return Response(status, "text/html; charset=utf-8", body, (("Cache-Control", "no-store"),))

    def check(self, request: Request) -> Response | None:
        """The form again where the request does not hold the token; None if it does."""
        if request.content_type != _FORM:
            return self.form(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "This form sends something else.")
        values = parse_qs(request.body(_FORM_BYTES).decode("ascii", "replace"), max_num_fields=10)
        problem = self._access.check(request, "".join(values.get("token", [])).strip())
        return None if problem is None else self.form(*problem)
