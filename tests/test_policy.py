"""What the supervisor decides, as values: no process, no clock, no board.

First each rule at both sides of its boundary, then what holds for every fleet, over random
ones, and over the lives of fleets whose processes hang, die and recover at random.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cmdbus.health import Health, Levels
from cmdbus.seats import Role, Verdict
from cmdbus.supervisor.policy import (
    DUMP_SECONDS,
    RESCUE_SECONDS,
    RSS_SAMPLES,
    UNDEAD_SECONDS,
    Action,
    Dump,
    Fleet,
    Kill,
    Leave,
    Limits,
    Process,
    Start,
    decide,
    next_look,
)
from cmdbus.views import Restart

NOW = 1_000.0
#: Just before a boundary.
MOMENT = 1e-6
LIMITS = Limits(thread=35, watchdog=60, drain=30)
LAYER_5 = 25.0
DEGRADED = Levels(consecutive_failures=11)
CRITICAL = Levels(stuck_threads=4)
EXHAUSTED = Levels(pool_exhaustions=6)
AWAY = Levels(database_away=True, stuck_threads=4, pool_exhaustions=6)

STEWARD = Process(place=99, role=Role.STEWARD, number=0, generation=1, ready=True)


def worker(number: int = 0, **said: Any) -> Process:
    said = {"place": number, "generation": 1, "ready": True, "due": NOW + 5, **said}
    return Process(role=Role.WORKER, number=number, **said)


def fleet(*processes: Process, **said: Any) -> Fleet:
    """With a steward to whom nothing happens."""
    numbers = {p.number for p in processes if p.role is Role.WORKER}
    said = {"wanted": max(numbers, default=-1) + 1, "processes": [STEWARD, *processes], **said}
    return Fleet(**said)


def decided(a_fleet: Fleet, limits: Limits = LIMITS, now: float = NOW) -> list[Action]:
    return decide(a_fleet, limits, now)


def started(number: int, reason: Restart | None = None) -> Start:
    return Start(role=Role.WORKER, number=number, reason=reason)


def left(process: Process, reason: Restart | None = None, by: float = NOW + 30) -> Leave:
    return Leave(process=process, by=by, reason=reason)


# Each rule, at both sides of its boundary.


def test_a_fleet_of_healthy_processes_is_left_alone() -> None:
    assert decided(fleet(worker(0), worker(1))) == []


def test_a_fleet_begins_with_its_steward_and_all_its_workers() -> None:
    empty = Fleet(processes=[], wanted=3)
    steward = Start(role=Role.STEWARD, number=0)
    assert decided(empty) == [steward, started(0), started(1), started(2)]


def test_who_was_told_to_leave_is_killed_at_its_deadline_and_not_before() -> None:
    """Also after a round that came late: it was told when."""
    for judging in (True, False):
        leaving = worker(0, leave_by=NOW, due=NOW - 50)
        there = fleet(leaving, worker(0, place=1, generation=2), judging=judging)
        assert decided(there, now=NOW - MOMENT) == []
        assert decided(there) == [Kill(process=leaving, verdict=Verdict.LATE)]


@pytest.mark.parametrize("role", [Role.WORKER, Role.STEWARD, Role.ALONE])
@pytest.mark.parametrize("levels", [Levels(), AWAY], ids=["at hand", "away"])
def test_a_main_thread_past_its_due_has_its_stacks_dumped(role: Role, levels: Levels) -> None:
    """Fault 6. Also while the database is away: the main thread has nothing to do with it."""
    late = Process(place=5, role=role, number=0, generation=1, due=NOW, levels=levels)
    others = [p for p in (STEWARD, worker(0)) if p.role is not role]
    there = Fleet(processes=[late, *others], wanted=1, suspects=role is Role.ALONE)
    assert decided(there, now=NOW - MOMENT) == []
    assert decided(there) == [Dump(process=late)]
    assert decided(replace(there, judging=False)) == []


def test_after_the_dump_it_is_killed() -> None:
    dumped = worker(0, due=NOW - 1, dumped_at=NOW - DUMP_SECONDS)
    assert decided(fleet(dumped), now=NOW - MOMENT) == []
    assert decided(fleet(dumped)) == [Kill(process=dumped, verdict=Verdict.HUNG)]


def test_between_dump_and_kill_a_late_round_lets_it_come_back_first() -> None:
    """Faults 13, 29: the machine was suspended just then."""
    there = fleet(worker(0, due=NOW - 90, dumped_at=NOW - 90))
    assert decided(replace(there, judging=False)) == []
    # But at the deadline of a stop there is no time left for that.
    stopping = replace(there, judging=False, stop_by=NOW)
    assert [type(action) for action in decided(stopping)] == [Kill]
    assert decided(stopping, now=NOW - MOMENT) == []


def test_a_process_that_has_not_promised_anything_is_not_late() -> None:
    assert decided(fleet(worker(0, due=None))) == []


def test_nobody_is_killed_twice() -> None:
    killed = worker(0, due=NOW - 9, leave_by=NOW - 9, dumped_at=NOW - 9, killed_at=NOW - 1)
    assert not [a for a in decided(fleet(killed)) if not isinstance(a, Start)]


@pytest.mark.parametrize("role", [Role.WORKER, Role.ALONE])
def test_a_slot_as_late_as_layer_5_is_above_layer_4_makes_its_process_leave(role: Role) -> None:
    """M125: layer 5 for the slot is its due and watchdog - thread."""
    stuck = Process(place=5, role=role, number=0, generation=1, latest_due=NOW - LAYER_5)
    others = [STEWARD] if role is Role.WORKER else [STEWARD, worker(0)]
    there = Fleet(processes=[stuck, *others], wanted=1)
    assert decided(there, now=NOW - MOMENT) == []
    assert decided(there) == [left(stuck, Restart.STUCK)]


def test_a_slot_of_the_steward_is_its_own_main_threads_to_judge() -> None:
    steward = replace(STEWARD, latest_due=NOW - 1000, levels=CRITICAL)
    assert decided(Fleet(processes=[steward, worker(0)], wanted=1)) == []


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        (Levels(stuck_threads=3), None),
        (Levels(stuck_threads=4), Restart.STUCK),
        (Levels(pool_exhaustions=5), None),
        (Levels(pool_exhaustions=6), Restart.DEGRADED),
        (Levels(pool_exhaustions=6, stuck_threads=3), Restart.DEGRADED),
        (Levels(pool_exhaustions=6, stuck_threads=4), Restart.STUCK),
        (Levels(consecutive_failures=10), None),
        (Levels(consecutive_failures=1_000), None),
    ],
)
def test_critical_is_replaced_at_once_and_degraded_is_not(
    levels: Levels, reason: Restart | None
) -> None:
    """M123, M124, M125, R45: CRITICAL restarts, DEGRADED only warns."""
    sick = worker(1, levels=levels)
    expected = [] if reason is None else [left(sick, reason)]
    assert decided(fleet(worker(0), sick)) == expected
    assert decided(fleet(worker(0), sick, judging=False)) == []


def test_while_the_database_is_away_no_slot_and_no_level_is_judged() -> None:
    """Faults 33, 34: an outage restarts nobody."""
    away = worker(0, levels=AWAY, latest_due=NOW - 1_000)
    assert decided(fleet(away, worker(1))) == []


def test_a_number_without_a_process_gets_one_at_once_or_after_its_pause() -> None:
    there = fleet(worker(1), wanted=2)
    assert decided(there) == [started(0)]
    for pause, expected in ((0.0, [started(0)]), (MOMENT, [])):
        assert decided(replace(there, not_before={(Role.WORKER, 0): NOW + pause})) == expected


def test_another_numbers_pause_and_another_roles_keep_nobody_waiting() -> None:
    later = {(Role.WORKER, 1): NOW + 9, (Role.ALONE, 0): NOW + 9, (Role.STEWARD, 0): NOW + 9}
    assert decided(fleet(worker(1), wanted=2, not_before=later)) == [started(0)]


def test_who_leaves_for_good_reason_has_its_successor_beside_it() -> None:
    leaving = worker(0, leave_by=NOW + 9)
    assert decided(fleet(leaving, worker(1))) == [started(0)]
    # A second one waits until one of them is gone: no more live than wanted and one.
    assert decided(fleet(leaving, worker(1, leave_by=NOW + 9))) == [started(0)]
    another = worker(0, place=2, generation=2)
    assert decided(fleet(leaving, another, worker(1, leave_by=NOW + 9))) == []


def test_one_that_cannot_die_is_given_up_and_replaced() -> None:
    """Fault 5: it holds its place among the living for two seconds more, and no longer."""
    undead = [worker(n, killed_at=NOW - UNDEAD_SECONDS) for n in (0, 1)]
    assert decided(fleet(*undead), now=NOW - MOMENT) == [started(0)]
    assert decided(fleet(*undead)) == [started(0), started(1)]


def test_there_is_no_second_steward_before_the_first_is_dead() -> None:
    leaving = replace(STEWARD, leave_by=NOW + 9)
    killed = replace(STEWARD, killed_at=NOW - UNDEAD_SECONDS + MOMENT)
    for gone in (leaving, killed):
        assert decided(Fleet(processes=[gone, worker(0)], wanted=1)) == []
    undead = replace(STEWARD, killed_at=NOW - UNDEAD_SECONDS)
    for processes in ([undead, worker(0)], [worker(0)]):
        there = Fleet(processes=processes, wanted=1)
        assert decided(there) == [Start(role=Role.STEWARD, number=0)]


def test_suspects_get_one_process_of_their_own() -> None:
    """Fault 23."""
    there = fleet(worker(0), suspects=True)
    alone = Start(role=Role.ALONE, number=0)
    assert decided(there) == [alone]
    assert decided(replace(there, not_before={(Role.ALONE, 0): NOW + MOMENT})) == []
    running = Process(place=7, role=Role.ALONE, number=0, generation=1)
    for there_already in (running, replace(running, leave_by=NOW + 1)):
        assert decided(fleet(worker(0), there_already, suspects=True)) == []


def test_numbers_that_nobody_wants_leave() -> None:
    surplus = [worker(1), worker(2, ready=False)]
    expected = [left(process) for process in surplus]
    assert decided(fleet(worker(0), *surplus, wanted=1)) == expected
    old = worker(1)
    young = worker(1, place=3, generation=2)
    assert decided(fleet(worker(0), old, young, wanted=1)) == [left(old), left(young)]


@pytest.mark.parametrize(
    ("limits", "below", "at", "reason"),
    [
        ({"max_commands": 100}, {"commands": 99}, {"commands": 100}, Restart.RECYCLED),
        (
            {"max_commands": 100},
            {"commands": 149, "spread": 0.5},
            {"commands": 150, "spread": 0.5},
            Restart.RECYCLED,
        ),
        ({"max_age": 60}, {"born": NOW - 60 + MOMENT}, {"born": NOW - 60}, Restart.RECYCLED),
        (
            {"max_age": 60},
            {"born": NOW - 60, "spread": 0.5},
            {"born": NOW - 90, "spread": 0.5},
            Restart.RECYCLED,
        ),
        ({}, {"rss_over": RSS_SAMPLES - 1}, {"rss_over": RSS_SAMPLES}, Restart.RECYCLED),
        (
            {},
            {"degraded_since": NOW - 60 + MOMENT, "levels": DEGRADED},
            {"degraded_since": NOW - 60, "levels": DEGRADED},
            Restart.DEGRADED,
        ),
        ({}, {"app": 1}, {"app": 0}, Restart.RELOADED),
    ],
)
def test_who_is_outdated_gets_a_successor_first(
    limits: dict[str, Any], below: dict[str, Any], at: dict[str, Any], reason: Restart
) -> None:
    """Fault 24; recycled at a limit, reloaded, or degraded for longer than layer 5."""
    those = replace(LIMITS, **limits)
    steward = replace(STEWARD, app=1)
    healthy = worker(0, app=1, born=NOW)

    def with_second(said: dict[str, Any]) -> list[Action]:
        second = worker(1, **{"app": 1, "born": NOW, **said})
        return decide(Fleet(processes=[steward, healthy, second], wanted=2, app=1), those, NOW)

    assert with_second(below) == []
    assert with_second(at) == [started(1, reason)]
    assert with_second({**at, "ready": False}) == [], "it is not even there yet"


def test_who_has_a_ready_successor_leaves() -> None:
    old, young = worker(0), worker(0, place=1, generation=2)
    assert decided(fleet(old, replace(young, ready=False))) == []
    assert decided(fleet(old, young)) == [left(old)]
    assert decided(fleet(replace(old, ready=False), young)) == [left(replace(old, ready=False))]
    assert decided(fleet(replace(old, leave_by=NOW + 1), young)) == []


def test_one_after_another_is_reloaded_and_the_steward_last() -> None:
    """Fault 11: the next successor starts when the predecessor before has left."""
    olds = [worker(n) for n in range(2)]
    news = [worker(n, place=n + 2, generation=2, app=1) for n in range(2)]
    assert decided(fleet(*olds, app=1)) == [started(0, Restart.RELOADED)]
    assert decided(fleet(*olds, replace(news[0], ready=False), app=1)) == []
    assert decided(fleet(*olds, news[0], app=1)) == [left(olds[0])]
    drains = replace(olds[0], leave_by=NOW + 9)
    assert decided(fleet(drains, olds[1], news[0], app=1)) == []
    assert decided(fleet(news[0], olds[1], app=1)) == [started(1, Restart.RELOADED)]
    drains = replace(olds[1], leave_by=NOW + 9)
    assert decided(fleet(drains, *news, app=1)) == []
    assert decided(fleet(*news, app=1)) == [left(STEWARD, Restart.RELOADED)]


def test_a_fleet_that_may_have_no_process_more_replaces_by_leaving_first() -> None:
    olds = [worker(n) for n in range(2)]
    without = replace(LIMITS, surge=0)
    assert decided(fleet(*olds, app=1), without) == [left(olds[0], Restart.RELOADED)]
    leaving = replace(olds[0], leave_by=NOW + 9)
    assert decided(fleet(leaving, olds[1], app=1), without) == []
    assert decided(fleet(olds[1], app=1), without) == [started(0)]


def test_a_successor_that_died_early_is_followed_by_the_next_after_its_pause() -> None:
    """Fault 18: a new application that crashes is no restart storm beside the old one."""
    there = fleet(worker(0), worker(1), app=1)
    later = {(Role.WORKER, 0): NOW + 2}
    assert decided(replace(there, not_before=later)) == [started(1, Restart.RELOADED)]
    assert decided(replace(there, not_before={**later, (Role.WORKER, 1): NOW + 1})) == []
    assert decided(replace(there, not_before=later), now=NOW + 2) == [started(0, Restart.RELOADED)]


def test_nobody_is_replaced_gently_while_somebody_is_missing_or_starts() -> None:
    there = fleet(worker(0), worker(1, ready=False), app=1)
    assert decided(there) == []
    paused = {(Role.WORKER, 1): NOW + 1}
    assert decided(fleet(worker(0), wanted=2, app=1, not_before=paused)) == []


def test_all_degraded_or_the_rest_away_and_nobody_is_replaced() -> None:
    """The cause is outside."""
    for others in (DEGRADED, AWAY):
        first = worker(0, levels=DEGRADED, degraded_since=NOW - 600)
        assert decided(fleet(first, worker(1, levels=others))) == []
        assert decided(fleet(first)) == []
    first = worker(0, levels=DEGRADED, degraded_since=NOW - 600)
    assert decided(fleet(first, worker(1), judging=False)) == [], "nor after a late round"
    assert decided(fleet(first, worker(1))) == [started(0, Restart.DEGRADED)]


# Stopping.


def test_a_fleet_that_stops_tells_all_but_the_steward_by_when_they_must_have() -> None:
    alone = Process(place=7, role=Role.ALONE, number=0, generation=1)
    processes = [worker(0), worker(1, ready=False), alone]
    by = NOW + 20
    expected = [left(process, by=by) for process in processes]
    assert decided(fleet(*processes, stop_by=by, suspects=True)) == expected


def test_a_second_signal_brings_the_deadline_forward_and_a_later_one_moves_nothing() -> None:
    early, late = worker(0, leave_by=NOW + 5), worker(1, leave_by=NOW + 30)
    assert decided(fleet(early, late, stop_by=NOW + 9)) == [left(late, by=NOW + 9)]
    assert decided(fleet(early, late, stop_by=NOW + 60)) == []


def test_a_hung_one_has_its_stacks_dumped_also_while_the_fleet_stops() -> None:
    hung = worker(0, due=NOW)
    assert decided(fleet(hung, stop_by=NOW + 20)) == [Dump(process=hung)]


def test_the_steward_leaves_when_all_that_was_left_is_handed_back() -> None:
    by = NOW + 20
    steward = left(STEWARD, by=NOW + RESCUE_SECONDS)
    assert decided(fleet(worker(0, leave_by=by), stop_by=by)) == []
    assert decided(fleet(stop_by=by, unrescued=1)) == []
    assert decided(fleet(stop_by=by)) == [steward]


def test_the_steward_waits_for_hand_backs_and_for_the_undead_only_so_long() -> None:
    by = NOW - RESCUE_SECONDS
    assert decided(fleet(stop_by=by, unrescued=1), now=NOW - MOMENT) == []
    assert decided(fleet(stop_by=by, unrescued=1)) == [left(STEWARD, by=NOW + RESCUE_SECONDS)]
    undead = worker(0, leave_by=NOW - 2, killed_at=NOW - UNDEAD_SECONDS)
    assert decided(fleet(undead, stop_by=by), now=NOW - MOMENT) == []
    assert decided(fleet(undead, stop_by=by)) == [left(STEWARD, by=NOW + RESCUE_SECONDS)]


def test_a_steward_that_was_leaving_at_its_leisure_is_hurried() -> None:
    slow = replace(STEWARD, leave_by=NOW + 30)
    hurried = left(slow, by=NOW + RESCUE_SECONDS)
    assert decided(Fleet(processes=[slow], wanted=1, stop_by=NOW)) == [hurried]
    prompt = replace(STEWARD, leave_by=NOW + RESCUE_SECONDS - MOMENT)
    assert decided(Fleet(processes=[prompt], wanted=1, stop_by=NOW)) == []


# What holds for every fleet.


def random_fleets(count: int, seed: int) -> Iterator[tuple[Fleet, Limits]]:
    for number in range(count):
        dice = random.Random(seed * 1_000_000 + number)
        yield _random_fleet(dice), _random_limits(dice)


def _random_limits(dice: random.Random) -> Limits:
    return Limits(
        thread=35,
        watchdog=60,
        drain=dice.choice([0.5, 30]),
        surge=dice.choice([0, 1, 1, 1, 2]),
        max_commands=dice.choice([None, 100]),
        max_age=dice.choice([None, None, 60]),
    )


def _random_fleet(dice: random.Random) -> Fleet:
    wanted = dice.randint(1, 4)
    app = dice.choice([0, 0, 1])
    processes: list[Process] = []
    for number in range(dice.randint(1, 5)):
        for generation in range(dice.choice([0, 1, 1, 1, 1, 2])):
            processes.append(_random_process(dice, len(processes), Role.WORKER, number, generation))
    for role in (Role.STEWARD, Role.ALONE):
        if dice.random() < 0.8:
            processes.append(_random_process(dice, len(processes), role, 0, 1))
    dice.shuffle(processes)
    return Fleet(
        processes=processes,
        wanted=wanted,
        app=app,
        not_before={(p.role, p.number): _around(dice) for p in processes if dice.random() < 0.3},
        stop_by=_around(dice) if dice.random() < 0.2 else None,
        unrescued=dice.choice([0, 0, 1]),
        suspects=dice.random() < 0.2,
        judging=dice.random() < 0.8,
    )


def _random_process(
    dice: random.Random, place: int, role: Role, number: int, generation: int
) -> Process:
    levels = dice.choice([Levels()] * 5 + [DEGRADED, DEGRADED, CRITICAL, EXHAUSTED, AWAY])

    def perhaps(chance: float, earlier: float = 0.0) -> float | None:
        return _around(dice) - earlier if dice.random() < chance else None

    return Process(
        place=place,
        role=role,
        number=number,
        generation=generation,
        app=dice.choice([0, 1, 1]),
        born=_around(dice) - 60,
        ready=dice.random() < 0.8,
        due=NOW + dice.uniform(0, 3) if dice.random() < 0.8 else _around(dice),
        latest_due=perhaps(0.3, earlier=dice.choice([0.0, LAYER_5])),
        levels=levels,
        degraded_since=perhaps(1.0, earlier=60) if levels is DEGRADED else None,
        commands=dice.choice([0, 0, 105, 200]),
        rss_over=dice.choice([0, 0, 0, RSS_SAMPLES]),
        spread=dice.choice([0.0, 0.1]),
        leave_by=perhaps(0.2),
        dumped_at=perhaps(0.1, earlier=DUMP_SECONDS),
        killed_at=perhaps(0.1, earlier=UNDEAD_SECONDS),
    )


def _around(dice: random.Random) -> float:
    return NOW + dice.choice([dice.uniform(-2, 2), dice.uniform(-0.2, 0.2), 0.0])


def lives(process: Process) -> bool:
    return process.killed_at is None or process.killed_at + UNDEAD_SECONDS > NOW


def living(a_fleet: Fleet, role: Role = Role.WORKER) -> list[Process]:
    return [p for p in a_fleet.processes if p.role is role and lives(p)]


def starts(actions: list[Action], role: Role = Role.WORKER) -> list[Start]:
    return [a for a in actions if isinstance(a, Start) and a.role is role]


MANY = 4_000


def test_never_more_than_the_wanted_and_the_surge_are_alive() -> None:
    seen = 0
    for there, limits in random_fleets(MANY, 1):
        new = starts(decide(there, limits, NOW))
        seen += len(new)
        assert not new or len(living(there)) + len(new) <= there.wanted + limits.surge
    assert seen > 100


@pytest.mark.parametrize("role", [Role.STEWARD, Role.ALONE])
def test_there_are_never_two_stewards_or_two_that_run_suspects(role: Role) -> None:
    seen = 0
    for there, limits in random_fleets(MANY, 2):
        new = starts(decide(there, limits, NOW), role)
        seen += len(new)
        assert len(living(there, role)) + len(new) <= max(1, len(living(there, role)))
    assert seen > 100


def test_on_a_round_that_does_not_judge_only_told_deadlines_are_kept() -> None:
    seen = 0
    for there, limits in random_fleets(MANY, 3):
        if there.judging:
            continue
        for action in decide(there, limits, NOW):
            assert not isinstance(action, Dump)
            if isinstance(action, Kill):
                seen += 1
                told = action.process.leave_by, there.stop_by
                assert any(by is not None and by <= NOW for by in told), action
            elif not isinstance(action, Start):
                assert action.reason not in (Restart.STUCK, Restart.HUNG, Restart.DEGRADED)
    assert seen > 100


def test_nobody_is_killed_who_was_not_warned() -> None:
    """By a deadline that has passed, or by the order to write its stacks."""
    for there, limits in random_fleets(MANY, 4):
        for action in decide(there, limits, NOW):
            if isinstance(action, Kill):
                leave_by, dumped_at = action.process.leave_by, action.process.dumped_at
                late = leave_by is not None and leave_by <= NOW
                assert late or (dumped_at is not None and dumped_at + DUMP_SECONDS <= NOW)


def test_a_stopping_fleet_starts_nobody() -> None:
    for there, limits in random_fleets(MANY, 5):
        assert there.stop_by is None or not any(
            isinstance(action, Start) for action in decide(there, limits, NOW)
        )


def test_each_process_has_one_order_at_a_time_and_each_number_one_successor() -> None:
    for there, limits in random_fleets(MANY, 6):
        actions = decide(there, limits, NOW)
        places = [action.process.place for action in actions if not isinstance(action, Start)]
        numbers = [(a.role, a.number) for a in actions if isinstance(a, Start)]
        assert len(set(places)) == len(places) and len(set(numbers)) == len(numbers), actions


def test_a_pause_is_kept_whatever_the_start_is_for() -> None:
    for there, limits in random_fleets(MANY, 7):
        for action in decide(there, limits, NOW):
            if isinstance(action, Start):
                assert there.not_before.get((action.role, action.number), NOW) <= NOW


def test_one_at_a_time_is_replaced_gently_and_its_successor_comes_first() -> None:
    seen = 0
    for there, limits in random_fleets(4 * MANY, 8):
        actions = decide(there, limits, NOW)
        gentle = [a for a in starts(actions) if a.reason is not None]
        seen += len(gentle)
        assert len(gentle) <= 1
        ready = [p for p in there.processes if p.stays and p.role is Role.WORKER and p.ready]
        for start in gentle:
            assert {p.number for p in ready} >= set(range(there.wanted)), "all are there"
            assert len([p for p in ready if p.number == start.number]) == 1
        for action in actions:
            if not isinstance(action, Leave) or action.process.role is not Role.WORKER:
                continue
            process = action.process
            if there.stop_by is None and process.number < there.wanted and action.reason is None:
                assert any(
                    p.number == process.number and p.generation > process.generation for p in ready
                )
            if action.reason in (Restart.RELOADED, Restart.RECYCLED):
                assert limits.surge == 0 and len(living(there)) == there.wanted
    assert seen > 50


def test_nobody_is_replaced_for_being_degraded_when_all_are() -> None:
    for there, limits in random_fleets(MANY, 9):
        sick = [
            replace(p, levels=DEGRADED, degraded_since=NOW - 600, latest_due=None)
            for p in there.processes
        ]
        for action in decide(replace(there, processes=sick), limits, NOW):
            if isinstance(action, Start | Leave):
                assert action.reason is not Restart.DEGRADED


def test_a_fleet_to_which_nothing_happened_is_left_alone_by_any_limits() -> None:
    for there, limits in random_fleets(MANY, 10):
        calm = [worker(number, app=there.app, born=NOW) for number in range(there.wanted)]
        steward = replace(STEWARD, app=there.app)
        fine = Fleet(processes=[steward, *calm], wanted=there.wanted, app=there.app)
        assert decide(fine, limits, NOW) == []


def kinds(actions: list[Action]) -> list[tuple[object, ...]]:
    """What was decided, without the deadlines that are counted from now."""
    return [
        (
            type(a),
            (a.role, a.number, a.reason) if isinstance(a, Start) else a.process.place,
            a.reason if isinstance(a, Leave) else None,
            a.verdict if isinstance(a, Kill) else None,
        )
        for a in actions
    ]


def test_the_next_look_comes_before_time_alone_changes_the_decision() -> None:
    """And is never now again: that would be a loop without a pause."""
    changed = 0
    for there, limits in random_fleets(MANY, 11):
        decision = kinds(decide(there, limits, NOW))
        at = next_look(there, limits, NOW)
        assert NOW < at <= NOW + 1
        for part in (0.01, 0.3, 0.6, 0.9, 1 - 1e-9):
            assert kinds(decide(there, limits, NOW + (at - NOW) * part)) == decision
        changed += kinds(decide(there, limits, at)) != decision
    assert changed > 500


# Whole lives.


@dataclass
class World:
    """Acts out what is decided, over processes that hang, die, recover and take their time."""

    dice: random.Random
    limits: Limits
    wanted: int
    processes: dict[int, Process] = field(default_factory=dict)
    app: int = 0
    now: float = 0.0
    stop_by: float | None = None
    judging: bool = True
    generations: int = 0
    #: Of each process: it does not come back; it cannot die.
    hung: set[int] = field(default_factory=set)
    undead: set[int] = field(default_factory=set)
    lowest: list[int] = field(default_factory=list)

    def fleet(self) -> Fleet:
        return Fleet(
            processes=list(self.processes.values()),
            wanted=self.wanted,
            app=self.app,
            stop_by=self.stop_by,
            judging=self.judging,
        )

    def turn(self) -> None:
        for place in list(self.processes):
            self._live(place)
        there = self.fleet()
        actions = decide(there, self.limits, self.now)
        for action in actions:
            self._act(action)
        self._check(there, actions)
        self.now = max(self.now + 0.01, min(next_look(there, self.limits, self.now), self.now + 5))

    def _live(self, place: int) -> None:
        process = self.processes[place]
        if process.killed_at is not None:
            if place not in self.undead and self.dice.random() < 0.7:
                del self.processes[place]
            return
        if place in self.hung:
            return
        process = replace(process, due=self.now + 2)
        if not process.ready and self.dice.random() < 0.5:
            process = replace(process, ready=True)
        if process.leave_by is not None and self.dice.random() < 0.2:
            del self.processes[place]
            return
        self.processes[place] = process

    def _act(self, action: Action) -> None:
        match action:
            case Start():
                self.generations += 1
                self.processes[self.generations] = Process(
                    place=self.generations,
                    role=action.role,
                    number=action.number,
                    generation=self.generations,
                    app=self.app,
                    born=self.now,
                    due=self.now + 30,
                )
            case Leave():
                self._mark(action.process.place, leave_by=action.by)
            case Dump():
                self._mark(action.process.place, dumped_at=self.now)
            case Kill():
                self._mark(action.process.place, killed_at=self.now)

    def _mark(self, place: int, **said: Any) -> None:
        self.processes[place] = replace(self.processes[place], **said)

    def _check(self, there: Fleet, actions: list[Action]) -> None:
        stewards = [p for p in self.processes.values() if p.role is Role.STEWARD and self._lives(p)]
        assert len(stewards) <= 1
        alive = [p for p in self.processes.values() if p.role is Role.WORKER and self._lives(p)]
        assert len(alive) <= self.wanted + self.limits.surge or not starts(actions)
        if there.stop_by is not None:
            assert not starts(actions)

    def _lives(self, process: Process) -> bool:
        return process.killed_at is None or process.killed_at + UNDEAD_SECONDS > self.now

    @property
    def serving(self) -> list[Process]:
        return [
            p
            for place, p in self.processes.items()
            if p.role is Role.WORKER and p.stays and p.ready and place not in self.hung
        ]

    def hurt(self) -> None:
        """Something happens to somebody."""
        if not self.processes:
            return
        place = self.dice.choice(list(self.processes))
        match self.dice.randrange(5):
            case 0:
                del self.processes[place]
            case 1:
                self.hung.add(place)
            case 2:
                self.hung.add(place)
                self.undead.add(place)
            case 3:
                self._mark(place, latest_due=self.now - LAYER_5)
            case 4:
                self.processes[place] = replace(self.processes[place], levels=CRITICAL)

    def settle(self) -> None:
        """Until it does nothing more by itself."""
        for _ in range(1_000):
            self.turn()
            numbers = [p.number for p in self.serving]
            whole = sorted(numbers) == list(range(self.wanted))
            if whole and all(p.app == self.app for p in self.serving):
                return
        raise AssertionError(f"not whole again: {self.processes}")


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_to_a_fleet_it_becomes_whole_again_and_stops(seed: int) -> None:
    """Faults 1, 4, 5, 7, 8, 14: nothing that time does not heal."""
    dice = random.Random(seed)
    world = World(dice, replace(LIMITS, surge=dice.choice([0, 1, 1, 2])), dice.randint(1, 5))
    world.settle()
    for _ in range(200):
        world.turn()
        world.judging = dice.random() > 0.1
        if dice.random() < 0.2:
            world.hurt()
        if dice.random() < 0.05:
            world.wanted = dice.randint(1, 5)
        if dice.random() < 0.02:
            world.app += 1
    world.judging = True
    world.settle()
    world.stop_by = world.now + dice.choice([0.0, 10.0])
    for _ in range(200):
        world.turn()
    assert set(world.processes) <= world.undead


@pytest.mark.parametrize("surge", [0, 1])
def test_a_reload_never_takes_more_than_one_worker_away(surge: int) -> None:
    """Fault 11: and none at all where a process more is allowed."""
    for seed in range(20):
        world = World(random.Random(seed), replace(LIMITS, surge=surge), 4)
        world.settle()
        world.app = 1
        fewest = 4
        while any(p.app == 0 for p in world.processes.values()):
            world.turn()
            fewest = min(fewest, len(world.serving))
        assert fewest == (4 if surge else 3)


def test_health_is_what_the_policy_reads_of_it() -> None:
    """M123, M124: what the fleets above call degraded and critical is that."""
    health = [levels.health for levels in (DEGRADED, CRITICAL, EXHAUSTED, AWAY)]
    assert health == [
        Health.DEGRADED,
        Health.CRITICAL,
        Health.CRITICAL,
        Health.DATABASE_AWAY,
    ]


def test_who_alone_cannot_reach_the_database_is_replaced_and_nobody_when_all_cannot() -> None:
    """Out of descriptors, say: another one had success since, or the steward goes on working."""
    away = worker(levels=Levels(database_away=True), degraded_since=NOW - 100)
    idle = worker(1)
    works = worker(1, levels=Levels(last_success=NOW - 50))
    before = worker(1, levels=Levels(last_success=NOW - 150))
    lost = replace(STEWARD, levels=Levels(database_away=True))

    def replaced(*processes: Process) -> bool:
        told = decide(Fleet(processes=processes, wanted=2), LIMITS, NOW)
        return Start(role=Role.WORKER, number=0, reason=Restart.DEGRADED) in told

    assert replaced(away, works, lost)
    assert replaced(away, idle, STEWARD)
    assert not replaced(away, idle, lost)
    assert not replaced(away, before, lost)
    assert not replaced(away, replace(works, away_at=NOW - 59), lost), "it has only just come back"
    hasty = Limits(thread=3, watchdog=5, drain=30)
    soon = replace(away, degraded_since=NOW - 6)
    told = decide(Fleet(processes=(soon, idle, STEWARD), wanted=2), hasty, NOW)
    assert told == [], "it may not have noticed yet"
