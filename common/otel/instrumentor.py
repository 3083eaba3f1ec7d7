"""Switches OpenTelemetry on and off for the buses and workers of this process."""

import logging
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import ClassVar

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from cmdbus import instruments
from cmdbus.checks import check_flag, shown
from cmdbus.otel.tracing import Tracing

logger = logging.getLogger(__name__)

CHILD, LINK = "child", "link"


class CmdbusInstrumentor:
    """Like the instrumentors of OpenTelemetry's own packages, and found by them by its entry point:
    `opentelemetry-instrument` needs no line of code."""

    _lock: ClassVar[Lock] = Lock()
    _installed: ClassVar[Tracing | None] = None

    def instrument(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagation: str = CHILD,
        error_messages: bool = False,
        skip_dep_check: bool = False,
        raise_exception_on_conflict: bool = False,
    ) -> None:
        """From now on each send, wait, execution and settlement has its span and its measurements.

        Without providers the global ones are used, also if they are set later. With the
        `propagation` "child" the execution is part of the trace that sent its command; with "link"
        it begins a trace of its own, linked to that. Errors are shown with their types and stacks,
        and with `error_messages` also with what they say, which may quote payloads. The last two
        arguments are those that OpenTelemetry's own packages pass; they change nothing.

        Call it where the application is imported or in a function of `on_start`: a worker process
        asks for instruments when it meets a command type for the first time.
        """
        if propagation not in (CHILD, LINK):
            raise ValueError(f"propagation must be 'child' or 'link', not {shown(propagation)}")
        _check_provider("tracer_provider", tracer_provider, "get_tracer")
        _check_provider("meter_provider", meter_provider, "get_meter")
        check_flag("error_messages", error_messages)
        with self._lock:
            if CmdbusInstrumentor._installed is not None:
                logger.warning("cmdbus is instrumented already: the first instrument() counts")
                return
            tracing = Tracing(
                _version(),
                tracer_provider,
                meter_provider,
                is_child=propagation == CHILD,
                messages=error_messages,
            )
            instruments.install(tracing)
            CmdbusInstrumentor._installed = tracing

    def uninstrument(self) -> None:
        """Worker processes that run keep the spans of the command types that they have met."""
        with self._lock:
            if CmdbusInstrumentor._installed is None:
                logger.warning("cmdbus is not instrumented: uninstrument() changes nothing")
                return
            instruments.remove(CmdbusInstrumentor._installed)
            CmdbusInstrumentor._installed = None

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        return CmdbusInstrumentor._installed is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """None besides cmdbus, whose part this is."""
        return ()


def _check_provider(what: str, provider: object, method: str) -> None:
    if provider is not None and not callable(getattr(provider, method, None)):
        raise ValueError(f"{what} must have a method {method}, unlike {shown(provider)}")


def _version() -> str:
    try:
        return version("cmdbus")
    except PackageNotFoundError:
        return ""
