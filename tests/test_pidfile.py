"""One supervisor of a name: the lock decides, whatever the file says."""

import os
import re
import signal
import threading
from contextlib import closing, suppress
from errno import ENOLCK
from pathlib import Path

import pytest
from forbidden_calls import FLOCK, forbid
from forks import result_of_child

from cmdbus.board.board import Board
from cmdbus.board.records import SupervisorState
from cmdbus.errors import BoardError
from cmdbus.exits import ExitStatus
from cmdbus.supervisor.children import fork, wait
from cmdbus.supervisor.host import NameTakenError, Pidfile, check_free


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cmdbus.pid"


def test_a_pidfile_holds_its_processs_id_and_is_removed_at_the_end(path: Path) -> None:
    with closing(Pidfile(path, "cmdbus")):
        assert path.read_text() == f"{os.getpid()}\n"
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


@pytest.mark.parametrize(
    "left", ["", "1\n", f"{os.getppid()}\n", "999999999\n", "garbage", "\0\0\n", "x" * 10_000]
)
def test_what_an_earlier_process_left_in_a_pidfile_is_no_obstacle(path: Path, left: str) -> None:
    """Neither garbage nor the number of a program that lives."""
    path.write_text(left)
    with closing(Pidfile(path, "cmdbus")):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_second_supervisor_is_refused_with_the_pid_of_the_first(path: Path) -> None:
    with closing(Pidfile(path, "shop")):
        sentence = f"a supervisor named 'shop' runs already (pid {os.getpid()}): stop it, or "
        with pytest.raises(BoardError, match=re.escape(sentence)):
            Pidfile(path, "shop")
        assert path.read_text() == f"{os.getpid()}\n"
    with closing(Pidfile(path, "shop")):
        pass


def test_a_directory_in_which_no_file_can_be_locked_is_refused(path: Path) -> None:
    """As NFS does without its lock server."""

    def refusal() -> str:
        forbid(FLOCK, ENOLCK)
        try:
            Pidfile(path, "shop")
        except BoardError as error:
            return str(error)
        return "locked"

    assert result_of_child(refusal) == (
        f"{path} cannot be locked: No locks available; choose a --runtime-dir on another file "
        f"system"
    )


def test_garbage_in_a_locked_one_is_not_shown(path: Path) -> None:
    with closing(Pidfile(path, "shop")):
        path.write_bytes(b"\x1b[31m\xff")
        with pytest.raises(BoardError, match=r"\(pid unknown\)"):
            Pidfile(path, "shop")


def test_a_removed_one_is_put_back_with_its_lock_under_the_same_descriptor(path: Path) -> None:
    with closing(Pidfile(path, "shop")) as pidfile:
        path.unlink()
        before = pidfile.descriptors
        pidfile.keep()
        assert pidfile.descriptors == before
        assert not os.get_inheritable(pidfile.descriptor)
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(BoardError, match="runs already"):
            Pidfile(path, "shop")
    assert not path.exists()


def test_a_kept_one_and_its_board_do_not_get_old(tmp_path: Path, path: Path) -> None:
    board = tmp_path / "cmdbus.board"
    Board.create(board, seats=1, slots=1).close()
    with closing(Pidfile(path, "shop")) as pidfile:
        pidfile.hold_board(board)
        for file in (path, board):
            os.utime(file, (1, 1))
        pidfile.keep()
        assert min(path.stat().st_mtime, board.stat().st_mtime) > 1_000_000


def test_one_that_another_supervisor_has_made_meanwhile_is_left_to_it(path: Path) -> None:
    with closing(Pidfile(path, "shop")) as first:
        path.unlink()
        with closing(Pidfile(path, "shop")) as second:
            with pytest.raises(NameTakenError):
                first.keep()
            second.keep()
            assert os.path.samestat(path.stat(), os.fstat(second.descriptor))


def test_a_board_that_is_held_is_not_free_whatever_became_of_the_pidfile(
    tmp_path: Path, path: Path
) -> None:
    at = tmp_path / "cmdbus.board"
    check_free(at, "shop")
    with closing(Board.create(at, seats=1, slots=1)) as board:
        board.supervise(pid=os.getpid(), state=SupervisorState.RUNNING, since=1, due=1)
        with closing(Pidfile(path, "shop")) as pidfile:
            pidfile.hold_board(at)
            path.unlink()
            with pytest.raises(NameTakenError, match=rf"\(pid {os.getpid()}\)"):
                check_free(at, "shop")
        check_free(at, "shop")


