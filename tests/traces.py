"""OpenTelemetry's SDK for a test: what its process has exported, and a picture of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from eventually import eventually
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import SpanContext, Tracer

from cmdbus.otel import CmdbusInstrumentor


class Traces:
    """Spans and measurements of this process."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def tracer(self) -> Tracer:
        """Of an application."""
        return self.tracers.get_tracer("shop")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """In the order of their ends."""
        return self._exporter.get_finished_spans()

    def clear(self) -> None:
        self._exporter.clear()

    def named(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """As many with this name, once they have ended."""

        def found() -> list[ReadableSpan]:
            spans = [span for span in self.spans if span.name == name]
            return spans if len(spans) >= count else []

        spans = eventually(found)
        assert len(spans) == count, [span.name for span in self.spans]
        return spans

    def one(self, name: str) -> ReadableSpan:
        return self.named(name)[0]

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """Attributes and data of each time series of this metric."""
        data = self._reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), point)
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


@contextmanager
def instrumented(traces: Traces, **options: Any) -> Iterator[Traces]:
    instrumentor = CmdbusInstrumentor()
    instrumentor.instrument(tracer_provider=traces.tracers, meter_provider=traces.meters, **options)
    try:
        yield traces
    finally:
        instrumentor.uninstrument()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> SpanContext:
    found: SpanContext | None = span.context
    assert found is not None
    return found


def times(span: ReadableSpan) -> tuple[int, int]:
    """Of its start and its end, in nanoseconds."""
    assert span.start_time is not None and span.end_time is not None
    return span.start_time, span.end_time


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    own, other = span.parent, context(parent)
    if own is None:
        return False
    return (own.trace_id, own.span_id) == (other.trace_id, other.span_id)


def picture(spans: Sequence[ReadableSpan]) -> str:
    """The trees of these spans: names, kinds, and milliseconds from the first one's start."""
    ids = {context(span).span_id for span in spans}
    roots = [span for span in spans if span.parent is None or span.parent.span_id not in ids]
    first = min(times(span)[0] for span in spans)
    rows = [row for root in roots for row in _rows(root, spans, "", "")]
    width = max(len(label) for label, _ in rows) + 2
    return "\n".join(
        f"{label:{width}}{span.kind.name:9}{(began - first) / 1e6:8.1f}{(ended - began) / 1e6:8.1f}"
        for label, span in rows
        for began, ended in [times(span)]
    )


def _rows(
    span: ReadableSpan, spans: Sequence[ReadableSpan], own: str, below: str
) -> Iterator[tuple[str, ReadableSpan]]:
    yield own + span.name, span
    inside = [each for each in spans if is_child(each, span)]
    inside.sort(key=times)
    for each in inside:
        last = each is inside[-1]
        yield from _rows(
            each, spans, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")
        )
