"""The span of one execution: current while the handler runs, so that what that sends, and the spans
of other libraries, are inside."""

from contextvars import Token
from typing import Any, Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context as Current
from opentelemetry.trace import INVALID_SPAN, Link, SpanKind, Tracer

from cmdbus.clock import time
from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.otel.conventions import (
    ATTEMPT,
    CONVERSATION_ID,
    DELAY,
    FAILURES,
    MAX_ATTEMPTS,
    MESSAGE_ID,
    OUTCOME,
    PRIORITY,
    operation,
    span_name,
)
from cmdbus.otel.executions import EndedSpan, Executions
from cmdbus.otel.failures import error_type, show_failure
from cmdbus.otel.metrics import Metrics
from cmdbus.otel.propagation import context_of, creation_of, has_context, replace_headers


class ProcessSpan:
    """Entered and left by the thread of the execution."""

    #: Its execution has timed out, and was ended as that.
    is_taken = False

    def __init__(
        self,
        tracer: Tracer,
        metrics: Metrics,
        executions: Executions,
        command: Command[Any],
        context: Context,
        *,
        is_child: bool,
        messages: bool,
    ) -> None:
        """`is_child`: of the span that has sent the command; else it is linked to that, and the
        root of a trace of its own."""
        self._tracer, self._metrics, self._executions = tracer, metrics, executions
        self._command, self._context = command, context
        self._is_child, self._messages = is_child, messages
        self._key = command.command_id.int, context.attempt

    def __enter__(self) -> Self:
        command = self._command
        # The span shows these times, which are also those of its neighbours.
        self._began, began_ns = time.monotonic(), time.time_ns()
        sender = context_of(command.headers)
        self._creation = creation_of(sender)
        parent = sender if self._is_child else trace.set_span_in_context(INVALID_SPAN, sender)
        self._span = self._tracer.start_span(
            span_name("process", command.domain),
            parent,
            SpanKind.CONSUMER,
            operation("process", command.domain, command.type),
            links=() if self._creation is None else (Link(self._creation),),
            start_time=began_ns,
        )
        if self._span.is_recording():
            self._describe()
        self._current = trace.set_span_in_context(self._span, parent)
        if not self._is_unsampled_as_before():
            replace_headers(self._context.headers, self._current)
        self._executions.start(self._key, self)
        self._token: Token[Current] = contexts.attach(self._current)
        return self

    def _is_unsampled_as_before(self) -> bool:
        """Whether nothing will be recorded, and `context.headers` say so already."""
        if self._span.is_recording() or self._creation is None or not self._is_child:
            return False
        return has_context(self._context.headers)

    def _describe(self) -> None:
        command, context = self._command, self._context
        self._span.set_attributes(
            {
                MESSAGE_ID: str(command.command_id),
                CONVERSATION_ID: str(command.correlation_id),
                ATTEMPT: context.attempt,
                MAX_ATTEMPTS: context.max_attempts,
                PRIORITY: command.priority,
            }
        )

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        contexts.detach(self._token)
        now, now_ns = time.monotonic(), time.time_ns()
        if self._executions.end(self._key, self, self.ended_at(now)):
            self._end(error, now, now_ns)

    def _end(self, error: BaseException | None, now: float, now_ns: int) -> None:
        outcome = self._context.outcome
        status = "" if outcome is None else outcome.status
        kind = None
        if status in FAILURES or outcome is None:
            error = error if outcome is None else outcome.error or error
            kind = status if error is None else error_type(error)
        span = self._span
        if span.is_recording():
            if outcome is not None:
                span.set_attribute(OUTCOME, status)
                if outcome.delay is not None:
                    span.set_attribute(DELAY, outcome.delay)
            if kind is not None:
                show_failure(span, error, kind, messages=self._messages)
        self._finish(status, kind, now - self._began, now_ns)

    def end_as_timed_out(self, outcome: str, code: str, seconds: float) -> None:
        """In another thread: its own one hangs."""
        if self._span.is_recording():
            self._span.set_attribute(OUTCOME, outcome)
            show_failure(self._span, None, code, messages=False)
        self._finish(outcome, code, seconds)

    def _finish(
        self, outcome: str, kind: str | None, seconds: float, ended_ns: int | None = None
    ) -> None:
        self._span.end(ended_ns)
        command = self._command
        named = command.domain, command.type
        self._metrics.executed(*named, outcome, kind, seconds, self._current)

    def ended_at(self, now: float) -> EndedSpan:
        sampled = self._span.get_span_context() if self._span.is_recording() else None
        return EndedSpan(sampled, self._creation, self._began, now)
