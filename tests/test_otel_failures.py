"""What of errors and headers goes into spans: bounded, and nothing of a payload."""

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from traces import Traces

from cmdbus import PermanentCommandError
from cmdbus.otel.conventions import MAX_ERROR_TYPES, OTHER, ErrorTypes
from cmdbus.otel.failures import error_type, show_failure, stack_of
from cmdbus.otel.metrics import Metrics
from cmdbus.otel.propagation import context_of, creation_of, headers_of, replace_headers

SENT = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))


class Card:
    class DeclinedError(Exception):
        pass


def caught() -> BaseException:
    """With a cause, and an error that was handled meanwhile."""
    try:
        try:
            try:
                int("secret-1")
            except ValueError as error:
                raise Card.DeclinedError("secret-2") from error
        except Card.DeclinedError:
            dict[str, str]()["secret-3"]
    except KeyError as error:
        return error
    raise AssertionError


def shown(error: BaseException, *, messages: bool = False) -> ReadableSpan:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("process payments")
    show_failure(span, error, error_type(error), messages=messages)
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


def test_a_stack_has_the_errors_of_the_chain_and_nothing_of_what_they_say() -> None:
    stack = stack_of(caught())
    assert stack.index("ValueError\n") < stack.index("Card.DeclinedError\n")
    assert stack.index("Card.DeclinedError\n") < stack.index("KeyError\n")
    assert "the direct cause of" in stack and "During handling of" in stack
    assert stack.count("in caught") == 3 and "Traceback (most recent call last)" in stack
    assert "secret-1" not in stack.replace('int("secret-1")', "")
    assert '"secret-2"' in stack, "the line of the source is code"


def test_a_circle_of_causes_ends() -> None:
    one, two = ValueError(), KeyError()
    one.__cause__, two.__cause__ = two, one
    assert stack_of(one).count("Error\n") == 2


def test_a_failure_is_shown_by_type_and_code_and_its_message_where_that_is_asked_for() -> None:
    span = shown(ValueError("secret"))
    [event] = span.events
    assert "secret" not in span.to_json()
    assert (span.status.is_ok, span.status.description) == (False, "ValueError")
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert (event.name, (event.attributes or {})["exception.type"]) == ("exception", "ValueError")
    assert shown(ValueError("secret"), messages=True).status.description == "secret"
    span = shown(PermanentCommandError("NO_CARD", "the customer has no card", {"card": "secret"}))
    assert (span.attributes or {})["error.type"] == "NO_CARD"
    assert span.status.description == "NO_CARD: the customer has no card"
    assert "secret" not in span.to_json()


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (Card.DeclinedError(), f"{__name__}.Card.DeclinedError"),
        (PermanentCommandError("", "no code"), "cmdbus.errors.PermanentCommandError"),
        (PermanentCommandError(3, "no text"), "cmdbus.errors.PermanentCommandError"),  # type: ignore[arg-type]
        (SystemExit(3), "SystemExit"),
    ],
)
def test_an_error_without_a_code_has_the_name_of_its_class(
    error: BaseException, named: str
) -> None:
    assert error_type(error) == named


def test_an_error_that_cannot_be_printed_has_no_message() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "exception.message" not in (shown(Mute(), messages=True).events[0].attributes or {})


def test_metrics_have_a_bounded_number_of_error_types() -> None:
    types = ErrorTypes(2)
    assert [types.bounded(each) for each in "abcab"] == ["a", "b", OTHER, "a", "b"]


def test_further_errors_are_measured_as_others() -> None:
    traces = Traces()
    metrics = Metrics("", traces.meters)
    for number in range(MAX_ERROR_TYPES + 5):
        metrics.executed("payments", "Debit", "RETRY", f"CODE_{number}", 0.1, None)
    points = traces.points("messaging.process.duration")
    assert len(points) == MAX_ERROR_TYPES + 1
    assert {labels["error.type"]: point.count for labels, point in points}[OTHER] == 5


def test_a_command_has_nothing_of_the_context_of_the_thread_that_reads_it() -> None:
    token = attach(trace.set_span_in_context(NonRecordingSpan(SENT)))
    try:
        assert creation_of(context_of({})) is None
    finally:
        detach(token)


def test_headers_carry_the_context_and_no_more_than_a_command_takes() -> None:
    context = trace.set_span_in_context(NonRecordingSpan(SENT), Context())
    traceparent = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    assert headers_of(context) == {"traceparent": traceparent}
    context = baggage.set_baggage("tenant", "acme", context)
    assert headers_of(context) == {"traceparent": traceparent, "baggage": "tenant=acme"}
    context = baggage.set_baggage("much", "x" * 4001, context)
    assert headers_of(context) == {"traceparent": traceparent}


def test_the_headers_of_an_execution_replace_those_of_its_command() -> None:
    context = trace.set_span_in_context(NonRecordingSpan(SENT), Context())
    headers = {"traceparent": "old", "tracestate": "old", "tenant": "acme"}
    replace_headers(headers, context)
    assert headers == {"tenant": "acme", "traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01"}
    headers = {"traceparent": "old"}
    replace_headers(headers, Context())
    assert headers == {"traceparent": "old"}, "nothing is known of another"
