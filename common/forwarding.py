"""Headers that commands and replies get by default: those that an execution passes on of its own
command's, and those of instruments.

They are kept in a context variable, so they reach whatever the handler calls, also on asyncio, and
threads that run in a copy of its context (`contextvars.copy_context().run`); a plain thread sends
without them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cmdbus.headers import (
    FORWARDED,
    MAX_BYTES,
    MAX_HEADERS,
    check_header_name,
    check_headers,
    encode_headers,
    encode_with_defaults,
    merged,
    selected,
)

#: The header that a bridge adds. Replies always get it: it is also in the schema's function
#: forwarded_headers.
MESSAGE_ID = "pgmq_msg_id"

#: Bytes of a character as JSON, and of what is around a header.
_MAX_ESCAPED = 6

_current: ContextVar[Mapping[str, str] | None] = ContextVar("cmdbus_default_headers", default=None)
#: The headers that what is sent here gets unless it has others of the same names; None for most.
default_headers = _current.get


class ForwardedHeaders(dict[str, str]):
    """`context.headers`. Only what can be sent gets in."""

    def __setitem__(self, name: str, value: str) -> None:
        self.update({name: value})

    def setdefault(self, name: str, value: str = "") -> str:
        if name not in self:
            self[name] = value
        return self[name]

    def update(self, *others: Any, **more: str) -> None:
        """All of these, or none with a ValueError."""
        changes = check_headers(dict(*others, **more))
        changed = {**self, **changes}
        characters = sum(map(len, changed)) + sum(map(len, changed.values()))
        if _MAX_ESCAPED * (characters + len(changed)) > MAX_BYTES or len(changed) > MAX_HEADERS:
            encode_headers(changed)  # Raises if that is really too much.
        super().update(changes)

    def __ior__(self, others: Any) -> "ForwardedHeaders":  # type: ignore[override,misc]  # as dict does
        self.update(others)
        return self


def check_forwarded(names: Iterable[str]) -> tuple[str, ...]:
    """A registry's `forward_headers`."""
    if not isinstance(names, list | tuple | set | frozenset):
        raise ValueError(
            f"forward_headers must be a list or a tuple of headers' names, not {names!r:.80}"
        )
    checked = (check_header_name(name, "a name in forward_headers") for name in names)
    return tuple(dict.fromkeys(checked))


def forward(headers: Mapping[str, str], names: Iterable[str]) -> ForwardedHeaders:
    """From now on, what is sent here gets the headers with these names, and those that are added to
    the result."""
    forwarded = ForwardedHeaders(selected(headers, names))
    _current.set(forwarded)
    return forwarded


@contextmanager
def also_by_default(headers: Mapping[str, str]) -> Iterator[None]:
    """Also these, of an instrument: they win over those that are passed on."""
    token = _current.set(merged(_current.get(), headers))
    try:
        yield
    finally:
        _current.reset(token)


def reply_headers(forwarded: ForwardedHeaders, headers: Mapping[str, str]) -> str | None:
    """The headers of a reply to a command with these `headers`, as JSON text; None for what the
    schema forwards by itself."""
    kept = forwarded.copy()  # At once, as another thread may change it.
    if kept == selected(headers, FORWARDED):
        return None
    if MESSAGE_ID in headers:
        kept.setdefault(MESSAGE_ID, headers[MESSAGE_ID])
    return encode_with_defaults(None, kept) or "{}"
