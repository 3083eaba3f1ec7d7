"""The board's counters as the figures of a rollup: by domain, for all of its types. Pure."""

from operator import add

from cmdbus.board.counters import CountersView
from cmdbus.rollups import BUCKETS, MAX_DOMAINS, OUTCOMES, WIDTH

_WAITED = len(OUTCOMES)
_RAN = _WAITED + len(BUCKETS) + 1


def figures_by_domain(counters: CountersView) -> tuple[list[str], list[int]]:
    """The domains, the first of which is empty for all of them, and their figures, one after the
    other. Of more than MAX_DOMAINS those count alone that come first by name: which they are does
    not change between two minutes."""
    rows: dict[str, list[int]] = {}
    for (domain, _, outcome), count in counters.commands.items():
        _row(rows, domain)[OUTCOMES.index(outcome)] += count
    for at, histograms in (_WAITED, counters.dequeue_latency), (_RAN, counters.handler_duration):
        for (domain, _), view in histograms.items():
            row = _row(rows, domain)
            for offset, number in enumerate(view.by_bucket, at):
                row[offset] += number
    total = [0] * WIDTH
    for row in rows.values():
        total = list(map(add, total, row))
    named = sorted(rows)[:MAX_DOMAINS]
    return ["", *named], [*total, *(number for name in named for number in rows[name])]


def _row(rows: dict[str, list[int]], domain: str) -> list[int]:
    return rows.setdefault(domain, [0] * WIDTH)
