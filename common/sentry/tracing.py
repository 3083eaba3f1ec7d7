"""Spans of sends and executions, by the names that Sentry's page of queues reads, and the headers
that carry a trace from one to the other. For both kinds of spans that the SDK has: those that are
sent with their transaction, and streamed ones.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import sentry_sdk
from sentry_sdk.tracing_utils import has_tracing_enabled

try:
    from sentry_sdk.tracing_utils import has_span_streaming_enabled as _streams
except ImportError:  # one without streamed spans

    def _streams(options: dict[str, Any] | None) -> bool:
        return False


Attributes = Mapping[str, str | int | float]

_ORIGIN = "auto.queue.cmdbus"
#: Characters of a header: `baggage` may also have what other libraries pass on.
_MAX_HEADER = 2_000

#: Ends of a span, in the SDK's words.
OK, FAILED, REFUSED, PUT_OFF = "ok", "internal_error", "failed_precondition", "aborted"


class Span(Protocol):
    """One that is the current one until it ends."""

    def set(self, name: str, value: str | int) -> None: ...
    def end(self, status: str) -> None: ...


def is_on() -> bool:
    return has_tracing_enabled(sentry_sdk.get_client().options)


def publish(name: str, attributes: Attributes) -> Span | None:
    """A send inside of the current span; None if there is none, as for a transaction of its own it
    would be too short."""
    scope = sentry_sdk.get_current_scope()
    if _streams(sentry_sdk.get_client().options):
        return None if scope.streamed_span is None else _streamed(name, "queue.publish", attributes)
    if sentry_sdk.get_current_span() is None:
        return None
    return _Classic(
        sentry_sdk.start_span(op="queue.publish", name=name, origin=_ORIGIN), attributes
    )


def process(
    name: str, attributes: Attributes, headers: Mapping[str, str], sampling: Mapping[str, object]
) -> Span:
    """An execution: a transaction that goes on with the trace of these headers, or begins one.
    `sampling` is what `traces_sampler` is asked with."""
    given = {"cmdbus": {**sampling}}
    if _streams(sentry_sdk.get_client().options):
        continue_trace(headers)
        sentry_sdk.get_current_scope().set_custom_sampling_context(given)
        return _streamed(name, "queue.process", attributes, parent_span=None)
    transaction = sentry_sdk.continue_trace(
        {**headers}, op="queue.process", name=name, source="task", origin=_ORIGIN
    )
    started = sentry_sdk.start_transaction(transaction, custom_sampling_context=given)
    return _Classic(started, attributes)


def continue_trace(headers: Mapping[str, str]) -> None:
    """What is captured in this scope belongs to the trace of these headers, or to a new one."""
    sentry_sdk.get_isolation_scope().generate_propagation_context({**headers})
    if _streams(sentry_sdk.get_client().options):
        sentry_sdk.get_current_scope().generate_propagation_context({**headers})


def propagated() -> dict[str, str]:
    """The headers that continue the current trace elsewhere."""
    found = sentry_sdk.get_current_scope().iter_trace_propagation_headers()
    return {name: value for name, value in found if len(value) <= _MAX_HEADER}


class _Classic:
    """A transaction, or a span of one."""

    def __init__(self, span: Any, attributes: Attributes) -> None:
        self._span = span
        for name, value in attributes.items():
            span.set_data(name, value)
        span.__enter__()

    def set(self, name: str, value: str | int) -> None:
        self._span.set_data(name, value)

    def end(self, status: str) -> None:
        self._span.set_status(status)
        self._span.__exit__(None, None, None)


class _Streamed:
    def __init__(self, span: Any) -> None:
        self._span = span

    def set(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def end(self, status: str) -> None:
        self._span.status = "ok" if status == OK else "error"
        self._span.end()


def _streamed(name: str, op: str, attributes: Attributes, **options: Any) -> _Streamed:
    from sentry_sdk import traces

    own = {"sentry.op": op, "sentry.origin": _ORIGIN, "sentry.segment.name.source": "task"}
    return _Streamed(traces.start_span(name=name, attributes={**own, **attributes}, **options))
