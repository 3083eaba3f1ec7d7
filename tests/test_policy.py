"""What the supervisor decides, as values: each rule, at both sides of its boundary."""

from dataclasses import replace
from typing import Any

import pytest
from policies import (
    AWAY,
    CRITICAL,
    DEGRADED,
    LAYER_5,
    MOMENT,
    NOW,
    SETTINGS,
    STEWARD,
    decided,
    fleet,
    left,
    started,
    worker,
)

from cmdbus.board.health import HealthReport
from cmdbus.board.records import Restart, Role, Verdict
from cmdbus.supervisor.fleet_view import UNDEAD_SECONDS, FleetView, ProcessView
from cmdbus.supervisor.policy import (
    RSS_SAMPLES,
    Action,
    Dump,
    Kill,
    Start,
    decide,
    max_procs,
    seats_for,
)
from cmdbus.supervisor.stacks import DUMP_SECONDS


def test_a_fleet_of_healthy_processes_is_left_alone() -> None:
    assert decided(fleet(worker(0), worker(1))) == []


def test_a_fleet_begins_with_its_steward_and_all_its_workers() -> None:
    empty = FleetView(processes=[], wanted=3)
    steward = Start(role=Role.STEWARD, number=0)
    assert decided(empty) == [steward, started(0), started(1), started(2)]


def test_the_number_of_workers_can_be_doubled_on_the_first_board() -> None:
    assert all(max_procs(seats_for(procs)) >= 2 * procs for procs in range(1, 100))


def test_a_stopping_process_is_killed_at_its_deadline_and_not_before() -> None:
    """Also after a round that came late: the deadline was announced."""
    for judging in (True, False):
        leaving = worker(0, stop_by=NOW, due=NOW - 50)
        there = fleet(leaving, worker(0, index=1, generation=2), detects_hangs=judging)
        assert decided(there, now=NOW - MOMENT) == []
        assert decided(there) == [Kill(process=leaving, verdict=Verdict.LATE, measured=judging)]


@pytest.mark.parametrize("verdict", [Verdict.STUCK, Verdict.CRITICAL])
def test_a_process_that_stops_for_a_verdict_is_killed_for_that_verdict(
    verdict: Verdict,
) -> None:
    """A verdict is no order: its commands do not go back as if nothing had been."""
    leaving = worker(0, stop_by=NOW, stop_verdict=verdict)
    there = fleet(leaving, worker(0, index=1, generation=2))
    assert decided(there) == [Kill(process=leaving, verdict=verdict)]
    stopping = replace(there, processes=[leaving], stop_by=NOW)
    assert decided(stopping)[0] == Kill(process=leaving, verdict=verdict)


@pytest.mark.parametrize("role", [Role.WORKER, Role.STEWARD, Role.QUARANTINE])
@pytest.mark.parametrize("levels", [HealthReport(), AWAY], ids=["at hand", "away"])
def test_a_main_thread_past_its_due_has_its_stacks_dumped(role: Role, levels: HealthReport) -> None:
    """Also while the database is away: the main thread has nothing to do with it."""
    late = ProcessView(index=5, role=role, number=0, generation=1, due=NOW, levels=levels)
    others = [p for p in (STEWARD, worker(0)) if p.role is not role]
    there = FleetView(processes=[late, *others], wanted=1, suspects=role is Role.QUARANTINE)
    assert decided(there, now=NOW - MOMENT) == []
    assert decided(there) == [Dump(process=late)]
    assert decided(replace(there, detects_hangs=False)) == []


def test_a_due_time_beyond_any_promise_counts_as_past() -> None:
    """A clock that an application has replaced is 116 days ahead: nothing would be found late."""
    for seconds, expected in ((120.0, False), (300.0, True), (1e7, True)):
        ahead = worker(0, due=NOW + seconds)
        assert decided(fleet(ahead)) == ([Dump(process=ahead)] if expected else [])


