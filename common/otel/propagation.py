"""Contexts in headers, as the process's propagator writes and reads them."""

from collections.abc import Mapping, MutableMapping
from contextlib import suppress

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Setter
from opentelemetry.trace import SpanContext

from cmdbus.headers import check_header_name, check_headers

#: Characters of a value that needs no closer look.
_PLAIN = 500


class _Setter(Setter[MutableMapping[str, str]]):
    """Leaves out what is no header: baggage may be of any length."""

    def set(self, carrier: MutableMapping[str, str], key: str, value: str) -> None:
        with suppress(ValueError):
            if len(value) > _PLAIN or not value.isascii() or not value.isprintable():
                carrier.update(check_headers({key: value}))
            else:
                carrier[check_header_name(key)] = value


_SETTER = _Setter()


def headers_of(context: Context | None = None) -> dict[str, str]:
    """The headers with this context, or with the current one."""
    headers: dict[str, str] = {}
    propagate.inject(headers, context, _SETTER)
    return headers


def has_context(headers: Mapping[str, str]) -> bool:
    return any(name in headers for name in propagate.get_global_textmap().fields)


def replace_headers(headers: dict[str, str], context: Context) -> None:
    """Writes those of `context` in place of others of the propagator's."""
    made = headers_of(context)
    if made:
        for name in propagate.get_global_textmap().fields:
            headers.pop(name, None)
        # They are checked: where they are sent, those that do not fit are left out.
        dict.update(headers, made)


def context_of(headers: Mapping[str, str]) -> Context:
    """The context of the sender; nothing of the thread that reads it."""
    return propagate.extract(headers, Context())


def creation_of(context: Context) -> SpanContext | None:
    """The span that has sent the command, if there was one."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None
