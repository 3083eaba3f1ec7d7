"""What a supervisor reads about its processes, without a fleet that works."""

import time
from pathlib import Path
from uuid import uuid4

import pytest
from eventually import eventually

from cmdbus.board.board import Board
from cmdbus.board.seats import Ended, Role, Verdict
from cmdbus.settings import Settings
from cmdbus.supervisor.fleet import Company
from cmdbus.supervisor.policy import Kill, Start

pytestmark = pytest.mark.process

NS = 1_000_000_000


def test_what_begins_while_the_supervisor_stalls_is_not_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read its clock, stood still, and then read the board."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hanging.py").write_text("import threading; threading.Event().wait()")
    board = Board.in_memory(8, 4)
    company = Company(Settings(app="hanging:registry", dsn="host=nowhere"), board, tmp_path)
    company.act(Start(role=Role.WORKER, number=0), time.monotonic())
    eventually(lambda: company.look(time.monotonic(), judging=True, stop_by=None).processes[0].due)
    before_the_stall = time.monotonic() - 5.0
    began = time.monotonic_ns()
    board.seat(0).slot(0).begin(
        board.seat(0).kind("payments", "Debit"),
        priority=5,
        id=1,
        token=1,
        command_id=uuid4(),
        attempt=1,
        started=began,
        due=began + 35 * NS,
    )
    [process] = company.look(before_the_stall, judging=True, stop_by=None).processes
    assert process.latest_due == pytest.approx(began / NS + 35)
    company.act(Kill(process=process, verdict=Verdict.LATE), time.monotonic())
    eventually(
        lambda: not company.look(time.monotonic(), judging=True, stop_by=time.monotonic()).processes
    )
    company.close()


def test_the_last_place_is_kept_for_a_steward_that_frees_those_of_the_dead(tmp_path: Path) -> None:
    board = Board.in_memory(4, 4)
    company = Company(Settings(app="none:registry", dsn="host=nowhere"), board, tmp_path)
    places: list[int | None] = []
    for place in range(4):
        places.append(company._free_place(Role.WORKER))
        board.seat(place).bury(0, Ended(generation=1, pid=1, signal=9), now=1)
        if place == 2:
            assert company._free_place(Role.STEWARD) == 3
    assert places == [0, 1, 2, None]
    assert company._free_place(Role.STEWARD) is None
    company.close()
