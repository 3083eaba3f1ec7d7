"""Rates and times of now, from what nodes publish, as values."""

from datetime import UTC, datetime, timedelta

import pytest

from cmdbus.producer.node_records import NodeCounters
from cmdbus.rollups import BUCKETS, NO_TIMES
from cmdbus.web.views.rates import LiveRates

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def counted(
    second: float, completed: int, *, node: int = 1, domain: str = "mail", bucket: int = 0
) -> NodeCounters:
    buckets = [0] * (len(BUCKETS) + 1)
    buckets[bucket] = completed
    return NodeCounters(
        node=node,
        published_at=NOON + timedelta(seconds=second),
        domain=domain,
        type="Send",
        ended={"completed": completed, "retry": 5},
        waited=buckets,
        waited_sum=1.0,
        ran=buckets,
        ran_sum=1.0,
    )


def test_nothing_is_known_before_a_node_has_published_twice() -> None:
    rates = LiveRates()
    for _ in range(3):
        rates.observe([counted(0, 100)], {}, 0.0)
    assert not rates.is_known
    assert rates.of("mail").ending is None


def test_rates_are_those_of_the_last_seconds_of_all_nodes() -> None:
    rates = LiveRates()
    for second in range(0, 60, 2):
        # 10/s in the first half minute, then 100/s; the other node makes 5/s.
        done = 10 * second if second <= 30 else 300 + 100 * (second - 30)
        nodes = [counted(second, done), counted(second, 5 * second, node=2)]
        rates.observe(nodes, {"mail": 50 + second}, float(second))
    found = rates.of("mail")
    assert found.ending == pytest.approx(105)
    assert found.arriving == pytest.approx(106)
    assert rates.of("other").ending == 0.0


def test_times_are_those_of_the_last_minute() -> None:
    rates = LiveRates()
    rates.observe([counted(0, 1000)], {}, 0.0)
    for second in range(100, 170, 2):
        rates.observe([counted(second, 1000 + second)], {}, float(second))
    found = rates.of("mail")
    assert found.waited.p50 == pytest.approx(0.0005)
    assert found.ran.p99 == pytest.approx(0.00099)
    assert rates.of("other").waited == NO_TIMES


def test_a_node_that_was_started_again_counts_from_then_on() -> None:
    rates = LiveRates()
    for second, done in ((0, 1000), (5, 1100), (10, 20), (15, 70)):
        rates.observe([counted(second, done)], {}, float(second))
    assert rates.of("mail").ending == pytest.approx(10)


def test_a_clock_that_is_set_back_makes_no_rate_of_less_than_nothing() -> None:
    rates = LiveRates()
    for turn in range(20):
        at = 2.0 * turn - (100 if turn >= 10 else 0)
        rates.observe([counted(at, 20 * turn)], {}, 2.0 * turn)
        assert rates.of("mail").ending in (None, pytest.approx(10))
    assert rates.of("mail").ending == pytest.approx(10)


def test_nodes_that_have_gone_are_forgotten() -> None:
    rates = LiveRates()
    for second in (0, 5):
        rates.observe([counted(second, second)], {}, float(second))
    for second in (400, 405):
        rates.observe([counted(second, second, node=2)], {}, float(second))
    assert rates.of("mail").ending == pytest.approx(1)


def test_buckets_of_another_version_do_not_count() -> None:
    rates = LiveRates()
    for second in (0, 5):
        published = counted(second, second)
        object.__setattr__(published, "waited", [second])
        rates.observe([published], {}, float(second))
    assert rates.of("mail").waited == NO_TIMES
    assert rates.of("mail").ran.p50 is not None
