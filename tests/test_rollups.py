"""Figures of rollups, as values."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cmdbus.board.counters import CountersView, HistogramView, OutcomeLabel
from cmdbus.producer.history import history_of, minutes_of, points_of
from cmdbus.rollups import BUCKETS, MAX_DOMAINS, OUTCOMES, WIDTH, Times, figures_of, quantile
from cmdbus.worker.steward.minute_figures import figures_by_domain

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def buckets(**counts: int) -> list[int]:
    """By index: b3=1 is one in the fourth bucket."""
    found = [0] * (len(BUCKETS) + 1)
    for name, count in counts.items():
        found[int(name[1:])] = count
    return found


def figures(completed: int = 0, trouble: int = 0, retry: int = 0) -> list[int]:
    ends = [completed, 0, retry, trouble, 0, 0, 0]
    return [*ends, *buckets(b0=completed), *buckets(b1=completed)]


def test_outcomes_are_in_the_order_of_the_board() -> None:
    assert [label.name.lower() for label in OutcomeLabel] == [*OUTCOMES]


@pytest.mark.parametrize(
    ("counts", "q", "seconds"),
    [
        (buckets(), 0.5, None),
        (buckets(b0=1), 0.5, 0.0005),
        (buckets(b0=50, b1=50), 0.99, 0.00247),
        (buckets(b0=99, b14=1), 0.5, pytest.approx(0.000505, rel=0.01)),
        (buckets(b15=3), 0.5, 60.0),
        (buckets(b3=10, b4=10), 0.5, 0.01),
    ],
)
def test_a_quantile_lies_within_its_bucket(counts: list[int], q: float, seconds: object) -> None:
    assert quantile(counts, q) == (pytest.approx(seconds) if type(seconds) is float else seconds)


def test_a_row_without_figures_has_none() -> None:
    assert figures_of([]).over == 0
    assert figures_of([]).waited == Times()


def test_figures_name_their_outcomes() -> None:
    found = figures_of(figures(5, trouble=2, retry=1))
    assert (found.completed, found.trouble, found.retry, found.over) == (5, 2, 1, 7)
    assert found.waited.p50 == pytest.approx(0.0005)
    assert found.ran.p50 == pytest.approx(0.00175)


def view(domain: str, type_: str, completed: int) -> CountersView:
    counts = (0, completed, *[completed] * 14)
    histogram = {(domain, type_): HistogramView(counts, 1.0)}
    return CountersView(
        commands={(domain, type_, "completed"): completed},
        counts={},
        wakeups={},
        dequeue_latency=histogram,
        handler_duration=histogram,
    )


def joined(*views: CountersView) -> CountersView:
    parts: dict[str, Any] = {"commands": {}, "dequeue_latency": {}, "handler_duration": {}}
    for part, found in parts.items():
        for each in views:
            found |= getattr(each, part)
    return CountersView(counts={}, wakeups={}, **parts)


def test_types_add_up_to_their_domain_and_domains_to_all() -> None:
    counters = joined(view("mail", "a", 2), view("mail", "b", 3), view("shop", "c", 4))
    domains, numbers = figures_by_domain(counters)
    assert domains == ["", "mail", "shop"]
    rows = [numbers[at : at + WIDTH] for at in range(0, len(numbers), WIDTH)]
    assert [row[0] for row in rows] == [9, 5, 4]
    assert [row[len(OUTCOMES) + 1] for row in rows] == [9, 5, 4]
    assert [sum(row[len(OUTCOMES) :]) for row in rows] == [18, 10, 8]


def test_more_domains_than_fit_count_among_all() -> None:
    counters = joined(*[view(f"d{number:03}", "a", 1) for number in range(MAX_DOMAINS + 5)])
    domains, numbers = figures_by_domain(counters)
    assert len(domains) == MAX_DOMAINS + 1
    assert numbers[0] == MAX_DOMAINS + 5


def row(minute: int, completed: int, unfinished: int | None, waiting: int = 0) -> list[Any]:
    sample = [None] * 7 if unfinished is None else [waiting, 1.5, 0, 0, 0, 0, unfinished]
    return [NOON + minute * MINUTE, figures(completed), *sample]


def test_what_arrived_is_what_ended_and_what_more_is_unfinished() -> None:
    rows = [row(0, 5, 10), row(1, 5, 12), row(2, 20, 0), row(3, 1, None), row(4, 1, 5)]
    points = points_of(rows, MINUTE)
    assert [point.arrived for point in points] == [None, 7, 8, None, None]
    assert [point.waiting for point in points] == [0, 0, 0, None, 0]


def test_nothing_is_known_of_arrivals_after_a_gap_or_of_removed_commands() -> None:
    assert [p.arrived for p in points_of([row(0, 0, 1), row(2, 3, 1)], MINUTE)] == [None, None]
    assert [p.arrived for p in points_of([row(0, 0, 9), row(1, 3, 1)], MINUTE)] == [None, 0]


def test_a_history_has_the_periods_of_its_span_that_have_ended() -> None:
    present = NOON + timedelta(minutes=61, seconds=20)
    rows = [[at, present, *rest] for at, *rest in (row(n, 1, 0) for n in range(62))]
    history = history_of("hour", rows)
    assert (history.begin, history.step) == (NOON + MINUTE, MINUTE)
    assert [point.at for point in history.points] == [NOON + n * MINUTE for n in range(1, 61)]
    assert all(point.arrived == 1 for point in history.points)


def test_a_history_without_rows_has_no_points() -> None:
    assert history_of("day", [], NOON).points == []


def test_a_domain_without_a_row_in_a_minute_had_nothing() -> None:
    all_rows = [["", *row(n, 2, 3)] for n in range(3)]
    found = minutes_of([*all_rows, ["mail", *row(1, 2, 3)]])
    mail = found["mail"]
    assert [point.ended.completed for point in mail] == [0, 2, 0]
    assert [point.waiting for point in mail] == [0, 0, 0]
    assert [point.arrived for point in mail] == [None, 5, 0]
