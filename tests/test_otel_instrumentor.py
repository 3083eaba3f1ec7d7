"""Switching OpenTelemetry on and off, its metrics, and what a program without it gets."""

import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points
from typing import Any

import pytest
from eventually import eventually
from handlers import SOON, handling, running
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider
from traces import Traces, instrumented

from cmdbus import Command, CommandBus, Context, SendRequest, instrument_hooks, instruments
from cmdbus.otel import CmdbusInstrumentor

SENT = f"00-{0xABC:032x}-{0xDEF:016x}-01"


def test_a_second_instrument_counts_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with instrumented(Traces()):
        CmdbusInstrumentor().instrument(skip_dep_check=True)
        assert "is instrumented already" in caplog.text
        assert len(instruments.installed) == 1
        assert CmdbusInstrumentor().is_instrumented_by_opentelemetry
    assert not instruments.installed
    CmdbusInstrumentor().uninstrument()
    assert "is not instrumented" in caplog.text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"propagation": "both"}, "propagation must be 'child' or 'link', not 'both'"),
        ({"tracer_provider": 3}, "tracer_provider must have a method get_tracer, unlike 3"),
        ({"meter_provider": "x"}, "meter_provider must have a method get_meter, unlike 'x'"),
        ({"error_messages": "no"}, "error_messages must be True or False, not 'no'"),
    ],
)
def test_what_no_instrumentation_can_work_with_is_refused(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        CmdbusInstrumentor().instrument(**given)
    assert instruments.installed == ()


def test_opentelemetrys_own_programs_find_it() -> None:
    found = {
        each.name: each.load()
        for each in entry_points(group="opentelemetry_instrumentor")
        if each.name == "cmdbus"
    }
    assert found == {"cmdbus": CmdbusInstrumentor}


def test_it_says_which_extra_is_missing_and_loads_no_driver() -> None:
    program = """
import sys
sys.modules["opentelemetry.trace"] = None
try:
    import cmdbus.otel
except ImportError as error:
    print(error)
for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
    del sys.modules[name]
from cmdbus.otel import CmdbusInstrumentor
CmdbusInstrumentor().instrument()
print([name for name in sys.modules if name.startswith(("psycopg", "opentelemetry.sdk"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.splitlines() == [
        "cmdbus.otel needs the extra otel: pip install 'cmdbus[otel]'",
        "[]",
    ]


def test_what_is_sent_and_executed_is_measured(dsn: str, bus: CommandBus) -> None:
    def handle(command: Command, context: Context) -> None:
        if context.attempt == 1:
            raise ValueError("once")

    with instrumented(Traces()) as traces, running(dsn, handling(handle, retry=SOON)):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        bus.send_many([SendRequest("payments", "Noop") for _ in range(3)])
        traces.named("settle payments", 5)
    operation = {"messaging.system": "cmdbus", "messaging.destination.name": "payments"}
    send = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    sent = [
        (labels, point.value) for labels, point in traces.points("messaging.client.sent.messages")
    ]
    assert sent == [
        ({**operation, **send, "cmdbus.command.type": type}, count)
        for type, count in (("Debit", 1), ("Noop", 3))
    ]
    executed = {
        (labels["cmdbus.command.type"], labels["cmdbus.outcome"], labels.get("error.type")): (
            point.count,
            point.explicit_bounds[:2],
        )
        for labels, point in traces.points("messaging.process.duration")
    }
    bounds = (0.005, 0.01)
    assert executed == {
        ("Debit", "RETRY", "ValueError"): (1, bounds),
        ("Debit", "COMPLETED", None): (1, bounds),
        ("Noop", "COMPLETED", None): (3, bounds),
    }
    consumed = traces.points("messaging.client.consumed.messages")
    assert sum(point.value for _, point in consumed) == 5
    operations = {
        labels["messaging.operation.name"]: point.count
        for labels, point in traces.points("messaging.client.operation.duration")
    }
    assert operations == {"send": 2, "settle": 5, "wait": 1}
    queued = traces.points("cmdbus.queue.duration")
    assert sum(point.count for _, point in queued) == 5
    assert all(labels["messaging.operation.name"] == "queue" for labels, _ in queued)


def test_an_export_that_hangs_holds_no_process_up(caplog: pytest.LogCaptureFixture) -> None:
    class Hanging(TracerProvider):
        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return release.wait(20)

    class Failing(MeterProvider):
        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            raise TimeoutError("no collector")

    release, traces = threading.Event(), Traces()
    traces.tracers, traces.meters = Hanging(), Failing(shutdown_on_exit=False)
    with instrumented(traces):
        began = time.monotonic()
        instrument_hooks.flush(0.05)
        assert time.monotonic() - began < 10
        release.set()
        eventually(lambda: "were not sent: TimeoutError('no collector')" in caplog.text)


def test_without_an_sdk_there_is_nothing_to_send_and_nothing_is_made(
    dsn: str, bus: CommandBus
) -> None:
    CmdbusInstrumentor().instrument(
        tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider()
    )
    try:
        with running(dsn, handling()):
            command_id = bus.send("payments", "Debit", headers={"traceparent": SENT})
            assert bus.wait("payments", command_id, 10).headers == {"traceparent": SENT}
        instrument_hooks.flush(1)
    finally:
        CmdbusInstrumentor().uninstrument()
