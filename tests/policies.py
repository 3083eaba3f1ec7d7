"""Processes and fleets for the policy's tests, as values."""

from typing import Any

from cmdbus.board.health import Levels
from cmdbus.board.seats import Role, Verdict
from cmdbus.board.views import Restart
from cmdbus.supervisor.policy import (
    Action,
    Fleet,
    Leave,
    Limits,
    Process,
    Start,
    decide,
)

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


def left(
    process: Process,
    reason: Restart | None = None,
    by: float = NOW + 30,
    verdict: Verdict = Verdict.NONE,
) -> Leave:
    return Leave(process=process, by=by, reason=reason, verdict=verdict)


def starts(actions: list[Action], role: Role = Role.WORKER) -> list[Start]:
    return [a for a in actions if isinstance(a, Start) and a.role is role]
