"""The runtime directory: the same for its writers and readers, and closed to other users."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from cmdbus.errors import BoardError
from cmdbus.supervisor.runtime import (
    board_path,
    check_makeable,
    find_runtime_directory,
    make_runtime_directory,
    usual_places,
)

NOBODY = 65534


def test_the_users_own_runtime_directory_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert find_runtime_directory() == tmp_path / "cmdbus"
    assert find_runtime_directory(Path("here")) == Path.cwd() / "here"
    for useless in ("", "relative", str(tmp_path / "missing")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", useless)
        assert find_runtime_directory() != Path(useless) / "cmdbus"


def test_without_it_the_place_is_that_of_the_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    *_, last = places = list(usual_places())
    assert last == Path(tempfile.gettempdir()) / f"cmdbus-{os.geteuid()}"
    assert find_runtime_directory() == places[0]
    if os.geteuid() == 0:
        assert places[0] == Path("/run/cmdbus")
    assert (len(places) == 1) == ("may be cleaned up" in caplog.text)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_another_users_runtime_directory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after su, which keeps the variable."""
    os.chown(tmp_path, NOBODY, NOBODY)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert tmp_path / "cmdbus" not in usual_places()
    with pytest.raises(BoardError, match="belongs to user 65534"):
        make_runtime_directory(tmp_path)


def test_it_is_made_for_its_user_alone_and_can_be_made_again(tmp_path: Path) -> None:
    path = tmp_path / "above" / "cmdbus"
    umask = os.umask(0o777)
    try:
        os.umask(0o022)
        path.parent.mkdir()
        os.umask(0o777)
        make_runtime_directory(path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert make_runtime_directory(path) == path
    assert make_runtime_directory(tmp_path / "new" / "one").is_dir()


def test_a_directory_that_others_could_write_to_is_refused(tmp_path: Path) -> None:
    link, file, open_ = tmp_path / "link", tmp_path / "file", tmp_path / "open"
    link.symlink_to(tmp_path)
    file.touch()
    open_.mkdir()
    open_.chmod(0o755)
    for path, sentence in (
        (link, "is a symbolic link"),
        (file, "is not a directory"),
        (open_, f"is open to others: run chmod 700 {open_}"),
        (file / "below", "Not a directory"),
    ):
        with pytest.raises(BoardError, match=sentence):
            make_runtime_directory(path)
    (open_ / "cmdbus.board").touch()
    with pytest.raises(BoardError, match="run chmod 700"):
        make_runtime_directory(open_)


def test_a_directory_that_others_use_is_not_to_be_closed_for_them(tmp_path: Path) -> None:
    """Such as /tmp, or /: chmod 700 there would break the machine."""
    tmp_path.chmod(0o1777)
    (tmp_path / "of-somebody").touch()
    with pytest.raises(BoardError, match=f"for example --runtime-dir {tmp_path}/cmdbus$"):
        make_runtime_directory(tmp_path)


def test_whether_it_can_be_made_is_tried_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "new" / "one"):
        check_makeable(path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for path in (Path("/proc/nowhere/cmdbus"), tmp_path / "file" / "below"):
        with pytest.raises(BoardError, match=f"the runtime directory {path} cannot be made: "):
            check_makeable(path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", ".hidden", "x" * 65, "a\n", "ä"])
def test_a_supervisors_name_is_that_of_its_files(name: str) -> None:
    with pytest.raises(ValueError, match="name must be a letter or digit"):
        board_path(Path("/run/cmdbus"), name)
    assert board_path(Path("/run/cmdbus"), "shop-2.b") == Path("/run/cmdbus/shop-2.b.board")
