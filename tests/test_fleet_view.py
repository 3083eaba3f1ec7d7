"""What a supervisor reads about its processes, without a fleet that works."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from eventually import eventually

from cmdbus.board.board import Board
from cmdbus.board.records import ExitRecord, Role, Verdict
from cmdbus.settings import Settings
from cmdbus.supervisor.fleet import Fleet
from cmdbus.supervisor.fleet_view import ProcessView
from cmdbus.supervisor.policy import Kill, Start
from cmdbus.supervisor.processes import Spawner
from cmdbus.supervisor.stacks import Stacks

pytestmark = pytest.mark.process

NS = 1_000_000_000


@contextmanager
def new_fleet(app: str, board: Board, stacks: Path) -> Iterator[Fleet]:
    settings = Settings(app=app, dsn="host=nowhere")
    with closing(Spawner(settings, board, Stacks(stacks))) as spawner:
        yield Fleet(settings, board, spawner)


def test_what_begins_while_the_supervisor_stalls_is_not_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began its round, stalled, and then read the board."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hanging.py").write_text("import threading; threading.Event().wait()")
    board = Board.in_memory(8, 4)
    with new_fleet("hanging:registry", board, tmp_path) as fleet:
        fleet.act(Start(role=Role.WORKER, number=0), time.monotonic())
        eventually(lambda: fleet.observe().processes[0].due)
        began = time.monotonic_ns()
        board.seat(0).slot(0).begin(
            board.seat(0).command_type("payments", "Debit"),
            priority=5,
            id=1,
            token=1,
            command_id=uuid4(),
            attempt=1,
            started=began,
            due=began + 35 * NS,
        )
        [process] = fleet.observe().processes
        assert process.latest_due == pytest.approx(began / NS + 35)
        fleet.act(Kill(process=process, verdict=Verdict.LATE), time.monotonic())
        fleet.stopping = True

        def left() -> Sequence[ProcessView]:
            fleet.reap(time.monotonic())
            return fleet.observe().processes

        eventually(lambda: not left())


def test_the_last_place_is_kept_for_a_steward_that_frees_those_of_the_dead(tmp_path: Path) -> None:
    board = Board.in_memory(4, 4)
    with new_fleet("none:registry", board, tmp_path) as fleet:
        indexes: list[int | None] = []
        for index in range(4):
            indexes.append(fleet._free_index(Role.WORKER))
            board.seat(index).record_exit(0, ExitRecord(generation=1, pid=1, signal=9))
            if index == 2:
                assert fleet._free_index(Role.STEWARD) == 3
        assert indexes == [0, 1, 2, None]
        assert fleet._free_index(Role.STEWARD) is None
