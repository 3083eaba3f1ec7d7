"""The page of metrics, in Prometheus' text format 0.0.4. Pure.

Every family is on every page, and every series whose labels are known from the start:
a series that appears with its first event has no rate for that event.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from cmdbus.board.counters import CountersView, HistogramView, OutcomeLabel
from cmdbus.board.health import Health
from cmdbus.board.layout import BUCKETS
from cmdbus.board.records import Phase, Role
from cmdbus.board.views import BoardView, SeatView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The states of a command in the database that are counted.
STATES = ("ready", "in_progress", "scheduled", "troubleshooting")
_HEALTH = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.CRITICAL: 2, Health.DATABASE_AWAY: 3}
_NO_PROCESS = 4

CommandType = tuple[str, str]
Labels = Mapping[str, str]
#: Commands by domain and state.
Depths = Mapping[tuple[str, str], int]


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


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    type: str
    help: str
    samples: Callable[[Reading], list[Sample]]


def render(
    view: BoardView,
    counters: CountersView,
    depths: Depths | None,
    oldest_snapshot: float | None = None,
) -> str:
    reading = Reading(view, counters, depths, oldest_snapshot)
    return "".join(_lines(family, reading) for family in _FAMILIES)


def _commands(reading: Reading) -> list[Sample]:
    counters = reading.counters
    counted = {(domain, type) for domain, type, _ in counters.commands}
    return [
        Sample(
            "",
            {"domain": domain, "type": type, "outcome": outcome},
            counters.commands.get((domain, type, outcome), 0),
        )
        for domain, type in sorted(counted | _claimed(counters))
        for outcome in (label.name.lower() for label in OutcomeLabel)
    ]


def _claimed(counters: CountersView) -> set[CommandType]:
    return set(counters.dequeue_latency)


def _by(label: str, counts: Mapping[str, int]) -> list[Sample]:
    return [Sample("", {label: name}, count) for name, count in counts.items()]


def _histograms(views: Mapping[CommandType, HistogramView]) -> list[Sample]:
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
    domains = {domain for domain, _ in depths} | {
        domain for domain, _ in _claimed(reading.counters)
    }
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


def _counter(name: str, text: str) -> Family:
    value = attrgetter(name)
    return Family(
        f"cmdbus_{name}_total", "counter", text, lambda reading: _one(value(reading.counters))
    )


def _histogram(name: str, text: str) -> Family:
    views = attrgetter(name)
    return Family(
        f"cmdbus_{name}_seconds",
        "histogram",
        text,
        lambda reading: _histograms(views(reading.counters)),
    )


def _lines(family: Family, reading: Reading) -> str:
    head = f"# HELP {family.name} {_escaped(family.help)}\n# TYPE {family.name} {family.type}\n"
    return head + "".join(_line(family.name, sample) for sample in family.samples(reading))


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{key}="{_quoted(value)}"' for key, value in sample.labels.items())
    braced = f"{{{labels}}}" if labels else ""
    return f"{name}{sample.suffix}{braced} {sample.value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


#: Help of the counters without labels, by their field.
_COUNTERS = {
    "batches_processed": "Claims that found commands.",
    "empty_receives": "Claims that found no commands.",
    "notification_wakeups": "Notifications received from the database.",
    "claim_failures": "Claims that ended with an error.",
    "lost_leases": "Executions whose lease was lost before they ended.",
}
_HISTOGRAMS = {
    "dequeue_latency": "Seconds from when a command could be claimed until it was.",
    "handler_duration": "Seconds that handlers took, for all outcomes.",
}
_FAMILIES = (
    Family(
        "cmdbus_commands_total",
        "counter",
        "Executions of commands that have ended, by outcome.",
        _commands,
    ),
    *(_counter(name, text) for name, text in _COUNTERS.items()),
    Family(
        "cmdbus_wakeups_total",
        "counter",
        "Wake-ups of a waiting leader, by source.",
        lambda reading: _by("source", reading.counters.wakeups),
    ),
    *(_histogram(name, text) for name, text in _HISTOGRAMS.items()),
    Family(
        "cmdbus_queue_depth",
        "gauge",
        "Commands in the database, by state; no samples while it is away.",
        _depths,
    ),
    Family("cmdbus_slots", "gauge", "Threads that run commands, by phase.", _slots),
    Family(
        "cmdbus_process_restarts_total",
        "counter",
        "Processes that replaced another one, by reason.",
        lambda reading: _by("reason", reading.view.restarts),
    ),
    Family(
        "cmdbus_health",
        "gauge",
        "Health of a worker process: 0 healthy, 1 degraded, 2 critical, 3 its database is away, "
        "4 no process is ready.",
        _health,
    ),
    Family(
        "cmdbus_process_rss_bytes",
        "gauge",
        "Resident memory of a worker process, measured once a second.",
        _rss,
    ),
    Family(
        "cmdbus_undead_processes",
        "gauge",
        "Processes that survived SIGKILL; others have replaced them.",
        lambda reading: _one(reading.view.undead),
    ),
    Family(
        "cmdbus_oldest_snapshot_seconds",
        "gauge",
        "Age of the oldest transaction that keeps the database from removing dead rows; no sample "
        "while it is away.",
        lambda reading: _one(reading.oldest_snapshot),
    ),
)
