"""The invariant of circuit breakers: no more probes than their terms say. Pure."""

from collections.abc import Iterator

from fault_injection.history import History


def probes_are_never_exceeded(history: History) -> Iterator[str]:
    """As the database has seen them, on all nodes together."""
    for probe in history.probes:
        if probe.held > probe.most:
            yield (
                f"breaker {probe.breaker} let {probe.held} probes through at {probe.at:.3f}, and "
                f"{probe.most} are allowed"
            )
