"""What the supervisor decides, whatever the fleet: over random ones."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from policies import (
    AWAY,
    CRITICAL,
    DEGRADED,
    EXHAUSTED,
    LAYER_5,
    NOW,
    SETTINGS,
    STEWARD,
    starts,
    worker,
)

from cmdbus.board.health import HealthReport
from cmdbus.board.records import Restart, Role
from cmdbus.settings import Settings
from cmdbus.supervisor.fleet_view import UNDEAD_SECONDS, FleetView, ProcessView
from cmdbus.supervisor.policy import MAX_SURGE, RSS_SAMPLES, Dump, Kill, Start, Stop, decide
from cmdbus.supervisor.stacks import DUMP_SECONDS


def random_fleets(count: int, seed: int) -> Iterator[tuple[FleetView, Settings]]:
    for number in range(count):
        dice = random.Random(seed * 1_000_000 + number)
        yield _random_fleet(dice), _random_settings(dice)


def _random_settings(dice: random.Random) -> Settings:
    return replace(
        SETTINGS,
        drain_timeout=dice.choice([0.5, 30]),
        max_commands=dice.choice([None, 100]),
        max_age=dice.choice([None, None, 60]),
    )


def _random_fleet(dice: random.Random) -> FleetView:
    wanted = dice.randint(1, 4)
    app = dice.choice([0, 0, 1])
    processes: list[ProcessView] = []
    for number in range(dice.randint(1, 5)):
        for generation in range(dice.choice([0, 1, 1, 1, 1, 2])):
            processes.append(_random_process(dice, len(processes), Role.WORKER, number, generation))
    for role in (Role.STEWARD, Role.QUARANTINE):
        if dice.random() < 0.8:
            processes.append(_random_process(dice, len(processes), role, 0, 1))
    dice.shuffle(processes)
    return FleetView(
        processes=processes,
        wanted=wanted,
        app=app,
        not_before={(p.role, p.number): _around(dice) for p in processes if dice.random() < 0.3},
        stop_by=_around(dice) if dice.random() < 0.2 else None,
        unrescued=dice.choice([0, 0, 1]),
        suspects=dice.random() < 0.2,
        detects_hangs=dice.random() < 0.8,
    )


def _random_process(
    dice: random.Random, index: int, role: Role, number: int, generation: int
) -> ProcessView:
    levels = dice.choice([HealthReport()] * 5 + [DEGRADED, DEGRADED, CRITICAL, EXHAUSTED, AWAY])

    def perhaps(chance: float, earlier: float = 0.0) -> float | None:
        return _around(dice) - earlier if dice.random() < chance else None

    return ProcessView(
        index=index,
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
        stop_by=perhaps(0.2),
        dumped_at=perhaps(0.1, earlier=DUMP_SECONDS),
        killed_at=perhaps(0.1, earlier=UNDEAD_SECONDS),
    )


def _around(dice: random.Random) -> float:
    return NOW + dice.choice([dice.uniform(-2, 2), dice.uniform(-0.2, 0.2), 0.0])


def living(a_fleet: FleetView, role: Role = Role.WORKER) -> list[ProcessView]:
    return [p for p in a_fleet.processes if p.role is role and p.is_alive(NOW)]


MANY = 2_000


def test_never_more_than_the_wanted_and_the_surge_are_alive() -> None:
    seen = 0
    for there, settings in random_fleets(MANY, 1):
        new = starts(decide(there, settings, NOW))
        seen += len(new)
        alive = [p for p in living(there) if p.number < there.wanted]
        assert not new or len(alive) + len(new) <= there.wanted + MAX_SURGE
    assert seen > MANY / 50


@pytest.mark.parametrize("role", [Role.STEWARD, Role.QUARANTINE])
def test_there_are_never_two_stewards_or_two_that_run_suspects(role: Role) -> None:
    seen = 0
    for there, settings in random_fleets(MANY, 2):
        new = starts(decide(there, settings, NOW), role)
        seen += len(new)
        assert len(living(there, role)) + len(new) <= max(1, len(living(there, role)))
    assert seen > MANY / 50


def test_a_round_that_detects_no_hangs_keeps_only_announced_deadlines() -> None:
    seen = 0
    for there, settings in random_fleets(MANY, 3):
        if there.detects_hangs:
            continue
        for action in decide(there, settings, NOW):
            assert not isinstance(action, Dump)
            if isinstance(action, Kill):
                seen += 1
                times = action.process.stop_by, there.stop_by
                assert any(by is not None and by <= NOW for by in times), action
            elif not isinstance(action, Start):
                assert action.reason not in (Restart.STUCK, Restart.HUNG, Restart.DEGRADED)
    assert seen > MANY / 50


def test_no_process_is_killed_without_a_warning() -> None:
    """By a deadline that has passed, or by the order to write its stacks."""
    for there, settings in random_fleets(MANY, 4):
        for action in decide(there, settings, NOW):
            if isinstance(action, Kill):
                leave_by, dumped_at = action.process.stop_by, action.process.dumped_at
                late = leave_by is not None and leave_by <= NOW
                assert late or (dumped_at is not None and dumped_at + DUMP_SECONDS <= NOW)


def test_a_stopping_fleet_starts_no_process_but_a_steward() -> None:
    for there, settings in random_fleets(MANY, 5):
        for action in decide(there, settings, NOW):
            if there.stop_by is not None and isinstance(action, Start):
                assert action.role is Role.STEWARD


def test_each_process_has_one_order_at_a_time_and_each_number_one_successor() -> None:
    for there, settings in random_fleets(MANY, 6):
        actions = decide(there, settings, NOW)
        indexes = [action.process.index for action in actions if not isinstance(action, Start)]
        numbers = [(a.role, a.number) for a in actions if isinstance(a, Start)]
        assert len(set(indexes)) == len(indexes) and len(set(numbers)) == len(numbers), actions


def test_a_pause_is_kept_whatever_the_start_is_for() -> None:
    for there, settings in random_fleets(MANY, 7):
        for action in decide(there, settings, NOW):
            if isinstance(action, Start):
                assert there.not_before.get((action.role, action.number), NOW) <= NOW


def test_one_at_a_time_is_replaced_gently_and_its_successor_comes_first() -> None:
    seen = 0
    for there, settings in random_fleets(4 * MANY, 8):
        actions = decide(there, settings, NOW)
        gentle = [a for a in starts(actions) if a.reason is not None]
        seen += len(gentle)
        assert len(gentle) <= 1
        ready = [p for p in there.processes if p.is_staying and p.role is Role.WORKER and p.ready]
        for start in gentle:
            assert {p.number for p in ready} >= set(range(there.wanted)), "all are there"
            assert len([p for p in ready if p.number == start.number]) == 1
        for action in actions:
            if not isinstance(action, Stop) or action.process.role is not Role.WORKER:
                continue
            process = action.process
            if there.stop_by is None and process.number < there.wanted and action.reason is None:
                assert any(
                    p.number == process.number and p.generation > process.generation for p in ready
                )
            assert action.reason not in (Restart.RELOADED, Restart.RECYCLED)
    assert seen > MANY / 100


def test_when_all_are_degraded_none_is_replaced_for_it() -> None:
    for there, settings in random_fleets(MANY, 9):
        sick = [
            replace(p, levels=DEGRADED, degraded_since=NOW - 600, latest_due=None)
            for p in there.processes
        ]
        for action in decide(replace(there, processes=sick), settings, NOW):
            if isinstance(action, Start | Stop):
                assert action.reason is not Restart.DEGRADED


def test_a_fleet_to_which_nothing_happened_is_left_alone_by_any_limits() -> None:
    for there, settings in random_fleets(MANY, 10):
        calm = [worker(number, app=there.app, born=NOW) for number in range(there.wanted)]
        steward = replace(STEWARD, app=there.app)
        fine = FleetView(processes=[steward, *calm], wanted=there.wanted, app=there.app)
        assert decide(fine, settings, NOW) == []
