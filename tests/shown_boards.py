"""A board in memory with a supervisor and processes, for what is shown of it."""

from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from cmdbus.board.board import Board
from cmdbus.board.health import HealthReport
from cmdbus.board.records import Role, SupervisorState
from cmdbus.board.seats import Seat
from cmdbus.worker.probes.exposition import render
from cmdbus.worker.probes.responses import Gauges

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
AWAY = HealthReport(database_away=True)


def show(
    board: Board, state: SupervisorState = SupervisorState.RUNNING, due: int = NOW + SECOND
) -> None:
    board.supervise(pid=10, state=state, since=1, due=due, wanted=2)


def worker(board: Board, number: int, levels: HealthReport = HealthReport(), **more: Any) -> Seat:  # noqa: B008
    return process(board, Role.WORKER, number, number, levels, **more)


def process(
    board: Board,
    role: Role,
    index: int,
    number: int,
    levels: HealthReport = HealthReport(),  # noqa: B008
    *,
    is_ready: bool = True,
    due: int = NOW + SECOND,
    since: int = 1,
) -> Seat:
    seat = board.seat(index)
    seat.assign(role, number=number, generation=1)
    seat.enter(pid=100 + index, generation=1, now=since)
    if is_ready:
        seat.ready(since)
    seat.beat(due, levels)
    return seat


def families(board: Board, depths: dict[tuple[str, str], int] | None = None) -> dict[str, Metric]:
    return families_of(render(board.snapshot(), board.counters(), Gauges(depths)))


def families_of(page: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page)}


def values(family: Metric, name: str = "") -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for sample in family.samples
        if sample.name.endswith(name)
    }
