"""Boards of dead supervisors, and what their processes held."""

import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from cmdbus.board.board import Board
from cmdbus.board.records import ExitRecord, Role
from cmdbus.board.views import SeatView
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.steward.stale_boards import StaleBoards

pytestmark = pytest.mark.db

#: A process id that no system gives.
NOBODY = 2**22 - 1


def leave_a_board(path: Path, incarnation: int, pid: int = NOBODY) -> None:
    board = Board.create(path, seats=1, slots=2)
    seat = board.seat(0)
    seat.assign(Role.WORKER, number=0, generation=1, now=1)
    seat.enter(pid=pid, generation=1, now=time.monotonic_ns())
    seat.register(incarnation)
    board.close()


def test_a_board_whose_sessions_do_not_end_is_tried_again(dsn: str, tmp_path: Path) -> None:
    """races.md 7: nothing is handed back before the sessions of the dead are gone."""
    answers, asked = [False, True], []

    def hand_back(connection: Connection, seat: SeatView, exit_record: ExitRecord) -> bool:
        asked.append((seat.incarnation, exit_record.pid))
        return answers.pop(0)

    with psycopg.connect(dsn, autocommit=True) as connection:
        path = tmp_path / "cmdbus.board.17"
        leave_a_board(path, 2**62)
        (tmp_path / "cmdbus.board.else").touch()
        left_behind = StaleBoards(tmp_path, "cmdbus", hand_back)
        assert left_behind.wait() == 0
        left_behind.rescue(lambda: connection)
        assert path.exists()
        assert 0 < left_behind.wait() < 60
        left_behind.rescue(lambda: connection)
        assert not path.exists()
        assert left_behind.wait() == float("inf")
    assert asked == [(2**62, NOBODY)] * 2


@pytest.mark.process
def test_what_a_living_process_holds_is_not_handed_back_before_it_is_gone(
    dsn: str, tmp_path: Path
) -> None:
    asked = []

    def hand_back(connection: Connection, seat: SeatView, exit_record: ExitRecord) -> bool:
        asked.append(seat.pid)
        return True

    path = tmp_path / "cmdbus.board.17"
    with (
        subprocess.Popen(["sleep", "60"]) as living,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        leave_a_board(path, 2**62, living.pid)
        left_behind = StaleBoards(tmp_path, "cmdbus", hand_back)
        left_behind.rescue(lambda: connection)
        assert asked == [] and path.exists()
        living.kill()
        living.wait()
        left_behind.rescue(lambda: connection)
        assert asked == [living.pid] and not path.exists()


def test_what_is_no_board_is_left_and_not_tried_again(
    dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cmdbus.board.17"
    path.write_bytes(b"no board")
    with psycopg.connect(dsn, autocommit=True) as connection:
        left_behind = StaleBoards(tmp_path, "cmdbus", lambda *_: False)
        left_behind.rescue(lambda: connection)
    assert "claimable when its leases end" in caplog.text
    assert path.exists()
    assert left_behind.wait() == float("inf")


def test_without_a_database_it_is_not_tried_again_at_once(tmp_path: Path) -> None:
    """Whoever waits for it would do nothing else meanwhile."""

    def connect() -> Connection:
        raise psycopg.OperationalError("away")

    (tmp_path / "cmdbus.board.17").touch()
    left_behind = StaleBoards(tmp_path, "cmdbus", lambda *_: True)
    with pytest.raises(psycopg.OperationalError):
        left_behind.rescue(connect)
    assert 0 < left_behind.wait() < 60
