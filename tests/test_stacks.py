"""The files of stacks: the latest of what was written, and never a wait."""

import os
from pathlib import Path

import pytest

from cmdbus.board.stack_files import MAX_BYTES, make_room, open_stacks, read_stacks, size_of


def test_what_was_written_since_a_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "0"
    descriptor = open_stacks(path)
    os.write(descriptor, b"first\n")
    before = size_of(path)
    os.write(descriptor, b"second\n")
    assert (read_stacks(path), read_stacks(path, before)) == ("first\nsecond", "second")
    os.close(open_stacks(path))
    os.write(descriptor, b"third\n")
    os.close(descriptor)
    assert read_stacks(path, 1000).endswith("third"), "it was emptied meanwhile"


def test_of_a_file_without_end_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.touch()
    os.truncate(path, 1 << 36)
    with path.open("ab") as file:
        file.write(b"the latest")
    stacks = read_stacks(path)
    assert stacks.endswith("the latest") and len(stacks) <= MAX_BYTES


def test_a_file_that_is_large_is_emptied_before_more_stacks_are_written(tmp_path: Path) -> None:
    path = tmp_path / "0"
    descriptor = open_stacks(path)
    for size, left in ((MAX_BYTES, MAX_BYTES), (1, 0)):
        os.write(descriptor, b"x" * size)
        make_room(path)
        assert size_of(path) == left
    os.write(descriptor, b"the latest")
    os.close(descriptor)
    assert path.read_bytes() == b"the latest"
    make_room(tmp_path / "missing")


def test_a_file_that_cannot_be_read_has_no_stacks() -> None:
    """The supervisor must not end by it."""
    path = Path("/sys/class/net/lo/speed")
    with pytest.raises(OSError):
        path.read_bytes()
    assert read_stacks(path) == ""


def test_a_pipe_is_not_waited_for_and_a_link_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_text("a secret")
    for name in ("pipe", "link"):
        assert read_stacks(tmp_path / name) == ""
        with pytest.raises(OSError):
            open_stacks(tmp_path / name)
    assert read_stacks(tmp_path / "missing") == "" and size_of(tmp_path / "missing") == 0
