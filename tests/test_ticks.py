"""The ticks of schedules, and what becomes of those that nothing has sent in time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from cmdbus.ticks import MAX_ALL, MAX_READ, TickPlan, command_id, due_time, plan_ticks, ticks_of

ZURICH, NEW_YORK, LORD_HOWE = "Europe/Zurich", "America/New_York", "Australia/Lord_Howe"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MINUTES = ticks_of("* * * * *", None, "UTC")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "zone", "after", "ticks"),
    [
        # A time that the clocks skip is at the first moment after that.
        ("30 2 * * *", ZURICH, "2026-03-28 12:00", ["03-29 01:00", "03-30 00:30"]),
        ("15 2 * * *", NEW_YORK, "2026-03-07 12:00", ["03-08 07:00", "03-09 06:15"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-03 00:00", ["10-03 15:30", "10-04 15:15"]),
        # Two of them are one tick.
        ("0,30 2 * * *", ZURICH, "2026-03-29 00:59", ["03-29 01:00", "03-30 00:00"]),
        # One that occurs twice is at its first occurrence, also seen from between the two.
        ("30 2 * * *", ZURICH, "2026-10-24 12:00", ["10-25 00:30", "10-26 01:30"]),
        ("30 2 * * *", ZURICH, "2026-10-25 00:45", ["10-26 01:30", "10-27 01:30"]),
        ("30 2 * * *", ZURICH, "2026-10-25 01:10", ["10-26 01:30", "10-27 01:30"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31 12:00", ["11-01 05:30", "11-02 06:30"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04 12:00", ["04-04 14:45", "04-05 15:15"]),
        # Lines with * have a tick at each moment that matches.
        ("*/30 2 * * *", ZURICH, "2026-03-28 12:00", ["03-30 00:00", "03-30 00:30"]),
        (
            *("*/30 2 * * *", ZURICH, "2026-10-24 12:00"),
            ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-26 01:00"],
        ),
        ("0 * * * *", ZURICH, "2026-03-29 00:30", ["03-29 01:00", "03-29 02:00"]),
        ("0 * * * *", LORD_HOWE, "2026-10-03 14:30", ["10-03 16:00", "10-03 17:00"]),
        # Midnight, a leap day, seconds, and a zone without changes.
        ("0 0 1 * *", ZURICH, "2026-03-15 00:00", ["03-31 22:00", "04-30 22:00"]),
        ("0 12 29 2 *", "UTC", "2026-03-01 00:00", ["02-29 12:00"]),
        ("15,45 * * * * *", "UTC", "2026-03-01 00:00", ["03-01 00:00:15", "03-01 00:00:45"]),
        ("0 3 * * *", "Asia/Kathmandu", "2026-03-01 00:00", ["03-01 21:15"]),
    ],
)
def test_a_cron_line_follows_the_clock_of_its_zone(
    line: str, zone: str, after: str, ticks: list[str]
) -> None:
    found = [*islice(ticks_of(line, None, zone).after(utc(after)), len(ticks))]
    assert [f"{tick:%m-%d %H:%M:%S}".removesuffix(":00") for tick in found] == ticks
    assert {tick.tzinfo for tick in found} == {UTC}


@pytest.mark.parametrize("zone", [ZURICH, NEW_YORK, LORD_HOWE, "Africa/Casablanca", "UTC"])
def test_a_daily_time_has_one_tick_on_each_day_of_a_year(zone: str) -> None:
    for line in ("30 2 * * *", "0 0 * * *", "45 1 * * *", "59 23 * * *"):
        begin = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)) - timedelta(seconds=1)
        days = []
        tick = begin.astimezone(UTC)
        for _ in range(365):  # each from the one before, as stewards do
            tick = next(ticks_of(line, None, zone).after(tick))
            days.append(tick.astimezone(ZoneInfo(zone)).date())
        assert len(set(days)) == 365 and days[-1].isoformat() == "2026-12-31", (zone, line)


def test_an_interval_counts_from_1970() -> None:
    quarters = ticks_of(None, 900, "UTC")
    assert [*islice(quarters.after(NOON), 2)] == [NOON + 15 * MINUTE, NOON + 30 * MINUTE]
    assert next(quarters.after(NOON - timedelta(microseconds=1))) == NOON
    week = ticks_of(None, 7 * 86400, "UTC")
    assert next(week.after(NOON)).isoformat() == "2026-05-07T00:00:00+00:00"


@pytest.mark.parametrize("ticks", [MINUTES, ticks_of(None, 60, "UTC")])
@pytest.mark.parametrize(
    ("missed", "late", "count", "sent", "left_out"),
    [
        # (not yet due) the first is a minute later
        ("one", -1, 0, 0, 0),
        ("one", 0, 1, 1, 0),
        ("one", 59, 1, 1, 0),
        ("one", 60, 2, 2, 0),
        ("one", 61, 2, 1, 1),
        ("one", 3600, 61, 1, 60),
        ("all", 3600, 61, 61, 0),
        ("all", 60 * 5000, 5001, MAX_ALL, 4001),
        ("none", 60, 2, 2, 0),
        ("none", 3600, 61, 2, 59),
        ("none", 3659, 61, 1, 60),
    ],
)
def test_missed_decides_what_becomes_of_ticks_that_are_late(
    ticks: object, missed: str, late: int, count: int, sent: int, left_out: int
) -> None:
    now = NOON + timedelta(seconds=late)
    every = [NOON + n * MINUTE for n in range(count + 1)]
    found = plan_ticks(ticks, NOON, now, missed)  # type: ignore[arg-type]
    assert found == TickPlan(every[:count][count - sent : count], left_out, every[count])


def test_very_many_ticks_are_left_out_in_several_steps() -> None:
    """A year of minutes would take seconds at once."""
    now, first, left_out, steps = NOON + 50_000 * MINUTE, NOON, 0, 0
    while True:
        found = plan_ticks(MINUTES, first, now, "all")
        left_out, steps = left_out + found.left_out, steps + 1
        if found.sent:
            break
        assert found.left_out <= MAX_READ and found.next_tick is not None
        first = found.next_tick
    assert (left_out + MAX_ALL, steps) == (50_001, 3)
    assert found.sent[-1] == now and found.next_tick == now + MINUTE
    seconds = plan_ticks(ticks_of(None, 1, "UTC"), NOON, now, "one")
    assert seconds == TickPlan([now], 3_000_000, now + timedelta(seconds=1))


def test_no_more_ticks_are_read_than_are_due() -> None:
    """A steward that reads some thousands at each tick would be late."""
    read = []

    class Counted:
        def after(self, moment: datetime) -> Iterator[datetime]:
            for tick in MINUTES.after(moment):
                read.append(tick)
                yield tick

        def skip(self, first: datetime, now: datetime) -> tuple[datetime, int]:
            return first, 0

    plan_ticks(Counted(), NOON, NOON + 2 * MINUTE, "all")
    assert len(read) == 3


def test_a_tick_has_one_id_and_one_delay_on_all_nodes() -> None:
    id_ = command_id("cmdbus", "nightly", NOON)
    assert id_ == command_id("cmdbus", "nightly", NOON.astimezone(ZoneInfo(ZURICH)))
    assert id_ == UUID("225f2402-d634-530a-9029-12bbffe18ace")
    others = {
        command_id("cmdbus", "nightly", NOON + MINUTE),
        command_id("cmdbus", "daily", NOON),
        command_id("shop", "nightly", NOON),
    }
    assert len(others - {id_}) == 3
    assert due_time(NOON, id_, 0.0) == NOON
    delays = {due_time(NOON, command_id("a", str(n), NOON), 30.0) - NOON for n in range(200)}
    assert len(delays) == 200
    assert timedelta(0) <= min(delays) < timedelta(seconds=3)
    assert timedelta(seconds=27) < max(delays) <= timedelta(seconds=30)