def test_after_the_dump_it_is_killed() -> None:
    dumped = worker(0, due=NOW - 1, dumped_at=NOW - DUMP_SECONDS)
    assert decided(fleet(dumped), now=NOW - MOMENT) == []
    assert decided(fleet(dumped)) == [Kill(process=dumped, verdict=Verdict.HUNG)]


def test_between_dump_and_kill_a_late_round_lets_it_come_back_first() -> None:
    """The machine was suspended just then."""
    there = fleet(worker(0, due=NOW - 90, dumped_at=NOW - 90))
    assert decided(replace(there, detects_hangs=False)) == []
    # But at the deadline of a stop there is no time left for that.
    stopping = replace(there, detects_hangs=False, stop_by=NOW)
    assert [type(action) for action in decided(stopping)] == [Kill]
    assert decided(stopping, now=NOW - MOMENT) == []


def test_a_process_that_has_not_promised_anything_is_not_late() -> None:
    assert decided(fleet(worker(0, due=None))) == []


def test_no_process_is_killed_twice() -> None:
    killed = worker(0, due=NOW - 9, stop_by=NOW - 9, dumped_at=NOW - 9, killed_at=NOW - 1)
    assert not [a for a in decided(fleet(killed)) if not isinstance(a, Start)]


@pytest.mark.parametrize("role", [Role.WORKER, Role.QUARANTINE])
def test_a_slot_as_late_as_layer_5_is_above_layer_4_makes_its_process_leave(role: Role) -> None:
    """The slot's deadline is its due time plus watchdog - thread."""
    stuck = ProcessView(index=5, role=role, number=0, generation=1, latest_due=NOW - LAYER_5)
    others = [STEWARD] if role is Role.WORKER else [STEWARD, worker(0)]
    there = FleetView(processes=[stuck, *others], wanted=1)
    assert decided(there, now=NOW - MOMENT) == []
    assert decided(there) == [left(stuck, Restart.STUCK, verdict=Verdict.STUCK)]


def test_a_slot_of_the_steward_is_its_own_main_threads_to_judge() -> None:
    steward = replace(STEWARD, latest_due=NOW - 1000, levels=CRITICAL)
    assert decided(FleetView(processes=[steward, worker(0)], wanted=1)) == []


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        (HealthReport(stuck_threads=3), None),
        (HealthReport(stuck_threads=4), Restart.STUCK),
        (HealthReport(pool_exhaustions=5), None),
        (HealthReport(pool_exhaustions=6), Restart.DEGRADED),
        (HealthReport(pool_exhaustions=6, stuck_threads=3), Restart.DEGRADED),
        (HealthReport(pool_exhaustions=6, stuck_threads=4), Restart.STUCK),
        (HealthReport(consecutive_failures=10), None),
        (HealthReport(consecutive_failures=1_000), None),
    ],
)
def test_critical_is_replaced_at_once_and_degraded_is_not(
    levels: HealthReport, reason: Restart | None
) -> None:
    """CRITICAL restarts, DEGRADED only warns."""
    sick = worker(1, levels=levels)
    expected = [] if reason is None else [left(sick, reason, verdict=Verdict.CRITICAL)]
    assert decided(fleet(worker(0), sick)) == expected
    assert decided(fleet(worker(0), sick, detects_hangs=False)) == []


def test_while_the_database_is_away_no_slot_and_no_level_is_judged() -> None:
    """An outage restarts no process."""
    away = worker(0, levels=AWAY, latest_due=NOW - 1_000)
    assert decided(fleet(away, worker(1))) == []


def test_a_number_without_a_process_gets_one_at_once_or_after_its_pause() -> None:
    there = fleet(worker(1), wanted=2)
    assert decided(there) == [started(0)]
    for pause, expected in ((0.0, [started(0)]), (MOMENT, [])):
        assert decided(replace(there, not_before={(Role.WORKER, 0): NOW + pause})) == expected


def test_the_pause_of_another_number_or_role_delays_no_start() -> None:
    later = {(Role.WORKER, 1): NOW + 9, (Role.QUARANTINE, 0): NOW + 9, (Role.STEWARD, 0): NOW + 9}
    assert decided(fleet(worker(1), wanted=2, not_before=later)) == [started(0)]


