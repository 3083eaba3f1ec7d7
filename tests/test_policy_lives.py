"""What the supervisor decides, over the lives of fleets whose processes hang, die and recover at
random.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

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

from cmdbus.board.health import Health, HealthReport
from cmdbus.board.records import Restart, Role
from cmdbus.settings import Settings
from cmdbus.supervisor.fleet_view import FleetView, ProcessView
from cmdbus.supervisor.policy import MAX_SURGE, Action, Dump, Kill, Start, Stop, decide
from cmdbus.timeouts import Timeouts


@dataclass
class World:
    """Acts out what is decided, over processes that hang, die, recover and take their time."""

    dice: random.Random
    settings: Settings
    wanted: int
    processes: dict[int, ProcessView] = field(default_factory=dict)
    app: int = 0
    now: float = 0.0
    stop_by: float | None = None
    judging: bool = True
    generations: int = 0
    #: Of each process: it misses its deadlines; it cannot die.
    hung: set[int] = field(default_factory=set)
    undead: set[int] = field(default_factory=set)
    lowest: list[int] = field(default_factory=list)

    def fleet(self) -> FleetView:
        return FleetView(
            processes=list(self.processes.values()),
            wanted=self.wanted,
            app=self.app,
            stop_by=self.stop_by,
            detects_hangs=self.judging,
        )

    def turn(self) -> None:
        for index in list(self.processes):
            self._live(index)
        there = self.fleet()
        actions = decide(there, self.settings, self.now)
        for action in actions:
            self._act(action)
        self._check(there, actions)
        self.now += self.dice.choice([0.01, 0.1, 1.0])

    def _live(self, index: int) -> None:
        process = self.processes[index]
        if process.killed_at is not None:
            if index not in self.undead and self.dice.random() < 0.7:
                del self.processes[index]
            return
        if index in self.hung:
            return
        process = replace(process, due=self.now + 2)
        if not process.ready and self.dice.random() < 0.5:
            process = replace(process, ready=True)
        if process.stop_by is not None and self.dice.random() < 0.2:
            del self.processes[index]
            return
        self.processes[index] = process

    def _act(self, action: Action) -> None:
        match action:
            case Start():
                self.generations += 1
                self.processes[self.generations] = ProcessView(
                    index=self.generations,
                    role=action.role,
                    number=action.number,
                    generation=self.generations,
                    app=self.app,
                    born=self.now,
                    due=self.now + 30,
                )
            case Stop():
                self._mark(action.process.index, stop_by=action.by)
            case Dump():
                self._mark(action.process.index, dumped_at=self.now)
            case Kill():
                self._mark(action.process.index, killed_at=self.now)

    def _mark(self, index: int, **given: Any) -> None:
        self.processes[index] = replace(self.processes[index], **given)

    def _check(self, there: FleetView, actions: list[Action]) -> None:
        alive = [p for p in self.processes.values() if p.is_alive(self.now)]
        assert sum(p.role is Role.STEWARD for p in alive) <= 1
        workers = [p for p in alive if p.role is Role.WORKER and p.number < self.wanted]
        assert len(workers) <= self.wanted + MAX_SURGE or not starts(actions)
        if there.stop_by is not None:
            assert not starts(actions)

    @property
    def serving(self) -> list[ProcessView]:
        return [
            p
            for index, p in self.processes.items()
            if p.role is Role.WORKER and p.is_staying and p.ready and index not in self.hung
        ]

    def hurt(self) -> None:
        """Something happens to a process."""
        if not self.processes:
            return
        index = self.dice.choice(list(self.processes))
        match self.dice.randrange(5):
            case 0:
                del self.processes[index]
            case 1:
                self.hung.add(index)
            case 2:
                self.hung.add(index)
                self.undead.add(index)
            case 3:
                self._mark(index, latest_due=self.now - LAYER_5)
            case 4:
                self.processes[index] = replace(self.processes[index], levels=CRITICAL)

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
    """Nothing that time does not heal."""
    dice = random.Random(seed)
    world = World(dice, SETTINGS, dice.randint(1, 5))
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


def test_a_reload_takes_no_worker_away() -> None:
    """Each successor starts first."""
    for seed in range(20):
        world = World(random.Random(seed), SETTINGS, 4)
        world.settle()
        world.app = 1
        fewest = 4
        while any(p.app == 0 for p in world.processes.values()):
            world.turn()
            fewest = min(fewest, len(world.serving))
        assert fewest == 4


def test_health_is_what_the_policy_reads_of_it() -> None:
    """What the fleets above call degraded and critical is that."""
    health = [levels.health for levels in (DEGRADED, CRITICAL, EXHAUSTED, AWAY)]
    assert health == [
        Health.DEGRADED,
        Health.CRITICAL,
        Health.CRITICAL,
        Health.DATABASE_AWAY,
    ]


def test_a_process_that_alone_cannot_reach_the_database_is_replaced() -> None:
    """Out of descriptors, say: another one had success since, or the steward goes on working."""
    away = worker(levels=HealthReport(database_away=True), degraded_since=NOW - 100)
    idle = worker(1)
    works = worker(1, levels=HealthReport(last_success=NOW - 50))
    before = worker(1, levels=HealthReport(last_success=NOW - 150))
    lost = replace(STEWARD, levels=HealthReport(database_away=True))

    def replaced(*processes: ProcessView) -> bool:
        actions = decide(FleetView(processes=processes, wanted=2), SETTINGS, NOW)
        return Start(role=Role.WORKER, number=0, reason=Restart.DEGRADED) in actions

    assert replaced(away, works, lost)
    assert replaced(away, idle, STEWARD)
    assert not replaced(away, idle, lost)
    assert not replaced(away, before, lost)
    assert not replaced(away, replace(works, away_at=NOW - 59), lost), "it has only just returned"
    rungs = Timeouts(statement=1, pool=1, lease=2, thread=3, watchdog=5)
    hasty = replace(SETTINGS, timeouts=rungs)
    soon = replace(away, degraded_since=NOW - 6)
    actions = decide(FleetView(processes=(soon, idle, STEWARD), wanted=2), hasty, NOW)
    assert actions == [], "it may not have noticed yet"
