"""Before each request of the API: who asks, and whether that is this page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from cmdbus.web.http.request import Request
from cmdbus.web.security.access import Access, NotAdmittedError, Visitor
from cmdbus.web.security.origins import foreign_origin, is_foreign_read, is_secure
from cmdbus.web.security.tickets import LIFETIME, RENEWED_AFTER, Tickets, is_same

OPERATOR, VIEWER = "operator", "viewer"
ROLES = (OPERATOR, VIEWER)
#: A role, or a function of the WSGI environment that returns one.
Role = str | Callable[[Mapping[str, Any]], str]

_COOKIE = "cmdbus_web"


class RefusedError(Exception):
    """Answered with this status and the sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that was let in."""

    visitor: Visitor
    role: str
    #: Of the browser, or a new one, which the response must set.
    ticket: str
    is_new: bool
    #: Seconds for which it is taken.
    left: int


class Gate:
    def __init__(
        self, access: Access, tickets: Tickets, role: Role, *, is_shared: bool = True
    ) -> None:
        """`is_shared`: whether other processes that serve the page take the same tickets."""
        if not callable(role):
            _check_role(role)
        self._is_shared = is_shared
        self._access, self._tickets, self._role = access, tickets, role

    def admit(self, request: Request) -> Visitor:
        """Also for files."""
        try:
            return self._access.admit(request)
        except NotAdmittedError as error:
            raise RefusedError(HTTPStatus.FORBIDDEN, str(error)) from None

    def enter(self, request: Request) -> Entry:
        visitor = self.admit(request)
        if is_foreign_read(request):
            raise RefusedError(HTTPStatus.FORBIDDEN, "another page may not read from this one")
        role = self._role(request.environ) if callable(self._role) else self._role
        _check_role(role)
        for ticket in request.cookies(_name(request)):
            left = self._tickets.expiry(ticket, visitor.scope)
            if left is not None:
                return Entry(visitor, role, ticket, False, left)
        if self._access.signs_in:
            sentence = "you are not signed in, or no longer"
            raise RefusedError(HTTPStatus.UNAUTHORIZED, sentence)
        return Entry(visitor, role, self._tickets.issue(visitor.scope), True, LIFETIME)

    def is_signed_in(self, request: Request) -> bool:
        """Also where there is nothing to sign in to."""
        scope = Visitor().scope
        return not self._access.signs_in or any(
            self._tickets.expiry(ticket, scope) is not None
            for ticket in request.cookies(_name(request))
        )

    def check_change(self, request: Request, entry: Entry) -> None:
        """Of a POST: from this page, by one who may act."""
        if reason := foreign_origin(request):
            raise RefusedError(HTTPStatus.FORBIDDEN, reason)
        if request.content_type != "application/json":
            raise RefusedError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json"
            )
        if request.environ.get("wsgi.multiprocess") and not self._is_shared:
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "several processes serve this page, and each knows only its own tickets: give "
                "application() a secret=, the same in all of them",
            )
        csrf = request.header("X-CSRF-Token") or ""
        if entry.is_new or not is_same(csrf, self.csrf(entry)):
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "the page was loaded before its server was started, or too long ago: reload it",
            )

    def check_role(self, entry: Entry) -> None:
        if entry.role != OPERATOR:
            raise RefusedError(HTTPStatus.FORBIDDEN, "a viewer changes nothing: ask an operator")

    def csrf(self, entry: Entry) -> str:
        return self._tickets.csrf(entry.ticket)

    def renewed(self, entry: Entry) -> Entry:
        """The same, or with a new ticket in time: who uses the page stays signed in."""
        if entry.is_new or entry.left > LIFETIME - RENEWED_AFTER:
            return entry
        return Entry(
            entry.visitor, entry.role, self._tickets.issue(entry.visitor.scope), True, LIFETIME
        )

    def cookie(self, request: Request, entry: Entry) -> tuple[str, str]:
        return _cookie(request, entry.ticket, LIFETIME)

    def signed_in(self, request: Request) -> tuple[str, str]:
        """The cookie for a browser that has just shown the token."""
        return _cookie(request, self._tickets.issue(Visitor().scope), LIFETIME)

    def sign_out(self, request: Request, entry: Entry) -> tuple[str, str]:
        """Ends all tickets of the browser; returns what takes away its cookie."""
        for ticket in request.cookies(_name(request)):
            if self._tickets.expiry(ticket, entry.visitor.scope) is not None:
                self._tickets.end(ticket)
        return _cookie(request, "", 0)


def _name(request: Request) -> str:
    """Pages at several ports of one machine share its cookies."""
    return f"{_COOKIE}_{request.environ.get('SERVER_PORT', '')}"


def _cookie(request: Request, value: str, seconds: int) -> tuple[str, str]:
    path = request.quoted_prefix + "/"
    secure = "; Secure" if is_secure(request) else ""
    text = f"{_name(request)}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict"
    return "Set-Cookie", text + secure


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, not {role!r}")