def test_a_stopping_process_has_its_successor_at_the_same_time() -> None:
    leaving = worker(0, stop_by=NOW + 9)
    assert decided(fleet(leaving, worker(1))) == [started(0)]
    # A second one waits until one of them is gone: no more live than wanted and one.
    assert decided(fleet(leaving, worker(1, stop_by=NOW + 9))) == [started(0)]
    another = worker(0, index=2, generation=2)
    assert decided(fleet(leaving, another, worker(1, stop_by=NOW + 9))) == []


def test_a_process_that_stops_without_an_order_has_its_successor_at_the_same_time() -> None:
    assert decided(fleet(worker(0, terminated=True), wanted=1)) == [started(0)]


def test_one_that_cannot_die_is_given_up_and_replaced() -> None:
    """It holds its place among the living for two seconds more, and no longer."""
    undead = [worker(n, killed_at=NOW - UNDEAD_SECONDS) for n in (0, 1)]
    assert decided(fleet(*undead), now=NOW - MOMENT) == [started(0)]
    assert decided(fleet(*undead)) == [started(0), started(1)]


def test_there_is_no_second_steward_before_the_first_is_dead() -> None:
    leaving = replace(STEWARD, stop_by=NOW + 9)
    killed = replace(STEWARD, killed_at=NOW - UNDEAD_SECONDS + MOMENT)
    for gone in (leaving, killed):
        assert decided(FleetView(processes=[gone, worker(0)], wanted=1)) == []
    undead = replace(STEWARD, killed_at=NOW - UNDEAD_SECONDS)
    for processes in ([undead, worker(0)], [worker(0)]):
        there = FleetView(processes=processes, wanted=1)
        assert decided(there) == [Start(role=Role.STEWARD, number=0)]


def test_suspects_get_one_process_of_their_own() -> None:
    there = fleet(worker(0), suspects=True)
    alone = Start(role=Role.QUARANTINE, number=0)
    assert decided(there) == [alone]
    assert decided(replace(there, not_before={(Role.QUARANTINE, 0): NOW + MOMENT})) == []
    running = ProcessView(index=7, role=Role.QUARANTINE, number=0, generation=1)
    for there_already in (running, replace(running, stop_by=NOW + 1)):
        assert decided(fleet(worker(0), there_already, suspects=True)) == []


def test_processes_above_the_wanted_number_stop() -> None:
    surplus = [worker(1), worker(2, ready=False)]
    expected = [left(process) for process in surplus]
    assert decided(fleet(worker(0), *surplus, wanted=1)) == expected
    old = worker(1)
    young = worker(1, index=3, generation=2)
    assert decided(fleet(worker(0), old, young, wanted=1)) == [left(old), left(young)]


def test_those_that_leave_as_fewer_are_wanted_keep_no_post_empty() -> None:
    leaving = [worker(number, stop_by=NOW + 9) for number in (1, 2, 3)]
    assert decided(fleet(*leaving, wanted=1)) == [started(0)]
    assert decided(fleet(worker(0), *leaving, wanted=1, app=1)) == [started(0, Restart.RELOADED)]


