"""Boards of dead supervisors, and the claims of their processes."""

import os
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from cmdbus.board.board import Board
from cmdbus.board.records import Role, SupervisorState
from cmdbus.board.views import SeatView
from cmdbus.timeouts import RESCUE_SECONDS
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.steward.rescue import Rescued
from cmdbus.worker.steward.stale_boards import StaleBoards
from cmdbus.worker.steward.steward import ROUND_SECONDS

#: A process id that no system gives.
NOBODY = 2**22 - 1


def leave_a_board(path: Path, incarnation: int, pid: int = NOBODY) -> None:
    board = Board.create(path, seats=1, slots=2)
    now = time.monotonic_ns()
    board.supervise(pid=NOBODY, state=SupervisorState.RUNNING, since=now, due=now, wanted=1)
    seat = board.seat(0)
    seat.assign(Role.WORKER, number=0, generation=1)
    seat.enter(pid=pid, generation=1, now=time.monotonic_ns())
    seat.register(incarnation)
    board.close()


def test_a_board_whose_sessions_do_not_end_is_tried_again(dsn: str, tmp_path: Path) -> None:
    """Nothing is released before the sessions of the dead are gone."""
    answers, asked = [False, True], []

    def hand_back(connection: Connection, seat: SeatView) -> Rescued:
        asked.append((seat.incarnation, seat.pid))
        return Rescued(sessions_ended=answers.pop(0))

    with psycopg.connect(dsn, autocommit=True) as connection:
        path = tmp_path / "cmdbus.board.17"
        leave_a_board(path, 2**62)
        (tmp_path / "cmdbus.board.else").touch()
        stale_boards = StaleBoards(tmp_path, "cmdbus", hand_back)
        assert 0 < stale_boards.run(connection) < 60
        assert path.exists()
        assert 0 < stale_boards.run(connection) < 60
        assert len(asked) == 1, "it is not yet time to try again"
        stale_boards.due_at = 0.0
        assert stale_boards.run(connection) == float("inf")
        assert not path.exists()
        assert stale_boards.supervisors == {NOBODY}
    assert asked == [(2**62, NOBODY)] * 2


def test_sessions_that_do_not_end_hold_up_neither_other_boards_nor_the_steward(
    dsn: str, tmp_path: Path
) -> None:
    released: list[int] = []

    def release(connection: Connection, seat: SeatView) -> Rescued:
        if seat.incarnation == 3:
            released.append(seat.incarnation)
            return Rescued()
        connection.execute("SELECT pg_sleep(%s)", (RESCUE_SECONDS / 2,))
        return Rescued(sessions_ended=False)

    def took(place: Path) -> float:
        released.clear()
        place.mkdir()
        for number in (1, 2, 3):
            leave_a_board(place / f"cmdbus.board.{number}", number)
        stale_boards = StaleBoards(place, "cmdbus", release)
        began = time.monotonic()
        assert stale_boards.run(connection) > 0
        seconds = time.monotonic() - began
        assert released == [], "the time was over before"
        stale_boards.due_at = 0.0
        assert stale_boards.run(connection) == 0.0, "the next try goes on with the others"
        assert released == [3]
        return seconds

    with psycopg.connect(dsn, autocommit=True) as connection:
        # The best of three, as a busy machine may delay one.
        assert any(took(tmp_path / str(n)) < ROUND_SECONDS / 2 for n in range(3))


@pytest.mark.process
def test_what_a_living_process_holds_is_not_handed_back_before_it_is_gone(
    dsn: str, tmp_path: Path
) -> None:
    asked = []

    def hand_back(connection: Connection, seat: SeatView) -> Rescued:
        asked.append(seat.pid)
        return Rescued()

    path = tmp_path / "cmdbus.board.17"
    with (
        subprocess.Popen(["sleep", "60"]) as living,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        leave_a_board(path, 2**62, living.pid)
        stale_boards = StaleBoards(tmp_path, "cmdbus", hand_back)
        assert 0 < stale_boards.run(connection) < 60
        assert asked == [] and path.exists()
        living.kill()
        living.wait()
        stale_boards.due_at = 0.0
        assert stale_boards.run(connection) == float("inf")
        assert asked == [living.pid] and not path.exists()


def test_what_is_no_board_is_left_for_a_day_and_not_tried_again(
    dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The board of another version is none."""
    young, old = tmp_path / "cmdbus.board.17", tmp_path / "cmdbus.board.18"
    for path in (young, old):
        path.write_bytes(b"no board")
    before = time.time() - 86400
    os.utime(old, (before, before))
    with psycopg.connect(dsn, autocommit=True) as connection:
        stale_boards = StaleBoards(tmp_path, "cmdbus", lambda *_: Rescued())
        assert stale_boards.run(connection) == float("inf")
    assert caplog.text.count("can be claimed again when their leases end") == 1
    assert young.exists() and not old.exists()
