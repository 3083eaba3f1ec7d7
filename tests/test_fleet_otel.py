"""A fleet whose processes OpenTelemetry's own program instruments."""

import json
import sys
from pathlib import Path

import pytest
from fleet import Fleet
from handlers import await_drained
from traces import Traces, instrumented

from cmdbus import CommandBus

pytestmark = [
    pytest.mark.fleet(started=False, app="traced_app:registry", procs=2),
    pytest.mark.skipif(
        not Path(sys.executable).with_name("opentelemetry-instrument").exists(),
        reason="needs the programs of OpenTelemetry",
    ),
]


def test_workers_that_are_forked_send_their_spans_before_they_end(
    fleet: Fleet, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for signals in ("TRACES", "METRICS", "LOGS"):
        monkeypatch.setenv(f"OTEL_{signals}_EXPORTER", "none")
    monkeypatch.setenv("OTEL_PYTHON_CONFIGURATOR", "none")  # The application has its own.
    fleet.program.insert(0, str(Path(sys.executable).with_name("opentelemetry-instrument")))
    fleet.start()
    pids = fleet.wait_until_ready()
    with instrumented(Traces()) as traces:
        ids = [bus.send("shop", "First") for _ in range(4)]
        for each in ids:
            bus.wait("shop", each, 10)
        await_drained(bus, domain="shop")
        sent = {span.context.trace_id for span in traces.named("send shop", 4)}
    assert fleet.stop() == 0
    spans = [json.loads(line) for line in (fleet.place / "spans").read_text().splitlines()]
    assert {span["pid"] for span in spans} <= {*pids.values()}
    assert {span["trace"] for span in spans} == sent
    names = [span["name"] for span in spans]
    assert {name: names.count(name) for name in names} == {
        "process shop": 8,
        "queue shop": 8,
        "settle shop": 8,
        "send shop": 4,
    }
