"""Spans of what happens to a command outside of its execution, made once it is settled: its time in
the queue, and its settlement."""

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from cmdbus.clock import time
from cmdbus.instruments import EndedExecution
from cmdbus.otel.conventions import (
    ATTEMPT,
    CONVERSATION_ID,
    ERROR_TYPE,
    MESSAGE_ID,
    OUTCOME,
    operation,
    span_name,
)
from cmdbus.otel.executions import EndedSpan


class SettlementSpans:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def add(self, ended: EndedExecution, execution: SpanContext, span: EndedSpan) -> None:
        if span.creation is not None:  # Else it would be a trace of its own.
            queue = self._begin("queue", ended, span.creation, span.began - ended.waited)
            queue.end(_ns(span.began))
        settling = self._begin("settle", ended, execution, span.ended)
        settling.set_attribute(OUTCOME, ended.status)
        if ended.outcome == "LOST":
            settling.set_attribute(ERROR_TYPE, ended.outcome)
            settling.set_status(Status(StatusCode.ERROR, "the lease was lost"))
        settling.end(_ns(max(ended.settled_at, span.ended)))

    def _begin(self, name: str, ended: EndedExecution, parent: SpanContext, began: float) -> Span:
        attributes: dict[str, str | int] = {
            **operation(name, ended.domain, ended.type),
            MESSAGE_ID: str(ended.command_id),
            CONVERSATION_ID: str(ended.correlation_id),
            ATTEMPT: ended.attempt,
        }
        return self._tracer.start_span(
            span_name(name, ended.domain),
            set_span_in_context(NonRecordingSpan(parent), Context()),
            SpanKind.CLIENT if name == "settle" else SpanKind.INTERNAL,
            attributes,
            start_time=_ns(began),
        )


def _ns(monotonic: float) -> int:
    """The wall clock's time, of a time that this process's monotonic clock has shown."""
    return time.time_ns() - int((time.monotonic() - monotonic) * 1e9)