@pytest.mark.parametrize(
    ("limits", "below", "at", "reason"),
    [
        ({"max_commands": 100}, {"commands": 99}, {"commands": 100}, Restart.RECYCLED),
        (
            {"max_commands": 100},
            *({"commands": count, "spread": 0.5} for count in (149, 150)),
            Restart.RECYCLED,
        ),
        ({"max_age": 60}, {"born": NOW - 60 + MOMENT}, {"born": NOW - 60}, Restart.RECYCLED),
        (
            {"max_age": 60},
            {"born": NOW - 60, "spread": 0.5},
            {"born": NOW - 90, "spread": 0.5},
            Restart.RECYCLED,
        ),
        (
            {"max_rss_bytes": 2**20},
            {"rss_over": RSS_SAMPLES - 1},
            {"rss_over": RSS_SAMPLES},
            Restart.RECYCLED,
        ),
        (
            {},
            {"degraded_since": NOW - 60 + MOMENT, "levels": DEGRADED},
            {"degraded_since": NOW - 60, "levels": DEGRADED},
            Restart.DEGRADED,
        ),
        ({}, {"app": 1}, {"app": 0}, Restart.RELOADED),
    ],
)
def test_an_outdated_process_gets_a_successor_first(
    limits: dict[str, Any], below: dict[str, Any], at: dict[str, Any], reason: Restart
) -> None:
    """Recycled at a limit, reloaded, or degraded for longer than the watchdog timeout."""
    those = replace(SETTINGS, **limits)
    steward = replace(STEWARD, app=1)
    healthy = worker(0, app=1, born=NOW)

    def with_second(given: dict[str, Any]) -> list[Action]:
        second = worker(1, **{"app": 1, "born": NOW, **given})
        return decide(FleetView(processes=[steward, healthy, second], wanted=2, app=1), those, NOW)

    assert with_second(below) == []
    assert with_second(at) == [started(1, reason)]
    assert with_second({**at, "ready": False}) == [], "it is not even there yet"


def test_a_process_with_a_ready_successor_stops() -> None:
    old, young = worker(0), worker(0, index=1, generation=2)
    assert decided(fleet(old, replace(young, ready=False))) == []
    assert decided(fleet(old, young)) == [left(old)]
    assert decided(fleet(replace(old, ready=False), young)) == [left(replace(old, ready=False))]
    assert decided(fleet(replace(old, stop_by=NOW + 1), young)) == []


def test_one_after_another_is_reloaded_and_the_steward_last() -> None:
    """The next successor starts when the predecessor before has left."""
    olds = [worker(n) for n in range(2)]
    news = [worker(n, index=n + 2, generation=2, app=1) for n in range(2)]
    assert decided(fleet(*olds, app=1)) == [started(0, Restart.RELOADED)]
    assert decided(fleet(*olds, replace(news[0], ready=False), app=1)) == []
    assert decided(fleet(*olds, news[0], app=1)) == [left(olds[0])]
    drains = replace(olds[0], stop_by=NOW + 9)
    assert decided(fleet(drains, olds[1], news[0], app=1)) == []
    assert decided(fleet(news[0], olds[1], app=1)) == [started(1, Restart.RELOADED)]
    drains = replace(olds[1], stop_by=NOW + 9)
    assert decided(fleet(drains, *news, app=1)) == []
    assert decided(fleet(*news, app=1)) == [left(STEWARD, Restart.RELOADED)]


def test_a_successor_that_died_early_is_followed_by_the_next_after_its_pause() -> None:
    """A new application that crashes causes no restart storm while the old one runs."""
    there = fleet(worker(0), worker(1), app=1)
    later = {(Role.WORKER, 0): NOW + 2}
    assert decided(replace(there, not_before=later)) == [started(1, Restart.RELOADED)]
    assert decided(replace(there, not_before={**later, (Role.WORKER, 1): NOW + 1})) == []
    assert decided(replace(there, not_before=later), now=NOW + 2) == [started(0, Restart.RELOADED)]


def test_no_process_is_replaced_gently_while_another_is_missing_or_starts() -> None:
    there = fleet(worker(0), worker(1, ready=False), app=1)
    assert decided(there) == []
    paused = {(Role.WORKER, 1): NOW + 1}
    assert decided(fleet(worker(0), wanted=2, app=1, not_before=paused)) == []


def test_when_all_are_degraded_or_the_others_away_none_is_replaced() -> None:
    """The cause is outside."""
    for others in (DEGRADED, AWAY):
        first = worker(0, levels=DEGRADED, degraded_since=NOW - 600)
        assert decided(fleet(first, worker(1, levels=others))) == []
        assert decided(fleet(first)) == []
    first = worker(0, levels=DEGRADED, degraded_since=NOW - 600)
    assert decided(fleet(first, worker(1), detects_hangs=False)) == [], "nor after a late round"
    assert decided(fleet(first, worker(1))) == [started(0, Restart.DEGRADED)]
