"""Executions that end in other ways, and where contexts go: links, samplers, baggage, forks."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from handlers import LADDER, ONCE, handling, running
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, SamplingResult
from opentelemetry.trace import TraceFlags, get_current_span
from queries import CLAIM
from traces import Traces, attributes, context, instrumented, is_child, times

from cmdbus import BreakerOpenError, Command, CommandBus, Context

SAMPLED = TraceFlags.SAMPLED


def test_with_links_each_execution_begins_a_trace(dsn: str, bus: CommandBus) -> None:
    with instrumented(Traces(), propagation="link") as traces, running(dsn, handling()):
        bus.send("payments", "Debit")
        settle = traces.one("settle payments")
        send, process = traces.one("send payments"), traces.one("process payments")
    assert process.parent is None and is_child(settle, process)
    assert context(process).trace_id != context(send).trace_id
    assert [link.context.span_id for link in process.links] == [context(send).span_id]


def test_a_command_without_a_context_begins_a_trace(dsn: str, bus: CommandBus) -> None:
    command_id = bus.send("payments", "Debit")
    with instrumented(Traces()) as traces, running(dsn, handling()):
        bus.wait("payments", command_id, 10)
        traces.one("settle payments")
    process = traces.one("process payments")
    assert process.parent is None and not process.links
    assert "queue payments" not in [span.name for span in traces.spans]


def test_an_unsampled_trace_stays_so_and_is_measured(dsn: str, bus: CommandBus) -> None:
    flags: list[int] = []

    def handle(command: Command, context: Context) -> None:
        flags.append(get_current_span().get_span_context().trace_flags & SAMPLED)
        for headers in (command.headers, context.headers):
            flags.append(int(headers["traceparent"][-1], 16) & SAMPLED)

    with instrumented(Traces(ParentBased(ALWAYS_OFF))) as traces, running(dsn, handling(handle)):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
    assert traces.spans == () and flags == [0, 0, 0]
    [(labels, point)] = traces.points("messaging.process.duration")
    assert (labels["cmdbus.outcome"], point.count) == ("COMPLETED", 1)


class SlowSampler(ParentBased):
    def should_sample(self, *arguments: Any, **named: Any) -> SamplingResult:
        threading.Event().wait(0.1)
        return super().should_sample(*arguments, **named)


def test_an_execution_begins_where_its_time_in_the_queue_ends_though_its_span_is_made_later(
    dsn: str, bus: CommandBus
) -> None:
    with instrumented(Traces(SlowSampler(ALWAYS_ON))) as traces, running(dsn, handling()):
        bus.send("payments", "Debit")
        traces.one("settle payments")
    began, _ = times(traces.one("process payments"))
    assert times(traces.one("queue payments"))[1] == pytest.approx(began, abs=50_000_000)


def test_baggage_comes_with_the_command(dsn: str, bus: CommandBus) -> None:
    seen: list[object] = []

    def handle(command: Command, context: Context) -> None:
        seen.append(baggage.get_baggage("tenant"))

    with instrumented(Traces()), running(dsn, handling(handle)):
        token = attach(baggage.set_baggage("tenant", "acme"))
        try:
            command_id = bus.send("payments", "Debit")
        finally:
            detach(token)
        bus.wait("payments", command_id, 10)
        bus.wait("payments", bus.send("payments", "Debit"), 10)
    assert seen == ["acme", None], "a thread keeps nothing of the execution before"


def test_an_execution_that_times_out_ends_while_its_thread_hangs(dsn: str, bus: CommandBus) -> None:
    release = threading.Event()

    def hang(command: Command, context: Context) -> None:
        release.wait(20)

    with instrumented(Traces()) as traces:
        with running(dsn, handling(hang, retry=ONCE), timeouts=LADDER, concurrency=1):
            bus.send("payments", "Debit")
            process = traces.one("process payments")
            release.set()
        assert len(traces.named("process payments")) == 1
    assert attributes(process)["error.type"] == "TIMEOUT" and not process.status.is_ok
    assert attributes(process)["cmdbus.outcome"] == "TROUBLESHOOTING"
    assert is_child(traces.one("settle payments"), process)
    [(labels, point)] = traces.points("messaging.process.duration")
    assert (labels["error.type"], point.count) == ("TIMEOUT", 1)


def test_commands_that_are_given_back_or_deferred_have_not_failed(
    dsn: str, bus: CommandBus
) -> None:
    def handle(command: Command, context: Context) -> None:
        if command.data == "again":
            context.again(60)
        else:
            raise BreakerOpenError("stripe", 60)

    with instrumented(Traces()) as traces, running(dsn, handling(handle)):
        for data in ("again", "deferred"):
            bus.send("payments", "Debit", data)
        traces.named("settle payments", 2)
    ended = traces.named("process payments", 2)
    assert {attributes(span)["cmdbus.outcome"] for span in ended} == {"AGAIN", "DEFERRED"}
    assert all(span.status.is_unset and not span.events for span in ended)


def test_a_child_that_a_handler_forks_ends_no_span(
    dsn: str, bus: CommandBus, tmp_path: Path
) -> None:
    class ToFile(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            with (tmp_path / "spans").open("a") as file:
                file.write("".join(f"{span.name}\n" for span in spans))
            return SpanExportResult.SUCCESS

    def handle(command: Command, context: Context) -> None:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)

    traces = Traces()
    traces.tracers.add_span_processor(SimpleSpanProcessor(ToFile()))
    with instrumented(traces), running(dsn, handling(handle)):
        bus.send("payments", "Debit")
        traces.one("settle payments")
    exported = (tmp_path / "spans").read_text().splitlines()
    assert sorted(exported) == [
        f"{name} payments" for name in ("process", "queue", "send", "settle")
    ]


def test_a_context_that_cannot_be_read_is_none(dsn: str, bus: CommandBus) -> None:
    wrong = ["00-nonsense", "", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"]
    for traceparent in wrong:
        headers = {"traceparent": traceparent, "tracestate": "=", "baggage": "%%%=,;"}
        bus.send("payments", "Debit", headers=headers)
    with instrumented(Traces()) as traces, running(dsn, handling()):
        settled = traces.named("settle payments", len(wrong))
    for process in traces.named("process payments", len(wrong)):
        assert process.parent is None and not process.links
    assert [attributes(span)["cmdbus.outcome"] for span in settled] == ["COMPLETED"] * len(wrong)


def test_a_settlement_that_finds_the_lease_lost_is_an_error(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    def handle(command: Command, context: Context) -> None:
        connection.execute(CLAIM, ("1 minute", command.command_id))

    with instrumented(Traces()) as traces, running(dsn, handling(handle)):
        bus.send("payments", "Debit")
        settle = traces.one("settle payments")
    assert attributes(settle)["cmdbus.outcome"] == attributes(settle)["error.type"] == "LOST"
    assert not settle.status.is_ok
