"""The span of a producer's wait for the end of a command or a batch. Within the one of a call its
command is sent."""

from typing import Self
from uuid import UUID

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Tracer

from cmdbus.clock import time
from cmdbus.otel.conventions import BATCH_ID, MESSAGE_ID, METHOD, operation, span_name
from cmdbus.otel.failures import error_type, show_failure
from cmdbus.otel.metrics import Metrics


class WaitSpan:
    def __init__(
        self,
        tracer: Tracer,
        metrics: Metrics,
        method: str,
        domain: str | None,
        id: UUID,
        *,
        messages: bool,
    ) -> None:
        self._tracer, self._metrics, self._messages = tracer, metrics, messages
        self._method, self._domain, self._id = method, domain, id
        self._name = "call" if method == "call" else "wait"

    def __enter__(self) -> Self:
        of_id = BATCH_ID if self._method == "wait_batch" else MESSAGE_ID
        attributes = {
            **operation(self._name, self._domain, None),
            METHOD: self._method,
            of_id: str(self._id),
        }
        self._began = time.monotonic()
        self._span = self._tracer.start_span(
            span_name(self._name, self._domain), kind=SpanKind.CLIENT, attributes=attributes
        )
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        contexts.detach(self._token)
        kind = None if error is None else error_type(error)
        if kind is not None and self._span.is_recording():
            show_failure(self._span, error, kind, messages=self._messages)
        self._span.end()
        self._metrics.waited(self._name, self._domain, time.monotonic() - self._began, kind)
