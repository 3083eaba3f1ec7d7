"""The figures of a rollup: what ended in a period, and how long that had waited and ran. Pure.

`figures` are the numbers of executions by outcome, then two histograms of seconds, waiting before
running: the number in each bucket, not cumulative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

#: Upper bounds of the buckets of a histogram, in seconds; the last bucket has none.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: As the board counts them, in its order.
OUTCOMES = ("completed", "failed", "retry", "trouble", "interrupted", "lost", "canceled")
#: Those after which a command waits no more.
OVER = ("completed", "failed", "trouble", "canceled")
_HISTOGRAM = len(BUCKETS) + 1
WIDTH = len(OUTCOMES) + 2 * _HISTOGRAM
#: Domains of one rollup, besides the row of all.
MAX_DOMAINS = 200


@dataclass(frozen=True, slots=True)
class Times:
    """How long commands waited, or ran, in seconds; all None without any."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


#: Of no command.
NO_TIMES = Times()


@dataclass(frozen=True, slots=True)
class Figures:
    """Executions that ended, by outcome."""

    completed: int = 0
    failed: int = 0
    retry: int = 0
    trouble: int = 0
    interrupted: int = 0
    lost: int = 0
    canceled: int = 0
    waited: Times = NO_TIMES
    ran: Times = NO_TIMES

    @property
    def over(self) -> int:
        return sum(getattr(self, outcome) for outcome in OVER)


def figures_of(numbers: Sequence[int]) -> Figures:
    """Of the row of a rollup; none if there was only a sample."""
    if not numbers:
        return Figures()
    ends = len(OUTCOMES)
    waited, ran = numbers[ends : ends + _HISTOGRAM], numbers[ends + _HISTOGRAM :]
    counts = dict(zip(OUTCOMES, numbers, strict=False))
    return Figures(**counts, waited=times_of(waited), ran=times_of(ran))


def times_of(buckets: Sequence[int]) -> Times:
    return Times(*(quantile(buckets, q) for q in (0.5, 0.95, 0.99)))


def quantile(buckets: Sequence[int], q: float) -> float | None:
    """By interpolation within its bucket; the last bound if it lies beyond that."""
    total = sum(buckets)
    if not total:
        return None
    rank = q * total
    index = next(i for i, count in enumerate(accumulate(buckets)) if count >= rank and buckets[i])
    if index == len(BUCKETS):
        return float(BUCKETS[-1])
    low = BUCKETS[index - 1] if index else 0.0
    inside = rank - sum(buckets[:index])
    return low + (BUCKETS[index] - low) * inside / buckets[index]
