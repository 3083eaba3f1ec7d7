"""The instrument that makes spans and metrics."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any
from uuid import UUID

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import TracerProvider

from cmdbus.clock import time
from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.instruments import EndedExecution, Instrument, Request, Sending
from cmdbus.otel.executions import EndedSpan, Executions, Key
from cmdbus.otel.metrics import Metrics
from cmdbus.otel.process_span import ProcessSpan
from cmdbus.otel.send_span import SendSpan
from cmdbus.otel.settlement_spans import SettlementSpans
from cmdbus.otel.wait_span import WaitSpan

logger = logging.getLogger(__name__)


class Tracing(Instrument):
    def __init__(
        self,
        version: str,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        is_child: bool,
        messages: bool,
    ) -> None:
        self._tracer = trace.get_tracer("cmdbus", version, tracer_provider)
        self._metrics = Metrics(version, meter_provider)
        self._executions = Executions()
        self._settlements = SettlementSpans(self._tracer)
        self._tracer_provider, self._meter_provider = tracer_provider, meter_provider
        self._is_child, self._messages = is_child, messages

    def sending(
        self, requests: Sequence[Request], operation: str
    ) -> AbstractContextManager[Sending]:
        messages = self._messages
        return SendSpan(self._tracer, self._metrics, requests, operation, messages=messages)

    def waiting(
        self, operation: str, domain: str | None, id: UUID
    ) -> AbstractContextManager[object]:
        messages = self._messages
        return WaitSpan(self._tracer, self._metrics, operation, domain, id, messages=messages)

    def executing(self, command: Command[Any], context: Context) -> AbstractContextManager[object]:
        return ProcessSpan(
            self._tracer,
            self._metrics,
            self._executions,
            command,
            context,
            is_child=self._is_child,
            messages=self._messages,
        )

    def settled(self, ended: EndedExecution) -> None:
        self._metrics.queued(ended.domain, ended.type, ended.waited)
        key = ended.command_id.int, ended.attempt
        span = self._executions.settled(key)
        if span is None and ended.code == "TIMEOUT":
            span = self._timed_out(ended, key)
        if span is None:
            return  # There was no execution.
        self._metrics.settled(ended.domain, max(0.0, ended.settled_at - span.ended))
        if span.context is not None:
            self._settlements.add(ended, span.context, span)

    def _timed_out(self, ended: EndedExecution, key: Key) -> EndedSpan | None:
        """Ends the span of a thread that hangs."""
        running = self._executions.take(key)
        if running is None:
            return None
        span = running.ended_at(ended.ended_at)
        running.end_as_timed_out(ended.status, "TIMEOUT", ended.seconds)
        return span

    def flush(self, seconds: float) -> None:
        """In threads: an export that hangs heeds no timeout of the SDK's. Providers of the API
        alone have nothing to send."""
        until = time.monotonic() + seconds
        providers = (
            self._tracer_provider or trace.get_tracer_provider(),
            self._meter_provider or get_meter_provider(),
        )
        threads = [
            Thread(target=_flush, args=(provider, seconds), name="otel-flush", daemon=True)
            for provider in providers
            if hasattr(provider, "force_flush")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def _flush(provider: Any, seconds: float) -> None:
    try:
        provider.force_flush(int(seconds * 1000))
    except Exception as error:
        logger.warning("spans or metrics of the last seconds were not sent: %r", error)
