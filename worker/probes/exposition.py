"""The page of metrics, in Prometheus' text format 0.0.4.

Every family is on every page, and every series whose labels are known from the start:
what appears only with its first event has no rate for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cmdbus.board.counters import CountersView, HistogramView, OutcomeLabel
from cmdbus.board.health import Health
from cmdbus.board.layout import BUCKETS
from cmdbus.board.records import Phase, Role
from cmdbus.board.views import BoardView, SeatView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: In which a command can wait, run, or be stuck.
STATES = ("ready", "in_progress", "scheduled", "troubleshooting")
_HEALTH = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.CRITICAL: 2, Health.DATABASE_AWAY: 3}
_NOBODY = 4

Kind = tuple[str, str]
Labels = Mapping[str, str]


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
    samples: Sequence[Sample]


def render(
    view: BoardView,
    counters: CountersView,
    depths: Mapping[tuple[str, str], int] | None,
    oldest_snapshot: float | None = None,
) -> str:
    """`depths` by domain and state, `oldest_snapshot` in seconds; None if they are not known."""
    families = _families(view, counters, depths, oldest_snapshot)
    return "".join(_lines(family) for family in families)


def _families(
    view: BoardView,
    counters: CountersView,
    depths: Mapping[tuple[str, str], int] | None,
    oldest_snapshot: float | None,
) -> Iterator[Family]:
    yield _counted(
        "commands_total",
        "Executions of commands that have ended, by how.",
        _commands(counters),
    )
    for name, text, count in _plain(counters):
        yield _counted(name, text, [Sample("", {}, count)])
    yield _counted(
        "wakeups_total",
        "Ends of a worker's rest, by who or what ended it.",
        _by("source", counters.wakeups),
    )
    yield Family(
        "cmdbus_dequeue_latency_seconds",
        "histogram",
        "Seconds from when a command could be claimed until it was.",
        _histograms(counters.dequeue_latency),
    )
    yield Family(
        "cmdbus_handler_duration_seconds",
        "histogram",
        "Seconds that handlers took, whatever came of it.",
        _histograms(counters.handler_duration),
    )
    yield Family(
        "cmdbus_queue_depth",
        "gauge",
        "Commands in the database, by state; none while it is away.",
        _depths(counters, depths),
    )
    yield Family(
        "cmdbus_slots", "gauge", "Threads that run commands, by what they do.", _slots(view)
    )
    yield _counted(
        "process_restarts_total",
        "Processes that took another one's place, by why.",
        _by("reason", view.restarts),
    )
    yield Family(
        "cmdbus_health",
        "gauge",
        "Of a worker process: 0 healthy, 1 degraded, 2 critical, 3 its database is away, "
        "4 there is none that is ready.",
        _health(view),
    )
    yield Family(
        "cmdbus_process_rss_bytes",
        "gauge",
        "Resident memory of a worker process, measured once a second.",
        [
            Sample("", {"seat": str(seat.number)}, seat.rss_bytes)
            for seat in view.with_role(Role.WORKER)
            if seat.rss_bytes is not None
        ],
    )
    yield Family(
        "cmdbus_undead_processes",
        "gauge",
        "Processes that were killed and do not die; others have taken their places.",
        [Sample("", {}, view.undead)],
    )
    yield Family(
        "cmdbus_oldest_snapshot_seconds",
        "gauge",
        "For how long a transaction keeps the database from removing dead rows; none while it is "
        "away.",
        [] if oldest_snapshot is None else [Sample("", {}, oldest_snapshot)],
    )


def _plain(counters: CountersView) -> Iterator[tuple[str, str, int]]:
    yield "batches_processed_total", "Claims that found commands.", counters.batches_processed
    yield "empty_receives_total", "Claims that found none.", counters.empty_receives
    yield (
        "notification_wakeups_total",
        "Notifications of the database that were heard.",
        counters.notification_wakeups,
    )
    yield "claim_failures_total", "Claims that ended with an error.", counters.claim_failures
    yield (
        "lost_leases_total",
        "Executions whose command was somebody else's when they ended.",
        counters.lost_leases,
    )


def _counted(name: str, text: str, samples: Sequence[Sample]) -> Family:
    return Family(f"cmdbus_{name}", "counter", text, samples)


def _commands(counters: CountersView) -> list[Sample]:
    kinds = sorted({(domain, type) for domain, type, _ in counters.commands} | _seen(counters))
    return [
        Sample(
            "",
            {"domain": domain, "type": type, "outcome": outcome},
            counters.commands.get((domain, type, outcome), 0),
        )
        for domain, type in kinds
        for outcome in (end.name.lower() for end in OutcomeLabel)
    ]


def _seen(counters: CountersView) -> set[Kind]:
    return set(counters.dequeue_latency)


def _by(label: str, counts: Mapping[str, int]) -> list[Sample]:
    return [Sample("", {label: name}, count) for name, count in counts.items()]


def _histograms(views: Mapping[Kind, HistogramView]) -> list[Sample]:
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    samples = []
    for (domain, type), view in sorted(views.items()):
        labels = {"domain": domain, "type": type}
        for bound, count in zip(bounds, view.counts, strict=True):
            samples.append(Sample("_bucket", {**labels, "le": bound}, count))
        samples.append(Sample("_sum", labels, view.sum))
        samples.append(Sample("_count", labels, view.count))
    return samples


def _depths(counters: CountersView, depths: Mapping[tuple[str, str], int] | None) -> list[Sample]:
    """Nothing waiting is a depth, too."""
    if depths is None:
        return []
    domains = {domain for domain, _ in depths} | {domain for domain, _ in _seen(counters)}
    return [
        Sample("", {"domain": domain, "state": state}, depths.get((domain, state), 0))
        for domain in sorted(domains)
        for state in STATES
    ]


def _slots(view: BoardView) -> list[Sample]:
    counts = dict.fromkeys(Phase, 0)
    for seat in view.seats:
        if seat.role in (Role.WORKER, Role.QUARANTINE, Role.STOPPING) and seat.pid is not None:
            for slot in seat.slots:
                if slot.number >= 0 and slot.phase is not None:
                    counts[slot.phase] += 1
    return _by("phase", {phase.name.lower(): count for phase, count in counts.items()})


def _health(view: BoardView) -> list[Sample]:
    levels = dict.fromkeys(range(view.wanted), _NOBODY)
    for seat in view.with_role(Role.WORKER):
        if seat.number in levels:
            levels[seat.number] = min(levels[seat.number], _level(seat))
    return [Sample("", {"seat": str(number)}, level) for number, level in levels.items()]


def _level(seat: SeatView) -> int:
    there = seat.pid is not None and seat.ready is not None
    return _HEALTH[seat.health] if there else _NOBODY


def _lines(family: Family) -> str:
    head = f"# HELP {family.name} {_escaped(family.help)}\n# TYPE {family.name} {family.type}\n"
    return head + "".join(_line(family.name, sample) for sample in family.samples)


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{key}="{_quoted(value)}"' for key, value in sample.labels.items())
    braced = f"{{{labels}}}" if labels else ""
    return f"{name}{sample.suffix}{braced} {sample.value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
