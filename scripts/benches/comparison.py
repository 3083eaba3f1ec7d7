"""What a scenario is and what it finds: a measured thing beside a baseline, as a ratio.

A machine's speed changes from second to second, so figures are only compared within
one run: short rounds of both alternate, each pair in the other order than the pair
before, and the ratio is the median of the pairs' ratios. A new scenario is a function
under `scenario`, in a module that scripts/bench imports.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import psycopg

from cmdbus import dsn as dsns

#: Runs for about that many seconds; returns units per second.
Round = Callable[[float], float]

_WARM_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything; what a result depends on."""

    seconds: float
    rounds: int
    rows: int
    processes: int
    threads: int
    commands: int = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A fresh database with the schema, for one run of one scenario."""

    dsn: str
    sizes: Sizes

    def connect(self) -> psycopg.Connection:
        """In autocommit mode, with the settings of a CommandBus's own connections."""
        parts = dsns.complete(
            dsns.parse(self.dsn),
            application_name="cmdbus:bench",
            settings={"default_transaction_isolation": "read committed"},
        )
        return dsns.connect(parts)

    def compare(self, baseline: Round, measured: Round, **configuration: object) -> "Comparison":
        """`configuration` says what the sizes do not."""
        seconds = self.sizes.seconds
        for each in (baseline, measured):
            each(min(seconds, _WARM_S))
        pairs = []
        for number in range(self.sizes.rounds):
            first, second = (measured, baseline) if number % 2 else (baseline, measured)
            one, two = first(seconds), second(seconds)
            pairs.append((two, one) if number % 2 else (one, two))
        return Comparison(pairs=tuple(pairs), configuration=configuration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One run: the rounds' (baseline, measured), in units per second."""

    pairs: tuple[tuple[float, float], ...]
    configuration: dict[str, object] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        return [measured / baseline for baseline, measured in self.pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    measure: Callable[[Place], Comparison]
    unit: str
    #: The ratio that must be reached; None in a scenario that only informs.
    limit: float | None
    #: The ratio that is wished for.
    goal: float | None

    @property
    def about(self) -> str:
        return " ".join((self.measure.__doc__ or "").split())


#: In the order of their definition.
scenarios: dict[str, Scenario] = {}


def scenario(
    name: str, *, unit: str, limit: float | None = None, goal: float | None = None
) -> Callable[[Callable[[Place], Comparison]], Callable[[Place], Comparison]]:
    def add(measure: Callable[[Place], Comparison]) -> Callable[[Place], Comparison]:
        assert name not in scenarios, f"two scenarios with the name {name}"
        scenarios[name] = Scenario(name=name, measure=measure, unit=unit, limit=limit, goal=goal)
        return measure

    return add


def summarize(scenario: Scenario, runs: Sequence[Comparison]) -> dict[str, object]:
    """The medians of the runs. `spread` is the lowest and the highest ratio: of the runs,
    or of the rounds of a single one."""
    pairs = [pair for run in runs for pair in run.pairs]
    ratios = [median(run.ratios) for run in runs]
    ratio = median(ratios)
    spread = ratios if len(runs) > 1 else runs[0].ratios
    return {
        "scenario": scenario.name,
        "figure": round(median(measured for _, measured in pairs), 1),
        "baseline": round(median(baseline for baseline, _ in pairs), 1),
        "unit": scenario.unit,
        "ratio": round(ratio, 4),
        "spread": [round(min(spread), 4), round(max(spread), 4)],
        "limit": scenario.limit,
        "goal": scenario.goal,
        "ok": reached(round(ratio, 4), scenario.limit),
    }


def reached(ratio: float, limit: float | None) -> bool:
    """Of the ratio as it is shown, so that what is shown explains itself."""
    return limit is None or ratio >= limit


def rate_of(step: Callable[[], object], seconds: float) -> float:
    """How often in a second `step` runs, one after the other; at least once."""
    began = time.monotonic()
    deadline, count, now = began + seconds, 0, began
    while not count or now < deadline:
        step()
        count += 1
        now = time.monotonic()
    return count / (now - began)