def test_a_check_of_the_name_never_refuses_a_supervisor_that_starts(path: Path) -> None:
    """Nor one that puts its removed pidfile back."""
    over = threading.Event()

    def check() -> None:
        while not over.is_set():
            with suppress(NameTakenError):
                check_free(path, "shop")

    checker = threading.Thread(target=check)
    checker.start()
    try:
        for _ in range(200):
            with closing(Pidfile(path, "shop")) as pidfile:
                path.unlink()
                pidfile.keep()
    finally:
        over.set()
        checker.join()


@pytest.mark.parametrize("name", ["missing/cmdbus.pid", ".", "link"])
def test_what_cannot_be_a_pidfile_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(BoardError, match=re.escape(f"{tmp_path / name} cannot be opened: ")):
        Pidfile(tmp_path / name, "cmdbus")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.process
def test_the_lock_of_one_that_was_killed_is_free(path: Path) -> None:
    """Although its file is still there."""
    reader, writer = os.pipe()

    def run() -> int:
        Pidfile(path, "cmdbus")
        os.write(writer, b"!")
        signal.pause()
        return 0

    child = fork(run, close=[reader])
    os.close(writer)
    with os.fdopen(reader) as notices:
        assert notices.read(1) == "!"
        with pytest.raises(BoardError, match=rf"\(pid {child.pid}\)"):
            Pidfile(path, "cmdbus")
        child.send(signal.SIGKILL)
        wait([child.descriptor], 10)
        assert child.reap() == ExitStatus(signal.SIGKILL, 0)
    with closing(Pidfile(path, "cmdbus")):
        assert path.read_text() == f"{os.getpid()}\n"


@pytest.mark.process
def test_a_child_that_has_closed_it_does_not_hold_it(path: Path) -> None:
    pidfile = Pidfile(path, "cmdbus")

    def wait_for_ever() -> int:
        signal.pause()
        return 0

    child = fork(wait_for_ever, close=[pidfile.descriptor])
    try:
        pidfile.close()
        with closing(Pidfile(path, "cmdbus")):
            pass
    finally:
        child.send(signal.SIGKILL)
        wait([child.descriptor], 10)
        child.reap()


@pytest.mark.process
def test_a_child_that_a_killed_one_had_just_forked_is_waited_for(path: Path) -> None:
    """It has not closed the pidfile yet; and a refusal would be final."""
    notices, teller = os.pipe()
    kept, keeper = os.pipe()

    def run() -> int:
        Pidfile(path, "cmdbus")
        if os.fork() == 0:
            os.close(keeper)
            os.write(teller, b"!")
            os.read(kept, 1)  # until the other end is closed
        else:
            signal.pause()
        return 0

    child = fork(run, close=[notices])
    for descriptor in (teller, kept):
        os.close(descriptor)
    with os.fdopen(notices) as reader:
        assert reader.read(1) == "!"
        child.send(signal.SIGKILL)
        wait([child.descriptor], 10)
        os.waitid(os.P_PIDFD, child.descriptor, os.WEXITED)  # and its group lives on
        os.close(child.descriptor)
        releases = threading.Timer(0.2, lambda: os.close(keeper))
        releases.start()
        with closing(Pidfile(path, "cmdbus")):
            assert path.read_text() == f"{os.getpid()}\n"
        releases.join()


def test_one_whose_directory_was_removed_closes_and_leaves_the_next_ones_file(path: Path) -> None:
    first = Pidfile(path, "cmdbus")
    path.unlink()
    second = Pidfile(path, "cmdbus")
    first.close()
    assert path.read_text() == f"{os.getpid()}\n"
    path.unlink()
    path.parent.rmdir()
    second.close()


@pytest.mark.process
def test_of_processes_that_race_for_a_pidfile_never_two_hold_it(path: Path, tmp_path: Path) -> None:
    """Each of four takes it 100 times, while the others do; no two hold it at a time."""
    alone = tmp_path / "alone"

    def race() -> int:
        for _ in range(100):
            pidfile = None
            while pidfile is None:
                with suppress(BoardError):
                    pidfile = Pidfile(path, "cmdbus")
            alone.touch(exist_ok=False)
            alone.unlink()
            pidfile.close()
        return 0

    racers = [fork(race, close=[]) for _ in range(4)]
    ends = []
    for racer in racers:
        wait([racer.descriptor], 20)
        racer.send(signal.SIGKILL)
        wait([racer.descriptor], 5)
        ends.append(racer.reap())
    assert ends == [ExitStatus(0, 0)] * 4
    assert not path.exists()


def test_a_pipe_in_the_place_of_a_file_is_refused_without_waiting_for_its_writer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.pid"
    os.mkfifo(path)
    for use in (Pidfile, check_free):
        with pytest.raises(BoardError, match="is no ordinary file"):
            use(path, "shop")
