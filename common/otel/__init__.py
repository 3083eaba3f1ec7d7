"""OpenTelemetry: spans and metrics of sends, waits, executions and settlements, by the messaging
conventions, and one trace across all of them. `CmdbusInstrumentor().instrument()`; see README.md.

Imports neither a database driver nor the SDK, and starts no thread: the supervising process may
import it, when OpenTelemetry instruments it by its entry points.
"""

try:
    import opentelemetry.trace as _trace  # noqa: F401  # only whether it is there
except ImportError as error:
    raise ImportError(
        "cmdbus.otel needs the extra otel: pip install 'cmdbus[otel]'", name=error.name
    ) from error

from cmdbus.otel.instrumentor import CmdbusInstrumentor

__all__ = ["CmdbusInstrumentor"]
