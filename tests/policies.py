"""Processes and fleets for the policy's tests, as values."""

from typing import Any

from cmdbus.board.health import HealthReport
from cmdbus.board.records import Restart, Role, Verdict
from cmdbus.settings import Settings
from cmdbus.supervisor.fleet_view import FleetView, ProcessView
from cmdbus.supervisor.policy import Action, Start, Stop, decide
from cmdbus.timeouts import Timeouts

NOW = 1_000.0
#: Just before a boundary.
MOMENT = 1e-6
SETTINGS = Settings(timeouts=Timeouts(thread=35, watchdog=60), drain_timeout=30)
LAYER_5 = 25.0
DEGRADED = HealthReport(consecutive_failures=11)
CRITICAL = HealthReport(stuck_threads=4)
EXHAUSTED = HealthReport(pool_exhaustions=6)
AWAY = HealthReport(database_away=True, stuck_threads=4, pool_exhaustions=6)

STEWARD = ProcessView(index=99, role=Role.STEWARD, number=0, generation=1, ready=True)


def worker(number: int = 0, **given: Any) -> ProcessView:
    given = {"index": number, "generation": 1, "ready": True, "due": NOW + 5, **given}
    return ProcessView(role=Role.WORKER, number=number, **given)


def fleet(*processes: ProcessView, **given: Any) -> FleetView:
    """With a steward that stays healthy."""
    numbers = {p.number for p in processes if p.role is Role.WORKER}
    given = {"wanted": max(numbers, default=-1) + 1, "processes": [STEWARD, *processes], **given}
    return FleetView(**given)


def decided(a_fleet: FleetView, settings: Settings = SETTINGS, now: float = NOW) -> list[Action]:
    return decide(a_fleet, settings, now)


def started(number: int, reason: Restart | None = None) -> Start:
    return Start(role=Role.WORKER, number=number, reason=reason)


def left(
    process: ProcessView,
    reason: Restart | None = None,
    by: float = NOW + 30,
    verdict: Verdict = Verdict.NONE,
) -> Stop:
    return Stop(process=process, by=by, reason=reason, verdict=verdict)


def starts(actions: list[Action], role: Role = Role.WORKER) -> list[Start]:
    return [a for a in actions if isinstance(a, Start) and a.role is role]
