"""The board's file: garbage in it, full memory, other owners, other boots."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from boards import begin, is_of_one_write, slot_view, taken
from eventually import eventually
from forks import forked

from cmdbus.board.board import Board
from cmdbus.board.layout import CELL, HEAD, HEAD_CELLS, SLOT_AT, VERSION
from cmdbus.errors import BoardError


def test_garbage_is_shown_as_unknown_and_breaks_no_reader(tmp_path: Path) -> None:
    dice = random.Random(3)
    board = Board.create(tmp_path / "board", seats=2, slots=2, command_types=2)
    size, head = board.layout.size, HEAD_CELLS * CELL
    for _ in range(30):
        seat = taken(board)
        slot = seat.slot(0)
        slot.occupy(0, now=1)
        begin(slot, seat, 1)
        with (tmp_path / "board").open("r+b") as file:
            if dice.random() < 0.5:
                file.seek(HEAD.size)
                file.write(dice.randbytes(size - HEAD.size))
            for _ in range(1_000):
                file.seek(dice.randrange(head, size - CELL))
                file.write(dice.randbytes(CELL))
        json.dumps(board.snapshot().to_dict(now=1))
        board.counters()
        begin(slot, seat, 2)
        board.seat(0).slot(1).occupy(1, now=1)
    board.close()


def test_a_slot_with_one_wrong_bit_is_unknown_until_it_is_written_again(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "board", seats=1, slots=1)
    seat = taken(board)
    slot = seat.slot(0)
    slot.occupy(0, now=1)
    begin(slot, seat, 1)
    with (tmp_path / "board").open("r+b") as file:
        file.seek((board.layout.slot(0, 0) + SLOT_AT + 3) * CELL)
        file.write(b"\x40")
    view = board.snapshot().seats[0].slots[0]
    assert (view.phase, view.command, view.due, view.sequence) == (None, None, None, 0)
    begin(slot, seat, 2)
    assert is_of_one_write(slot_view(board, 0, 0))
    board.close()


@pytest.mark.process
def test_a_board_is_read_after_its_writers_are_dead(tmp_path: Path) -> None:
    path = tmp_path / "board"

    def work() -> None:
        board = Board.create(path, seats=1, slots=1, name="flight")
        seat = taken(board)
        slot = seat.slot(0)
        slot.occupy(0, now=1)
        begin(slot, seat, 17)
        (tmp_path / "written").touch()
        signal.pause()

    with forked(work) as pid:
        eventually((tmp_path / "written").exists)
        os.kill(pid, signal.SIGKILL)
    board = Board.open(path)
    view = board.snapshot()
    assert (view.name, view.this_boot, view.seats[0].pid) == ("flight", True, pid)
    assert is_of_one_write(view.seats[0].slots[0])
    with pytest.raises(TypeError):
        board.armed = 1
    board.close()


def test_the_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    for mask in (0o000, 0o777):
        before = os.umask(mask)
        try:
            Board.create(tmp_path / "board", seats=1, slots=1).close()
        finally:
            os.umask(before)
        assert (tmp_path / "board").stat().st_mode & 0o7777 == 0o600
        assert [path.name for path in tmp_path.iterdir()] == ["board"]


def test_a_new_board_replaces_the_old_one_which_its_readers_keep(tmp_path: Path) -> None:
    path = tmp_path / "board"
    old = Board.create(path, seats=1, slots=1, name="old")
    (tmp_path / ".board.new").write_text("left by a maker that was killed")
    new = Board.create(path, seats=2, slots=2, name="new")
    reader = Board.open(path)
    assert (old.snapshot().name, reader.snapshot().name) == ("old", "new")
    for each in (old, new, reader):
        each.close()


def test_space_is_reserved_when_the_board_is_made(tmp_path: Path) -> None:
    """Not by SIGBUS later."""
    board = Board.create(tmp_path / "board", seats=1, slots=2)
    assert (tmp_path / "board").stat().st_blocks * 512 >= board.layout.size
    board.close()


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small memory file system: needs root")
def test_a_full_memory_file_system_is_refused_when_the_board_is_made(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(BoardError, match=r"No space left on device.*--runtime-dir"):
            Board.create(tmp_path / "board", seats=4, slots=8)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_place_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="missing/board: No such file"):
        Board.create(tmp_path / "missing" / "board", seats=1, slots=1)
    with pytest.raises(BoardError, match="missing cannot be read: No such file"):
        Board.open(tmp_path / "missing")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda raw: b"", "it is empty"),
        (lambda raw: raw[:20], "only 20 bytes"),
        (lambda raw: b"#" * len(raw), "something else"),
        (
            lambda raw: raw[:8] + (VERSION + 1).to_bytes(8, "little") + raw[16:],
            f"version {VERSION + 1}, .* knows {VERSION}",
        ),
        (lambda raw: raw[:16] + (5).to_bytes(8, "little") + raw[24:], "damaged"),
        (lambda raw: raw[:16] + (-5).to_bytes(8, "little", signed=True) + raw[24:], "damaged"),
        (lambda raw: raw[:-8], "damaged"),
    ],
)
def test_what_is_no_board_is_refused_with_what_is_wrong(
    tmp_path: Path, spoil: Callable[[bytes], bytes], says: str
) -> None:
    path = tmp_path / "board"
    Board.create(path, seats=1, slots=1).close()
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BoardError, match=says):
        Board.open(path)


def test_neither_a_pipe_nor_a_link_nor_a_directory_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    Board.create(tmp_path / "board", seats=1, slots=1).close()
    (tmp_path / "link").symlink_to(tmp_path / "board")
    for name in ("pipe", "link", "."):
        with pytest.raises(BoardError):
            Board.open(tmp_path / name)


def test_a_board_of_another_boot_says_so(tmp_path: Path) -> None:
    path = tmp_path / "board"
    Board.create(path, seats=1, slots=1).close()
    raw = path.read_bytes()
    path.write_bytes(raw[: HEAD.size - 16] + bytes(16) + raw[HEAD.size :])
    board = Board.open(path)
    assert not board.snapshot().this_boot
    board.close()
