"""The pure values: what they take, what they refuse, what they decide."""

import math
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from cmdbus import RetryPolicy, SendRequest, Timeouts
from cmdbus.checks import check_name, check_schema
from cmdbus.errors import (
    DuplicateCommandError,
    PermanentCommandError,
    QueueFullError,
    TransientCommandError,
)
from cmdbus.producer.depth import DepthAlarm, retry_after
from cmdbus.producer.ids import new_ids
from cmdbus.producer.requests import SendRules

RULES = SendRules.of(None, 1000)
SPARE = UUID(int=1)


def test_the_default_ladder_is_the_documented_one() -> None:
    assert Timeouts() == Timeouts(25, 30, 30, 35, 60)


@pytest.mark.parametrize(
    ("rungs", "sentence"),
    [
        ({"statement": 30}, r"statement timeout \(30 s\) must be less than lease timeout \(30 s\)"),
        ({"lease": 35}, r"lease timeout \(35 s\) must be less than thread timeout \(35 s\)"),
        ({"thread": 61}, r"thread timeout \(61 s\) must be less than watchdog timeout \(60 s\)"),
        (
            {"thread": 3e6, "watchdog": 4e6},
            r"thread timeout \(3e\+06 s\) must not be more than 24 days",
        ),
        ({"pool": 31}, r"pool timeout \(31 s\) must not be more than lease timeout \(30 s\)"),
        ({"watchdog": math.inf}, "watchdog timeout must be more than 0 seconds and finite"),
        ({"statement": 0}, "statement timeout must be more than 0 seconds"),
        ({"pool": True}, "pool timeout must be a number of seconds, not True"),
        ({"pool": "30"}, "pool timeout must be a number of seconds, not '30'"),
    ],
)
def test_a_ladder_out_of_order_is_refused_with_the_rung_named(
    rungs: dict[str, float], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Timeouts(**rungs)


def test_the_backoff_follows_the_schedule_and_its_last_entry_repeats() -> None:
    policy = RetryPolicy()
    assert [policy.delay(attempt, 0.5) for attempt in (1, 2, 3, 4, 99)] == [10, 60, 300, 300, 300]


def test_jitter_spreads_in_both_directions_by_its_share() -> None:
    policy = RetryPolicy(backoff=(100,), jitter=0.1)
    assert [policy.delay(1, rand) for rand in (0.0, 0.5, 1.0)] == [90, 100, pytest.approx(110)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 32767, not 0"),
        ({"max_attempts": 2.0}, "max_attempts must be a whole number"),
        ({"backoff": ()}, "backoff must have at least one entry"),
        ({"backoff": (10, -1)}, "backoff must be more than 0 seconds"),
        ({"backoff": 10}, "backoff must be a sequence of seconds"),
        ({"jitter": 1.1}, "jitter must be a share from 0 to 1"),
        ({"jitter": math.nan}, "jitter must be a share from 0 to 1"),
    ],
)
def test_a_bad_retry_policy_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RetryPolicy(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "Z9_.:-", "x" * 100])
def test_names_that_are_taken(name: str) -> None:
    assert check_name("domain", name) == name


@pytest.mark.parametrize(
    "name", ["", "9a", "a b", "a\n", "ä", "a'b", 'a"b', "a;b", "../a", "x" * 101, "a\0", None, 5]
)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="domain must be a letter"):
        check_name("domain", name)


@pytest.mark.parametrize("name", ["", "Cmdbus", "1a", 'a"b', "a" * 49, "pg_bus", "a-b", "a\n"])
def test_hostile_schema_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="schema must"):
        check_schema(name)


def test_a_request_gets_a_spare_id_the_normal_priority_and_its_own_correlation() -> None:
    assert RULES.check(SendRequest("payments", "Debit"), SPARE) == (
        "payments", "Debit", "null", SPARE, False, 5, None, None, SPARE, None, None, None,
        None, None, None, None, None, None,
    )  # fmt: skip


def test_what_a_request_brings_is_kept() -> None:
    own, correlation = uuid4(), uuid4()
    at = datetime.now(UTC)
    request = SendRequest(
        "payments",
        "Debit",
        [1],
        str(own),
        "high",
        None,
        at,
        correlation,
        "orders",
        7,
        "tenant",
        "report",
        "replace",
        60,
        at + timedelta(hours=1),
        {"tenant": "blue"},
    )
    assert RULES.check(request, SPARE) == (
        "payments", "Debit", "[1]", own, True, 0, None, at, correlation, "orders", 7, "tenant",
        at + timedelta(hours=1), None, '{"tenant":"blue"}', "report", "replace",
        "60.000",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("priority", "value"), [("high", 0), ("normal", 5), ("low", 10), (0, 0), (3, 3), (10, 10)]
)
def test_priorities_by_label_and_number(priority: str | int, value: int) -> None:
    assert RULES.check(SendRequest("d", "t", priority=priority), SPARE).priority == value


