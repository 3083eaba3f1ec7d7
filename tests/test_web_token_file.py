"""The file that holds the token of the page: made at its first use, and read by its owner alone."""

import os
import stat
from pathlib import Path

import pytest

from cmdbus.web.security.token_file import TokenFileError, default_path, read_or_make


def test_the_token_is_made_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "state/cmdbus/token"
    token, made = read_or_make(file)
    assert made and len(token) == 43 and read_or_make(file) == (token, False)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [*file.parent.iterdir()] == [file]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    token, _ = read_or_make(file)
    file.chmod(mode)
    with pytest.raises(TokenFileError, match="other users may read") as caught:
        read_or_make(file)
    assert token not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of root's")
def test_the_system_may_give_a_token_to_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kubernetes mounts a secret: by a link, for a group."""
    file, link = tmp_path / "token", tmp_path / "link"
    token, _ = read_or_make(file)
    link.symlink_to(file)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    file.chmod(0o440)
    assert read_or_make(link) == (token, False)
    file.chmod(0o444)
    with pytest.raises(TokenFileError, match="other users may read"):
        read_or_make(link)
    os.chown(file, 1001, -1)
    file.chmod(0o400)
    with pytest.raises(TokenFileError, match="another user"):
        read_or_make(link)


def test_a_token_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for name, text in (("empty", ""), ("short", "x" * 31), ("two", f"{'x' * 40}\n{'y' * 40}")):
        file = tmp_path / name
        file.touch(0o600)
        file.write_text(text)
        with pytest.raises(TokenFileError, match="32 to 512"):
            read_or_make(file)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for file in (tmp_path / "pipe", tmp_path, tmp_path / "empty/below"):
        with pytest.raises(TokenFileError):
            read_or_make(file)


def test_the_token_file_is_in_the_users_state_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "cmdbus/web-token"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_path() == Path("/home/ann/.local/state/cmdbus/web-token")
