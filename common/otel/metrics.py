"""The measurements of a process, by the messaging conventions. Labels are domains, command types,
outcomes and a bounded number of errors; never an id."""

from collections import Counter as Counts
from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, MeterProvider, get_meter

from cmdbus.otel.conventions import SECONDS_BUCKETS, ErrorTypes, operation

#: Domain and type of a command; None where they are not known.
Named = tuple[str | None, str | None]


class Metrics:
    def __init__(self, version: str, provider: MeterProvider | None) -> None:
        meter = get_meter("cmdbus", version, provider)

        def histogram(name: str, text: str) -> Histogram:
            bounds = SECONDS_BUCKETS
            return meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=bounds
            )

        self._operations = histogram(
            "messaging.client.operation.duration",
            "Duration of sends, of waits for a command's end, and of settlements.",
        )
        self._executions = histogram(
            "messaging.process.duration", "Duration of the handlers' executions."
        )
        self._queue = histogram(
            "cmdbus.queue.duration", "Time for which commands that were due waited for a worker."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Commands that were to be sent."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Executions of commands by handlers.",
        )
        self._errors = ErrorTypes()

    def sent(self, commands: Iterable[Named], seconds: float, error: str | None) -> None:
        counts, error = Counts(commands), self._bounded(error)
        for (domain, type), count in counts.items():
            self._sent.add(count, operation("send", domain, type, error=error))
        domains = {domain for domain, _ in counts}
        common = domains.pop() if len(domains) == 1 else None
        self._operations.record(seconds, operation("send", common, None, error=error))

    def waited(self, name: str, domain: str | None, seconds: float, error: str | None) -> None:
        """A producer, for the end of a command or a batch."""
        error = self._bounded(error)
        self._operations.record(seconds, operation(name, domain, None, error=error))

    def settled(self, domain: str, seconds: float) -> None:
        self._operations.record(seconds, operation("settle", domain, None))

    def queued(self, domain: str, type: str, seconds: float) -> None:
        self._queue.record(seconds, operation("queue", domain, type))

    def executed(
        self,
        domain: str,
        type: str,
        outcome: str,
        error: str | None,
        seconds: float,
        context: Context | None,
    ) -> None:
        """`context`: of the span, for exemplars."""
        attributes = operation("process", domain, type, outcome, self._bounded(error))
        self._consumed.add(1, attributes, context)
        self._executions.record(seconds, attributes, context)

    def _bounded(self, error: str | None) -> str | None:
        return None if error is None else self._errors.bounded(error)
