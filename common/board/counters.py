"""What a worker counts, in cells of the thread that counts: a kill loses at most the counts of
the settlement that the thread has just made.

The next thread of a slot continues its counters: nothing resets them. The reader sums over seats
and slots, by name: each seat numbers its command types for itself.
"""

import collections
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import pairwise
from operator import add

from cmdbus.board.layout import (
    BUCKETS,
    COUNTERS,
    DEQUEUE_LATENCY,
    HANDLER_DURATION,
    ROW_CELLS,
    ROWS,
)

_BUCKETS = len(BUCKETS) + 1
_bucket_of = partial(bisect_left, BUCKETS)
_NS = 1_000_000_000
#: Nanoseconds at which a sum stops: the most that a cell can hold, or 292 years.
_MAX_SUM = 2**63 - 1

#: The domain and type under which command types beyond the size of their seat's table count.
OTHER = ("other", "other")


class Counter(IntEnum):
    """Those without a command type. A wake-up's source is what ended a leader's wait."""

    BATCHES_PROCESSED = 0
    EMPTY_RECEIVES = 1
    NOTIFICATION_WAKEUPS = 2
    CLAIM_FAILURES = 3
    LOST_LEASES = 4
    WAKEUPS_TIMER = 5
    WAKEUPS_POLL = 6
    WAKEUPS_PIPE = 7
    BREAKER_DENIED = 8


_WAKEUPS = "wakeups_"


class OutcomeLabel(IntEnum):
    """How executions end, as `commands_total` names it (in lower case). LOST: the lease or the
    process was lost before the settlement."""

    COMPLETED = 0
    FAILED = 1
    RETRY = 2
    TROUBLE = 3
    INTERRUPTED = 4
    LOST = 5
    #: An operator canceled the command while it ran.
    CANCELED = 6


assert max(Counter) < ROWS - COUNTERS and max(OutcomeLabel) < DEQUEUE_LATENCY


class Histogram:
    """Seconds, by command type: a count for each bucket (not cumulative), and the sum."""

    def __init__(self, cells: memoryview, at: int) -> None:
        self._cells = cells
        self._at = at

    def observe(self, index: int, observed: Sequence[float]) -> None:
        cells = self._cells
        at = self._at + index * ROW_CELLS
        for bucket, count in collections.Counter(map(_bucket_of, observed)).items():
            cells[at + bucket] += count
        # A row's times are those of its sender's clock, and may be negative.
        total = int(sum([seconds for seconds in observed if seconds > 0]) * _NS)
        cells[at + _BUCKETS] = min(cells[at + _BUCKETS] + total, _MAX_SUM)


class Counters:
    """The counters of one slot, to which only its thread adds. `index` is that of a CommandType."""

    def __init__(self, cells: memoryview, slot_at: int) -> None:
        self._cells = cells
        self._at = slot_at + COUNTERS
        self._rows = slot_at + ROWS
        self.dequeue_latency = Histogram(cells, self._rows + DEQUEUE_LATENCY)
        self.handler_duration = Histogram(cells, self._rows + HANDLER_DURATION)

    def add(self, counter: Counter, n: int = 1) -> None:
        self._cells[self._at + counter] += n

    def ended(self, index: int, end: OutcomeLabel, n: int = 1) -> None:
        self._cells[self._rows + index * ROW_CELLS + end] += n


@dataclass(frozen=True, slots=True)
class HistogramView:
    """In the form that Prometheus needs."""

    #: Cumulative, one for each of BUCKETS, and the last for all.
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return self.counts[-1]

    @property
    def by_bucket(self) -> list[int]:
        """Not cumulative."""
        return [after - before for before, after in pairwise((0, *self.counts))]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersView:
    """Sums over all seats, slots and generations."""

    #: Keys: domain, type and outcome.
    commands: dict[tuple[str, str, str], int]
    #: The counters without a command type, by name; those of wake-ups by their source.
    counts: dict[str, int]
    wakeups: dict[str, int]
    #: Keys: domain and type.
    dequeue_latency: dict[tuple[str, str], HistogramView]
    handler_duration: dict[tuple[str, str], HistogramView]


def sum_of(
    cells: memoryview, slots: Iterable[tuple[int, list[tuple[int, tuple[str, str]]]]]
) -> CountersView:
    """`slots`: the beginning of each, and the row and name of each of its command types."""
    counters = [0] * len(Counter)
    rows: dict[tuple[str, str], list[int]] = {}
    for slot_at, command_types in slots:
        own = cells[slot_at + COUNTERS : slot_at + COUNTERS + len(Counter)].tolist()
        counters = list(map(add, counters, own))
        for index, name in command_types:
            at = slot_at + ROWS + index * ROW_CELLS
            row = cells[at : at + ROW_CELLS].tolist()
            if any(row):
                rows[name] = list(map(add, rows[name], row)) if name in rows else row
    totals = {counter.name.lower(): counters[counter] for counter in Counter}
    return CountersView(
        commands={
            (*name, end.name.lower()): row[end]
            for name, row in rows.items()
            for end in OutcomeLabel
            if row[end]
        },
        counts={name: n for name, n in totals.items() if not name.startswith(_WAKEUPS)},
        wakeups={
            name.removeprefix(_WAKEUPS): n
            for name, n in totals.items()
            if name.startswith(_WAKEUPS)
        },
        dequeue_latency={name: _histogram(r, DEQUEUE_LATENCY) for name, r in rows.items()},
        handler_duration={name: _histogram(r, HANDLER_DURATION) for name, r in rows.items()},
    )


@dataclass(frozen=True, slots=True)
class LoadView:
    """Sums over all slots of a seat, which only rise."""

    #: Executions that have ended, and the seconds that their handlers took.
    ended: int
    seconds: float
    #: Claims, and those of them that found no command.
    claims: int
    empty: int


def load_of(cells: memoryview, slots: Iterable[int], count: int) -> LoadView:
    """`slots`: the beginning of each; `count`: of its rows. Read column by column, as that is
    quicker."""
    ended = nanoseconds = claims = empty = 0
    for slot_at in slots:
        rows, counters = slot_at + ROWS, slot_at + COUNTERS
        end = rows + count * ROW_CELLS
        for outcome in OutcomeLabel:
            ended += sum(cells[rows + outcome : end : ROW_CELLS])
        nanoseconds += sum(cells[rows + HANDLER_DURATION + _BUCKETS : end : ROW_CELLS])
        empty += cells[counters + Counter.EMPTY_RECEIVES]
        claims += cells[counters + Counter.BATCHES_PROCESSED]
    return LoadView(ended, nanoseconds / _NS, claims + empty, empty)


def _histogram(row: list[int], at: int) -> HistogramView:
    counts, total = [], 0
    for count in row[at : at + _BUCKETS]:
        total += count
        counts.append(total)
    return HistogramView(tuple(counts), row[at + _BUCKETS] / _NS)
