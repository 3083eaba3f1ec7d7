"""The page of metrics, in Prometheus' text format 0.0.4. Pure.

Every family is on every page, and every series whose labels are known from the start:
a series that appears with its first event has no rate for that event.
"""

from collections.abc import Iterable, Iterator, Mapping

from cmdbus.board.counters import CountersView, HistogramView, OutcomeLabel
from cmdbus.board.health import Health
from cmdbus.board.layout import BUCKETS
from cmdbus.board.records import Phase, Role
from cmdbus.board.threads import StepReason
from cmdbus.board.views import BoardView
from cmdbus.producer.records import BatchStatus
from cmdbus.worker.probes.responses import Depths, Gauges, current_seats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The states of a command in the database that are counted.
_STATES = ("ready", "in_progress", "scheduled", "limited", "troubleshooting")
_HEALTH = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.CRITICAL: 2, Health.DATABASE_AWAY: 3}
_NO_PROCESS = 4

#: A suffix of the family's name, the labels, and the value.
Sample = tuple[str, Mapping[str, str], float]


def render(view: BoardView, counters: CountersView, gauges: Gauges) -> str:
    samples = {
        "commands_total": _commands(counters),
        **{f"{name}_total": _one(count) for name, count in counters.counts.items()},
        "wakeups_total": _by("source", counters.wakeups),
        "dequeue_latency_seconds": _histograms(counters.dequeue_latency),
        "handler_duration_seconds": _histograms(counters.handler_duration),
        "queue_depth": _depths(gauges.depths, counters),
        "unreachable_commands": _unreachable(gauges.unreachable),
        "batches": _batches(gauges.batches),
        "slots": _slots(view),
        "threads": _threads(view),
        "threads_bound": _thread_bounds(view),
        "threads_reason": _thread_reasons(view),
        "process_restarts_total": _by("reason", view.restarts),
        "health": _health(view),
        "process_rss_bytes": _rss(view),
        "undead_processes": _one(view.undead),
        "oldest_snapshot_seconds": _one(gauges.oldest_snapshot),
        "managed_processes": _processes(gauges.processes),
        "breaker_state": _by("name", dict(sorted((gauges.breakers or {}).items()))),
    }
    return "".join(_family(name, samples[name]) for name in _FAMILIES)


def _commands(counters: CountersView) -> Iterator[Sample]:
    counted = {(domain, type) for domain, type, _ in counters.commands}
    for domain, type in sorted(counted | {*counters.dequeue_latency}):
        for outcome in (label.name.lower() for label in OutcomeLabel):
            labels = {"domain": domain, "type": type, "outcome": outcome}
            yield "", labels, counters.commands.get((domain, type, outcome), 0)


def _by(label: str, counts: Mapping[str, int]) -> Iterator[Sample]:
    return (("", {label: name}, count) for name, count in counts.items())


def _histograms(views: Mapping[tuple[str, str], HistogramView]) -> Iterator[Sample]:
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    for (domain, type), view in sorted(views.items()):
        labels = {"domain": domain, "type": type}
        for bound, count in zip(bounds, view.counts, strict=True):
            yield "_bucket", {**labels, "le": bound}, count
        yield "_sum", labels, view.sum
        yield "_count", labels, view.count


def _depths(depths: Depths | None, counters: CountersView) -> Iterator[Sample]:
    """An empty queue has a depth, too: 0."""
    if depths is not None:
        for domain in sorted({domain for domain, _ in [*depths, *counters.dequeue_latency]}):
            for state in _STATES:
                yield "", {"domain": domain, "state": state}, depths.get((domain, state), 0)


def _batches(counts: Mapping[str, int] | None) -> Iterator[Sample]:
    if counts is not None:
        for status in BatchStatus:
            yield "", {"status": status.lower()}, counts.get(status, 0)


def _processes(counts: Mapping[tuple[str, str], int] | None) -> Iterator[Sample]:
    for (type_, status), count in sorted((counts or {}).items()):
        yield "", {"type": type_, "status": status}, count


def _unreachable(counts: Mapping[tuple[str, str, str], int] | None) -> Iterator[Sample]:
    for (domain, type_, reason), count in sorted((counts or {}).items()):
        yield "", {"domain": domain, "type": type_, "reason": reason}, count


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


def _family(name: str, samples: Iterable[Sample]) -> str:
    family_type, description = _FAMILIES[name]
    head = f"# HELP cmdbus_{name} {description}\n# TYPE cmdbus_{name} {family_type}\n"
    return head + "".join(_line(name, sample) for sample in samples)


def _line(name: str, sample: Sample) -> str:
    suffix, labels, value = sample
    quoted = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
    braced = f"{{{quoted}}}" if labels else ""
    return f"cmdbus_{name}{suffix}{braced} {value}\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


#: The families in their order: the type of each, and its description.
_FAMILIES = {
    "commands_total": ("counter", "Executions of commands that have ended, by outcome."),
    "batches_processed_total": ("counter", "Claims that found commands."),
    "empty_receives_total": ("counter", "Claims that found no commands."),
    "notification_wakeups_total": ("counter", "Notifications received from the database."),
    "claim_failures_total": ("counter", "Claims that ended with an error."),
    "lost_leases_total": ("counter", "Executions whose lease was lost before they ended."),
    "wakeups_total": ("counter", "Wake-ups of a waiting leader, by source."),
    "dequeue_latency_seconds": (
        "histogram",
        "Seconds from when a command could be claimed until it was.",
    ),
    "handler_duration_seconds": ("histogram", "Seconds that handlers took, for all outcomes."),
    "queue_depth": ("gauge", "Commands in the database, by state; no samples while it is away."),
    "unreachable_commands": (
        "gauge",
        "Commands that wait and that no living node claims because of tags or priority; no samples "
        "while the database is away.",
    ),
    "batches": ("gauge", "Batches that are kept, by status; no samples while it is away."),
    "slots": ("gauge", "Threads that run commands, by phase."),
    "threads": ("gauge", "Threads that a worker is to have now."),
    "threads_bound": (
        "gauge",
        "The least and the most of these threads; equal where the number is fixed.",
    ),
    "threads_reason": (
        "gauge",
        "1 for the reason of the latest change of the number, where it is not fixed, else 0.",
    ),
    "process_restarts_total": ("counter", "Processes that replaced another one, by reason."),
    "health": (
        "gauge",
        "Health of a worker process: 0 healthy, 1 degraded, 2 critical, 3 its database is away, "
        "4 no process is ready.",
    ),
    "process_rss_bytes": ("gauge", "Resident memory of a worker process, measured once a second."),
    "undead_processes": ("gauge", "Processes that survived SIGKILL; others have replaced them."),
    "oldest_snapshot_seconds": (
        "gauge",
        "Age of the oldest transaction that keeps the database from removing dead rows; no "
        "sample while it is away.",
    ),
    "managed_processes": (
        "gauge",
        "Processes of managers that are not over, by status; no samples while the database is "
        "away.",
    ),
    "breaker_state": (
        "gauge",
        "State of a circuit breaker: 0 closed, 1 half-open, 2 open; no samples while the database "
        "is away.",
    ),
    "breaker_denied_total": (
        "counter",
        "Claimed commands that went back, and calls in blocks that were not made, because of an "
        "open breaker; without commands that wait in their queue.",
    ),
}
