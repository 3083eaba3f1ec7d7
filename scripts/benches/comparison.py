"""What a measurement finds: a measured side and a baseline, as a ratio of more is better.

A machine's speed changes from second to second, so figures are only compared within one run:
short rounds of all sides alternate, each round in the other order than the round before, and
the ratio is the median of the rounds' ratios.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

import psycopg

from cmdbus.database import dsn as dsns

Figure = TypeVar("Figure")

#: Seconds of the round before the first, which is not counted: sessions plan, caches fill.
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
    instances: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rounds of one run: (baseline, measured)."""

    pairs: Sequence[tuple[float, float]]
    #: What the sizes do not say.
    configuration: Mapping[str, object] = field(default_factory=dict)
    #: Less of the unit is better: the ratio is baseline by measured.
    less: bool = False

    @property
    def ratios(self) -> list[float]:
        return [one / two if self.less else two / one for one, two in self.pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A fresh database with the schema, for one run of one measurement."""

    dsn: str
    sizes: Sizes
    #: The log of its server; None if it is not on this machine.
    log: Path | None = None

    def connect(self) -> psycopg.Connection:
        """In autocommit mode, with the settings of a CommandBus's own connections."""
        parts = dsns.complete(
            dsns.parse(self.dsn),
            application_name="cmdbus:bench",
            settings={"default_transaction_isolation": "read committed"},
        )
        return dsns.connect(parts)

    def rounds(self, *sides: Callable[[], Figure]) -> list[tuple[Figure, ...]]:
        """The figures of each round, in the order of the sides."""
        found = []
        for number in range(self.sizes.rounds):
            step = -1 if number % 2 else 1
            found.append(tuple([side() for side in sides[::step]][::step]))
        return found

    def alternate(
        self, baseline: Callable[[float], Figure], measured: Callable[[float], Figure]
    ) -> list[tuple[Figure, Figure]]:
        """Rounds of the sizes' length, after a short one of each side."""
        seconds = self.sizes.seconds
        for each in (baseline, measured):
            each(min(seconds, _WARM_S))
        found = self.rounds(lambda: baseline(seconds), lambda: measured(seconds))
        return [(one, two) for one, two in found]


#: What a measurement finds, by the rows of the table that it fills.
Found = Mapping[str, Comparison]
Measure = Callable[[Place], Found]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the result. Rows of one measurement are measured together."""

    name: str
    measure: Measure
    unit: str
    #: The ratio below which the bench fails; None in a row that only informs.
    limit: float | None = None
    #: The ratio that is aimed at.
    goal: float | None = None
    #: Why the limit is below what it should be.
    why: str = ""

    @property
    def about(self) -> str:
        return " ".join((self.measure.__doc__ or "").split())


def summarize(row: Row, runs: Sequence[Comparison]) -> dict[str, object]:
    """The medians of the runs. `spread` is the lowest and the highest ratio: of the runs,
    or of the rounds of a single one."""
    pairs = [pair for run in runs for pair in run.pairs]
    ratios = [median(run.ratios) for run in runs]
    ratio = round(median(ratios), 4)
    spread = ratios if len(runs) > 1 else runs[0].ratios
    return {
        "scenario": row.name,
        "figure": shown(median(measured for _, measured in pairs)),
        "baseline": shown(median(baseline for baseline, _ in pairs)),
        "unit": row.unit,
        "ratio": ratio,
        "spread": [round(min(spread), 4), round(max(spread), 4)],
        "limit": row.limit,
        "goal": row.goal,
        "why": row.why,
        "ok": reached(ratio, row.limit),
    }


def shown(figure: float) -> float:
    """With a decimal where there are hundreds, and with four digits where there are fewer."""
    return round(figure, 1) if abs(figure) >= 100 else float(f"{figure:.4g}")


def reached(ratio: float, limit: float | None) -> bool:
    """Of the ratio as it is shown, so that what is shown explains itself."""
    return limit is None or ratio >= limit


def count_of(step: Callable[[], object], seconds: float) -> tuple[int, float]:
    """How often `step` runs, one after the other, until these seconds are over, at least once;
    and the seconds that this took."""
    began = time.monotonic()
    deadline, count, now = began + seconds, 0, began
    while not count or now < deadline:
        step()
        count += 1
        now = time.monotonic()
    return count, now - began


def rate_of(step: Callable[[], object], seconds: float) -> float:
    """How often `step` runs in a second."""
    count, took = count_of(step, seconds)
    return count / took
