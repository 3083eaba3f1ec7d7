"""`cmdbus ps --watch`."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest
from cli import CALL, environment_without_ours
from eventually import eventually
from ps_boards import supervised, taken

from cmdbus.board.board import Board
from cmdbus.board.counters import OutcomeLabel
from cmdbus.board.records import Role
from cmdbus.supervisor.runtime import board_path

#: It looks 20 times a second.
QUICK = f"from cmdbus.supervisor.cli import ps; ps._WATCH_SECONDS = 0.05; {CALL}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return board_path(tmp_path, "cmdbus")


@contextmanager
def watching(path: Path, out: IO[str] | int, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """Until Ctrl-C, which it takes well."""
    command = [sys.executable, "-c", QUICK, "ps", "--watch", *arguments, "--runtime-dir"]
    environment = {**environment_without_ours(), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, path.parent], stdout=out, stderr=out, text=True, env=environment
    ) as watcher:
        yield watcher
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(10) == 0


def test_watching_shows_the_pace_survives_another_board_and_ends_with_ctrl_c(
    place: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("w") as out, watching(place, out):
        eventually(lambda: "there is no board of 'cmdbus'" in log.read_text())
        with closing(Board.create(place, 2, 3)) as first:
            supervised(first)
            slot = taken(first, 0, Role.WORKER)
            command_type = first.seat(0).command_type("payments", "Debit")

            def counted() -> object:
                for end in (OutcomeLabel.COMPLETED, OutcomeLabel.TROUBLE):
                    slot.counters.ended(command_type.index, end, 100)
                return re.search(r"per second: \d+ completed, \d+ to trouble", log.read_text())

            eventually(counted)
        with closing(Board.create(place, 2, 3, name="second")) as second:
            supervised(second)
            eventually(lambda: "second: running" in log.read_text())
            place.unlink()
            watched = log.read_text().count("there is no board of 'cmdbus'")
            eventually(lambda: log.read_text().count("there is no board of 'cmdbus'") > watched)
    assert "Traceback" not in log.read_text()


def test_watching_as_json_prints_a_line_for_each_look(place: Path) -> None:
    with closing(Board.create(place, 2, 3)) as board:
        supervised(board)
        with watching(place, subprocess.PIPE, "--json") as watcher:
            assert watcher.stdout is not None
            for _ in range(2):
                assert json.loads(watcher.stdout.readline())["state"] == "running"