@pytest.mark.parametrize("priority", ["urgent", "", -1, 11, 1.5, True, None])
def test_an_unknown_priority_is_refused_with_the_known_ones(priority: str) -> None:
    sentence = "priority must be 'high', 'normal', 'low', or a whole number from 0"
    with pytest.raises(ValueError, match=sentence):
        RULES.check(SendRequest("d", "t", priority=priority), SPARE)


def test_more_labels_can_be_named() -> None:
    rules = SendRules.of({"urgent": 1}, 1000)
    assert rules.check(SendRequest("d", "t", priority="urgent"), SPARE).priority == 1
    assert rules.check(SendRequest("d", "t", priority="low"), SPARE).priority == 10
    with pytest.raises(ValueError, match="priority must be"):
        SendRules.of({"urgent": 11}, 1000)


@pytest.mark.parametrize(
    ("delay", "seconds"), [(None, None), (0, 0), (1.5, 1.5), (timedelta(hours=1), 3600)]
)
def test_delays_in_seconds_or_timedeltas(delay: float | None, seconds: float | None) -> None:
    assert RULES.check(SendRequest("d", "t", delay=delay), SPARE).delay == seconds


@pytest.mark.parametrize(
    "delay", [-1, math.nan, math.inf, 1e30, True, "30", timedelta(seconds=-1), timedelta.max]
)
def test_impossible_delays_are_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="delay must be"):
        RULES.check(SendRequest("d", "t", delay=delay), SPARE)


def test_delay_and_run_at_exclude_each_other_and_run_at_has_a_time_zone() -> None:
    now = datetime.now(UTC)
    with pytest.raises(ValueError, match="delay and run_at"):
        RULES.check(SendRequest("d", "t", delay=1, run_at=now), SPARE)
    with pytest.raises(ValueError, match="run_at must be an aware datetime"):
        RULES.check(SendRequest("d", "t", run_at=now.replace(tzinfo=None)), SPARE)


@pytest.mark.parametrize("what", ["command_id", "correlation_id"])
def test_ids_are_uuids(what: str) -> None:
    with pytest.raises(ValueError, match=f"{what} must be a UUID, not 'seven'"):
        RULES.check(SendRequest("d", "t", **{what: "seven"}), SPARE)  # type: ignore[arg-type]


def test_ids_of_the_bus_are_distinct_grow_with_time_and_are_recognised() -> None:
    ids = new_ids(2000)
    assert len(set(ids)) == 2000
    later = new_ids(1)[0]
    assert later.int >> 80 >= ids[0].int >> 80
    assert all(id_.hex[12:16] == "8cb5" and id_.version == 8 for id_ in ids)


def test_a_depth_warning_rings_once_per_crossing_with_hysteresis() -> None:
    alarm = DepthAlarm()
    depths = [50, 100, 101, 99, 100, 81, 100, 79, 99, 100]
    rings = [alarm.rings("payments", depth, 100) for depth in depths]
    assert [depth for depth, rung in zip(depths, rings, strict=True) if rung] == [100, 100]
    assert rings.index(True) == 1
    assert alarm.rings("orders", 100, 100), "each domain has its own"


@pytest.mark.parametrize(("age", "seconds"), [(0, 1), (5, 1), (100, 10), (86400, 60)])
def test_a_full_queue_is_worth_another_try_sooner_if_it_moves(age: float, seconds: float) -> None:
    assert retry_after(age) == seconds


def test_errors_carry_what_they_are_about() -> None:
    id_ = uuid4()
    assert DuplicateCommandError("payments", [id_, uuid4()]).command_id == id_
    assert "(and 1 others)" in str(DuplicateCommandError("payments", [id_, uuid4()]))
    assert QueueFullError("payments", 10, 10, 3).retry_after == 3
    assert str(PermanentCommandError("NO_ACCOUNT", "gone")) == "NO_ACCOUNT: gone"
    transient = TransientCommandError("BUSY", "later", {"a": 1}, retry_after=3)
    assert (transient.code, transient.details, transient.retry_after) == ("BUSY", {"a": 1}, 3)


def test_intervals_derive_from_the_ladder() -> None:
    timeouts = Timeouts(statement=20, pool=30, lease=30, thread=40, watchdog=65)
    assert (timeouts.renewal, timeouts.max_lock_wait, timeouts.stuck_grace) == (10, 15, 25)
    assert (timeouts.statement_for(100), timeouts.statement_for(1)) == (80, 20)
    assert timeouts.idle_for(100) == 125
