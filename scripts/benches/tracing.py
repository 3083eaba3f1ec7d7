"""What OpenTelemetry costs a command that a fleet runs. Spans are collected in batches, and thrown
away where they would be sent."""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from benches.comparison import Found, Place
from benches.fleet import DOMAIN, TYPE, fleet, nothing
from benches.yard import DATA, commands, rates_and_cpu, warming, yard
from cmdbus.producer.requests import SendRequest
from cmdbus.registry import HandlerRegistry

#: The domain of the fleet that is traced; the other one waits meanwhile.
_TRACED = f"{DOMAIN}-traced"
#: A header of the sender's span, to be ended with whether that is sampled.
_TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


def registry() -> HandlerRegistry:
    """The app of the fleet that is traced."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    from cmdbus.otel import CmdbusInstrumentor

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    meters = MeterProvider([InMemoryMetricReader()])
    CmdbusInstrumentor().instrument(tracer_provider=provider, meter_provider=meters)
    made = HandlerRegistry()
    made.register(_TRACED, TYPE, nothing)
    return made


def otel(slot: Place) -> Found:
    """The drain by a fleet of 2 x 8 that makes spans and metrics, with commands of a sampled trace
    and of an unsampled one, against the drain by a fleet that does not."""
    try:
        import_module("opentelemetry.sdk")
    except ImportError:
        needed = "pip install opentelemetry-api opentelemetry-sdk"
        print(f"otel: this needs the SDK of OpenTelemetry: {needed}", file=sys.stderr)
        return {}
    requests = commands(slot.sizes.commands)
    sampled, unsampled = _traced(len(requests), "01"), _traced(len(requests), "00")
    made = partial(fleet, slot.dsn, {TYPE: nothing}, processes=2, threads=8)
    with yard(slot) as here, made() as plain, made(app="benches.tracing:registry") as traced:
        for running, some in ((plain, requests), (traced, sampled)):
            here.drain(running, warming(some))
        rounds = slot.rounds(
            lambda: here.drain(plain, requests),
            lambda: here.drain(traced, sampled),
            lambda: here.drain(traced, unsampled),
        )
    configuration = {"processes": 2, "threads": 8, "commands": len(requests)}
    return {
        **rates_and_cpu("otel", [(off, on) for off, on, _ in rounds], **configuration),
        **rates_and_cpu("otel-unsampled", [(off, on) for off, _, on in rounds], **configuration),
    }


def _traced(count: int, flags: str) -> list[SendRequest]:
    headers = {"traceparent": _TRACEPARENT + flags}
    return [SendRequest(_TRACED, TYPE, DATA, headers=headers)] * count
