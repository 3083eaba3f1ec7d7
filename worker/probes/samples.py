"""The samples of each family of metrics. Pure.

Every series is there whose labels are known from the start: one that appears with its first event
has no rate for that event.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from cmdbus.board.counters import CountersView, HistogramView, OutcomeLabel
from cmdbus.board.health import Health
from cmdbus.board.layout import BUCKETS
from cmdbus.board.records import Phase, Role
from cmdbus.board.threads import StepReason
from cmdbus.board.views import BoardView
from cmdbus.producer.records import BatchStatus
from cmdbus.worker.probes.families import Sample
from cmdbus.worker.probes.responses import NODE_STATES, Gauges, current_seats

#: The states of a command in the database that are counted.
_STATES = ("ready", "in_progress", "scheduled", "limited", "troubleshooting")
_HEALTH = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.CRITICAL: 2, Health.DATABASE_AWAY: 3}
_NO_PROCESS = 4

#: The values of labels.
Key = TypeVar("Key", bound=tuple[str, ...])
#: Samples by the name of their family.
Samples = dict[str, Iterable[Sample]]


def samples_of(view: BoardView, counters: CountersView, gauges: Gauges) -> Samples:
    domains = {domain for domain, _ in counters.dequeue_latency}
    return of_board(view, counters) | of_database(gauges, domains)


def of_board(view: BoardView, counters: CountersView) -> Samples:
    return {
        "cmdbus_commands_total": _commands(counters),
        **{f"cmdbus_{name}_total": _one(count) for name, count in counters.counts.items()},
        "cmdbus_wakeups_total": _by("source", counters.wakeups),
        "cmdbus_dequeue_latency_seconds": histograms(counters.dequeue_latency),
        "cmdbus_handler_duration_seconds": histograms(counters.handler_duration),
        "cmdbus_slots": _slots(view),
        "cmdbus_threads": _threads(view),
        "cmdbus_threads_bound": _thread_bounds(view),
        "cmdbus_threads_reason": _thread_reasons(view),
        "cmdbus_process_restarts_total": _by("reason", view.restarts),
        "cmdbus_health": _health(view),
        "cmdbus_process_rss_bytes": _rss(view),
        "cmdbus_undead_processes": _one(view.undead),
    }


def of_database(gauges: Gauges, domains: Iterable[str]) -> Samples:
    """`domains`: those whose queues are shown also while they are empty."""
    shown = sorted({*domains, *(domain for domain, _ in gauges.depths or ())})
    return {
        "cmdbus_database_up": _one(None if gauges.up is None else int(gauges.up)),
        "cmdbus_queue_depth": _depths(gauges, shown),
        "cmdbus_queue_oldest_seconds": _oldest(gauges, shown),
        "cmdbus_unreachable_commands": _unreachable(gauges.unreachable),
        "cmdbus_batches": _batches(gauges.batches),
        "cmdbus_oldest_snapshot_seconds": _one(gauges.oldest_snapshot),
        "cmdbus_managed_processes": _processes(gauges.processes),
        "cmdbus_breaker_state": _by("name", dict(sorted((gauges.breakers or {}).items()))),
        "cmdbus_bridge_moved_total": _bridges(gauges.bridges, "moved"),
        "cmdbus_bridge_refused_total": _bridges(gauges.bridges, "refused"),
        "cmdbus_bridge_failing": _bridges(gauges.bridges, "failing"),
        "cmdbus_nodes": _nodes(gauges.nodes),
    }


def histograms(
    views: Mapping[Key, HistogramView], names: tuple[str, ...] = ("domain", "type")
) -> Iterator[Sample]:
    """Bounds are written as OpenMetrics wants them: 1.0, not 1."""
    bounds = [*(repr(float(bound)) for bound in BUCKETS), "+Inf"]
    for values, view in sorted(views.items()):
        labels = dict(zip(names, values, strict=True))
        for bound, count in zip(bounds, view.counts, strict=True):
            yield "_bucket", {**labels, "le": bound}, count
        yield "_sum", labels, view.sum
        yield "_count", labels, view.count


def _commands(counters: CountersView) -> Iterator[Sample]:
    counted = {(domain, type) for domain, type, _ in counters.commands}
    for domain, type in sorted(counted | {*counters.dequeue_latency}):
        for outcome in (label.name.lower() for label in OutcomeLabel):
            labels = {"domain": domain, "type": type, "outcome": outcome}
            yield "", labels, counters.commands.get((domain, type, outcome), 0)


def _by(label: str, counts: Mapping[str, int]) -> Iterator[Sample]:
    return (("", {label: name}, count) for name, count in counts.items())


def _depths(gauges: Gauges, domains: Iterable[str]) -> Iterator[Sample]:
    """An empty queue has a depth, too: 0."""
    if gauges.depths is not None:
        for domain in domains:
            for state in _STATES:
                depth = gauges.depths.get((domain, state), 0)
                yield "", {"domain": domain, "state": state}, depth


def _oldest(gauges: Gauges, domains: Iterable[str]) -> Iterator[Sample]:
    if gauges.oldest is not None:
        for domain in domains:
            yield "", {"domain": domain}, gauges.oldest.get(domain, 0)


def _batches(counts: Mapping[str, int] | None) -> Iterator[Sample]:
    if counts is not None:
        for status in BatchStatus:
            yield "", {"status": status.lower()}, counts.get(status, 0)


def _processes(counts: Mapping[tuple[str, str], int] | None) -> Iterator[Sample]:
    for (type_, status), count in sorted((counts or {}).items()):
        yield "", {"type": type_, "status": status}, count


def _bridges(counts: Mapping[tuple[str, str, str], int] | None, what: str) -> Iterator[Sample]:
    for (name, direction, counted), count in sorted((counts or {}).items()):
        if counted == what:
            yield "", {"name": name, "direction": direction}, count


def _unreachable(counts: Mapping[tuple[str, str, str], int] | None) -> Iterator[Sample]:
    for (domain, type_, reason), count in sorted((counts or {}).items()):
        yield "", {"domain": domain, "type": type_, "reason": reason}, count


def _nodes(counts: Mapping[str, int] | None) -> Iterator[Sample]:
    if counts is not None:
        for state in NODE_STATES:
            yield "", {"state": state}, counts.get(state, 0)


def _slots(view: BoardView) -> Iterator[Sample]:
    counts = dict.fromkeys(Phase, 0)
    for seat in view.seats:
        if seat.role in (Role.WORKER, Role.QUARANTINE, Role.STOPPING) and seat.pid is not None:
            for slot in seat.slots:
                if slot.number >= 0 and slot.phase is not None:
                    counts[slot.phase] += 1
    return _by("phase", {phase.name.lower(): count for phase, count in counts.items()})


def _health(view: BoardView) -> Iterator[Sample]:
    for seat in current_seats(view):
        is_ready = seat.pid is not None and seat.ready is not None
        level = _HEALTH[seat.health] if is_ready else _NO_PROCESS
        yield "", {"seat": str(seat.number)}, level


def _rss(view: BoardView) -> Iterator[Sample]:
    for seat in view.workers.values():
        if seat.rss_bytes is not None:
            yield "", {"seat": str(seat.number)}, seat.rss_bytes


def _threads(view: BoardView) -> Iterator[Sample]:
    for seat in view.workers.values():
        if seat.threads is not None:
            yield "", {"seat": str(seat.number)}, seat.threads.now


def _thread_bounds(view: BoardView) -> Iterator[Sample]:
    for seat in view.workers.values():
        if seat.threads is not None:
            yield "", {"seat": str(seat.number), "bound": "least"}, seat.threads.least
            yield "", {"seat": str(seat.number), "bound": "most"}, seat.threads.most


def _thread_reasons(view: BoardView) -> Iterator[Sample]:
    for seat in view.workers.values():
        if seat.threads is not None and seat.threads.is_range:
            for reason in StepReason:
                labels = {"seat": str(seat.number), "reason": reason.name.lower()}
                yield "", labels, int(reason is seat.threads.reason)


def _one(value: float | None) -> Iterable[Sample]:
    return [] if value is None else [("", {}, value)]
