"""Contexts in headers, as the process's propagator writes and reads them."""

from collections.abc import Mapping, MutableMapping
from contextlib import suppress

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Setter
from opentelemetry.trace import SpanContext

from cmdbus.headers import check_headers


class _Setter(Setter[MutableMapping[str, str]]):
    """Leaves out what is no header: baggage may be of any length."""

    def set(self, carrier: MutableMapping[str, str], key: str, value: str) -> None:
        with suppress(ValueError):
            carrier.update(check_headers({key: value}))


_SETTER = _Setter()


def headers_of(context: Context | None = None) -> dict[str, str]:
    """Of the current context, if none is given."""
    headers: dict[str, str] = {}
    propagate.inject(headers, context, _SETTER)
    return headers


def replace_headers(headers: MutableMapping[str, str], context: Context) -> None:
    """Writes those of `context` in place of others of the propagator's."""
    made = headers_of(context)
    if made:
        for name in propagate.get_global_textmap().fields:
            headers.pop(name, None)
        for name, value in made.items():
            with suppress(ValueError):  # No more headers fit.
                headers[name] = value


def context_of(headers: Mapping[str, str]) -> Context:
    """That of the sender; nothing of the thread that reads it."""
    return propagate.extract(headers, Context())


def creation_of(context: Context) -> SpanContext | None:
    """Of the span that has sent the command, if there was one."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None
