"""For whom the page is, and how it knows them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cmdbus.checks import check_operator
from cmdbus.printable import one_line
from cmdbus.web.http.request import Request
from cmdbus.web.security.origins import not_local

#: The name of the user of a request, or None for one who may not use the page.
User = Callable[[Mapping[str, Any]], str | None]


class NotAdmittedError(Exception):
    """The page is not for the user of this request; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Visitor:
    #: None where the page knows no names.
    user: str | None = None

    @property
    def scope(self) -> str:
        """A ticket is for one user."""
        return f"user:{self.user}" if self.user is not None else ""


class Access(Protocol):
    @property
    def signs_in(self) -> bool:
        """Whether a ticket is given only to those who have signed in."""

    def admit(self, request: Request) -> Visitor:
        """Raises NotAdmittedError."""


@dataclass(frozen=True, slots=True)
class LocalAccess:
    """Any user and any program of this machine, and nothing else."""

    #: Another name of this machine, by which the page may be asked for.
    host: str | None = None
    signs_in = False

    def admit(self, request: Request) -> Visitor:
        if reason := not_local(request, host=self.host):
            raise NotAdmittedError(
                f"{reason}; without a sign-in it is for this machine alone: see --auth of cmdbus "
                f"web, or user= of application()"
            )
        return Visitor()


@dataclass(frozen=True, slots=True)
class HeaderAccess:
    """Users that a proxy has signed in: it sets this field of each request to their names."""

    name: str
    signs_in = False

    def admit(self, request: Request) -> Visitor:
        user = request.header(self.name)
        if user is None:
            raise NotAdmittedError(
                f"the proxy before the page has not set {self.name}, the name of the user"
            )
        return Visitor(_checked(user.encode("latin-1", "replace").decode("utf-8", "replace")))


@dataclass(frozen=True, slots=True)
class FunctionAccess:
    """Users that the application has signed in, in which the page is mounted."""

    user: User
    signs_in = False

    def admit(self, request: Request) -> Visitor:
        user = self.user(request.environ)
        if user is None:
            raise NotAdmittedError("you may not use this page, or you are not signed in")
        return Visitor(_checked(user))


def _checked(user: str) -> str:
    try:
        name = check_operator(user)
    except ValueError:
        raise NotAdmittedError("the name of the user is empty, too long or no text") from None
    if not is_printable(name):
        raise NotAdmittedError("the name of the user has characters that are not printable")
    return name


def is_printable(name: str) -> bool:
    """Whether a name reads as what it is, in one line of the audit trail."""
    return one_line(name) == name and "\ufffd" not in name and "\t" not in name


def check_header(name: str) -> str:
    """The name of a field of requests, for HeaderAccess."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,99}", name):
        raise ValueError(
            f"it must be the name of a header, like X-Forwarded-User, not {name[:100]!r}"
        )
    if name.lower() in ("host", "cookie", "origin", "x-csrf-token", "sec-fetch-site"):
        raise ValueError(f"{name} is set by browsers: it must be one that the proxy sets")
    return name
