"""The span of one call that sends commands, whose context its commands carry."""

from collections.abc import Mapping, Sequence
from typing import Self
from uuid import UUID

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Tracer

from cmdbus.clock import time
from cmdbus.instruments import Request, Sending
from cmdbus.otel.conventions import (
    BATCH_ID,
    CONVERSATION_ID,
    MESSAGE_COUNT,
    MESSAGE_ID,
    METHOD,
    PROCESS_ID,
    operation,
    span_name,
)
from cmdbus.otel.failures import error_type, show_failure
from cmdbus.otel.metrics import Metrics, Named
from cmdbus.otel.propagation import headers_of

#: Calls that send one command.
_SINGLE = frozenset(["send", "call", "start_process", "signal_process"])


class SendSpan(Sending):
    """Entered before the requests are checked, so their fields may be anything."""

    def __init__(
        self,
        tracer: Tracer,
        metrics: Metrics,
        requests: Sequence[Request],
        method: str,
        *,
        messages: bool,
    ) -> None:
        self._tracer, self._metrics, self._messages = tracer, metrics, messages
        self._requests, self._method = requests, method
        self.headers: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        domain, type = _common(self._requests, "domain"), _common(self._requests, "type")
        self._began = time.monotonic()
        self._span = self._tracer.start_span(
            span_name("send", domain),
            kind=SpanKind.PRODUCER,
            attributes=operation("send", domain, type),
        )
        if self._span.is_recording():
            self._span.set_attribute(METHOD, self._method)
        self.headers = headers_of(trace.set_span_in_context(self._span))
        return self

    def sent(self, ids: Sequence[UUID]) -> None:
        span = self._span
        if not span.is_recording() or not ids:
            return
        if self._method not in _SINGLE:
            span.set_attribute(MESSAGE_COUNT, self.count)
        name = _OF_IDS.get(self._method)
        if name is None:
            return
        span.set_attribute(name, str(ids[0]))
        if name == MESSAGE_ID and len(self._requests) == 1:
            correlation = self._requests[0].correlation_id
            span.set_attribute(CONVERSATION_ID, str(correlation or ids[0]))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        kind = None if error is None else error_type(error)
        if kind is not None and self._span.is_recording():
            show_failure(self._span, error, kind, messages=self._messages)
        self._span.end()
        if not isinstance(error, ValueError | TypeError):  # Else nothing went to the database.
            commands: list[Named] = [(each.domain, each.type) for each in self._requests]
            # Those of a batch may come from an iterator.
            commands = commands or [(None, None)] * self.count
            self._metrics.sent(commands, time.monotonic() - self._began, kind)


#: The attribute whose value is the first id that a call gives.
_OF_IDS = {
    "send": MESSAGE_ID,
    "call": MESSAGE_ID,
    "create_batch": BATCH_ID,
    "start_process": PROCESS_ID,
    "signal_process": PROCESS_ID,
}


def _common(requests: Sequence[Request], field: str) -> str | None:
    """The domain or type that all have."""
    found = {getattr(request, field, None) for request in requests}
    value = found.pop() if len(found) == 1 else None
    return value if isinstance(value, str) else None
