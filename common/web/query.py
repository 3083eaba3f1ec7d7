"""What a request asks of a view: the rest of its path, and checked parameters. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import parse_qsl, unquote
from uuid import UUID

from cmdbus.checks import time_of_text

#: Characters of a parameter, at most.
_MAX_TEXT = 1000
_MAX_PARAMETERS = 40


class BadQuery(ValueError):
    """A parameter is unknown or malformed; the text is a sentence for the page."""


class NotFound(LookupError):
    """What was asked for does not exist; the text is a sentence for the page."""


class Query:
    """A view reads each parameter that it knows, given or not: any other is refused."""

    def __init__(
        self, parts: Sequence[str] = (), parameters: Mapping[str, str] | None = None
    ) -> None:
        #: Segments of the path after the name of the view.
        self.parts = tuple(parts)
        self._given = dict(parameters or {})
        self._known: set[str] = set()

    def _find(self, name: str) -> str | None:
        """An empty parameter is one that is not given, as a form's empty field."""
        self._known.add(name)
        return self._given.get(name) or None

    def text(self, name: str, *, most: int = _MAX_TEXT) -> str | None:
        """At most `most` characters."""
        found = self._find(name)
        if found is not None and len(found) > most:
            raise BadQuery(f"{name} has more than {most} characters")
        if found is not None and "\0" in found:
            raise BadQuery(f"{name} has a NUL character")
        return found

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        found = self._find(name)
        if found is None:
            return default
        number = int(found) if re.fullmatch(r"-?\d{1,16}", found, re.ASCII) else least - 1
        if not least <= number <= most:
            raise BadQuery(f"{name} must be a whole number from {least} to {most}")
        return number

    def time(self, name: str) -> datetime | None:
        found = self._find(name)
        if found is None:
            return None
        time = time_of_text(found)
        if time is None:
            raise BadQuery(f"{name} must be a time with its offset, like 2026-12-31T08:00:00Z")
        return time

    def choice(self, name: str, *choices: str, default: str | None = None) -> str | None:
        found = self._find(name)
        if found is not None and found not in choices:
            raise BadQuery(f"{name} must be one of {', '.join(choices)}")
        return default if found is None else found

    def uuid(self, name: str) -> UUID | None:
        found = self._find(name)
        return None if found is None else _uuid(name, found)

    def part(self, index: int, what: str) -> str:
        """A segment of the path, which `what` names."""
        if index >= len(self.parts) or not self.parts[index]:
            raise BadQuery(f"the path lacks {what}")
        return self.parts[index]

    def uuid_part(self, index: int, what: str) -> UUID:
        return _uuid(what, self.part(index, what))

    def check(self) -> None:
        """After the view has read its parameters: refuses others."""
        if unknown := sorted(self._given.keys() - self._known):
            known = f": there are {', '.join(sorted(self._known))}" if self._known else ""
            raise BadQuery(f"there is no parameter {unknown[0]!r}{known}")


def parse(path: str, query: str) -> tuple[str, Query]:
    """The name of a view, and what is asked of it; `path` without the one of the API, decoded."""
    name, *parts = path.strip("/").split("/")
    if len(query) > _MAX_TEXT * 8:
        raise BadQuery("the query is too long")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError:
        raise BadQuery(f"there are more than {_MAX_PARAMETERS} parameters") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise BadQuery("a parameter is given twice")
    return name, Query(parts, parameters)


def parse_view(view: str) -> tuple[str, Query]:
    """Of the path of a view with its query, as the page names it: `commands?domain=mail`."""
    path, _, query = view.partition("?")
    name, *parts = (unquote(part) for part in path.strip("/").split("/"))
    _, parsed = parse("", query)
    return name, Query(parts, parsed._given)


def _uuid(name: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise BadQuery(f"{name} must be an id, like 0190b3c4-...") from None
