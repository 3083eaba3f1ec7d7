"""The page of metrics, in Prometheus' text format 0.0.4. Pure.

Every family is on every page, and every series whose labels are known from the start:
a series that appears with its first event has no rate for that event.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cmdbus.board.counters import CountersView, HistogramView, OutcomeLabel
from cmdbus.board.health import Health
from cmdbus.board.layout import BUCKETS
from cmdbus.board.records import Phase, Role
from cmdbus.board.views import BoardView, SeatView
from cmdbus.worker.probes.responses import Depths

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The states of a command in the database that are counted.
STATES = ("ready", "in_progress", "scheduled", "troubleshooting")
_HEALTH = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.CRITICAL: 2, Health.DATABASE_AWAY: 3}
_NO_PROCESS = 4

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reading:
    """The state that a page shows. `depths` and `oldest_snapshot`, in seconds, are None while they
    are unknown."""

    view: BoardView
    counters: CountersView
    depths: Depths | None
    oldest_snapshot: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    suffix: str
    labels: Labels
    value: float


def render(
    view: BoardView,
    counters: CountersView,
    depths: Depths | None,
    oldest_snapshot: float | None = None,
) -> str:
    reading = Reading(view, counters, depths, oldest_snapshot)
    return "".join(_lines(name, reading) for name in _HELP)


def _commands(reading: Reading) -> list[Sample]:
    counters = reading.counters
    counted = {(domain, type) for domain, type, _ in counters.commands}
    return [
        Sample(
            "",
            {"domain": domain, "type": type, "outcome": outcome},
            counters.commands.get((domain, type, outcome), 0),
        )
        for domain, type in sorted(counted | {*counters.dequeue_latency})
        for outcome in (label.name.lower() for label in OutcomeLabel)
    ]


def _by(label: str, counts: Mapping[str, int]) -> list[Sample]:
    return [Sample("", {label: name}, count) for name, count in counts.items()]


def _histograms(views: Mapping[tuple[str, str], HistogramView]) -> list[Sample]:
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    samples = []
    for (domain, type), view in sorted(views.items()):
        labels = {"domain": domain, "type": type}
        for bound, count in zip(bounds, view.counts, strict=True):
            samples.append(Sample("_bucket", {**labels, "le": bound}, count))
        samples.append(Sample("_sum", labels, view.sum))
        samples.append(Sample("_count", labels, view.count))
    return samples


def _depths(reading: Reading) -> list[Sample]:
    """An empty queue has a depth, too: 0."""
    depths = reading.depths
    if depths is None:
        return []
    domains = {domain for domain, _ in [*depths, *reading.counters.dequeue_latency]}
    return [
        Sample("", {"domain": domain, "state": state}, depths.get((domain, state), 0))
        for domain in sorted(domains)
        for state in STATES
    ]


def _slots(reading: Reading) -> list[Sample]:
    counts = dict.fromkeys(Phase, 0)
    for seat in reading.view.seats:
        if seat.role in (Role.WORKER, Role.QUARANTINE, Role.STOPPING) and seat.pid is not None:
            for slot in seat.slots:
                if slot.number >= 0 and slot.phase is not None:
                    counts[slot.phase] += 1
    return _by("phase", {phase.name.lower(): count for phase, count in counts.items()})


def _health(reading: Reading) -> list[Sample]:
    levels = dict.fromkeys(range(reading.view.wanted), _NO_PROCESS)
    for seat in reading.view.with_role(Role.WORKER):
        if seat.number in levels:
            levels[seat.number] = min(levels[seat.number], _level(seat))
    return [Sample("", {"seat": str(number)}, level) for number, level in levels.items()]


def _level(seat: SeatView) -> int:
    there = seat.pid is not None and seat.ready is not None
    return _HEALTH[seat.health] if there else _NO_PROCESS


def _rss(reading: Reading) -> list[Sample]:
    return [
        Sample("", {"seat": str(seat.number)}, seat.rss_bytes)
        for seat in reading.view.with_role(Role.WORKER)
        if seat.rss_bytes is not None
    ]


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [Sample("", {}, value)]


def _lines(name: str, reading: Reading) -> str:
    family_type, samples = _FAMILIES[name]
    head = f"# HELP cmdbus_{name} {_escaped(_HELP[name])}\n# TYPE cmdbus_{name} {family_type}\n"
    return head + "".join(_line(f"cmdbus_{name}", sample) for sample in samples(reading))


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{key}="{_quoted(value)}"' for key, value in sample.labels.items())
    braced = f"{{{labels}}}" if labels else ""
    return f"{name}{sample.suffix}{braced} {sample.value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


#: The families in their order.
_HELP = {
    "commands_total": "Executions of commands that have ended, by outcome.",
    "batches_processed_total": "Claims that found commands.",
    "empty_receives_total": "Claims that found no commands.",
    "notification_wakeups_total": "Notifications received from the database.",
    "claim_failures_total": "Claims that ended with an error.",
    "lost_leases_total": "Executions whose lease was lost before they ended.",
    "wakeups_total": "Wake-ups of a waiting leader, by source.",
    "dequeue_latency_seconds": "Seconds from when a command could be claimed until it was.",
    "handler_duration_seconds": "Seconds that handlers took, for all outcomes.",
    "queue_depth": "Commands in the database, by state; no samples while it is away.",
    "slots": "Threads that run commands, by phase.",
    "process_restarts_total": "Processes that replaced another one, by reason.",
    "health": "Health of a worker process: 0 healthy, 1 degraded, 2 critical, 3 its database is "
    "away, 4 no process is ready.",
    "process_rss_bytes": "Resident memory of a worker process, measured once a second.",
    "undead_processes": "Processes that survived SIGKILL; others have replaced them.",
    "oldest_snapshot_seconds": "Age of the oldest transaction that keeps the database from "
    "removing dead rows; no sample while it is away.",
}
_FAMILIES: dict[str, tuple[str, Callable[[Reading], list[Sample]]]] = {
    "commands_total": ("counter", _commands),
    "batches_processed_total": ("counter", lambda now: _one(now.counters.batches_processed)),
    "empty_receives_total": ("counter", lambda now: _one(now.counters.empty_receives)),
    "notification_wakeups_total": ("counter", lambda now: _one(now.counters.notification_wakeups)),
    "claim_failures_total": ("counter", lambda now: _one(now.counters.claim_failures)),
    "lost_leases_total": ("counter", lambda now: _one(now.counters.lost_leases)),
    "wakeups_total": ("counter", lambda now: _by("source", now.counters.wakeups)),
    "dequeue_latency_seconds": ("histogram", lambda now: _histograms(now.counters.dequeue_latency)),
    "handler_duration_seconds": (
        "histogram",
        lambda now: _histograms(now.counters.handler_duration),
    ),
    "queue_depth": ("gauge", _depths),
    "slots": ("gauge", _slots),
    "process_restarts_total": ("counter", lambda now: _by("reason", now.view.restarts)),
    "health": ("gauge", _health),
    "process_rss_bytes": ("gauge", _rss),
    "undead_processes": ("gauge", lambda now: _one(now.view.undead)),
    "oldest_snapshot_seconds": ("gauge", lambda now: _one(now.oldest_snapshot)),
}
