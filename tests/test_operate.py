"""The operator's command, as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cmdbus.statements import migrations

SECRET = "s3cr3t"


def cmdbus(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited: Mapping[str, str] = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CMDBUS_") and name != "DATABASE_URL"
    }
    return subprocess.run(
        [sys.executable, "-c", "from cmdbus.supervisor.operate import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=25,
        env={**inherited, **environment},
    )


@pytest.mark.db
def test_init_installs_the_schema_and_says_so(empty_dsn: str) -> None:
    first = cmdbus("init", "--dsn", empty_dsn)
    version = len(migrations())
    assert first.stdout.startswith(f"schema cmdbus: installed, version {version}, in database")
    assert (first.returncode, first.stderr) == (0, "")
    second = cmdbus("init", CMDBUS_DSN=empty_dsn)
    assert second.stdout.startswith(f"schema cmdbus: up to date, version {version}")
    other = cmdbus("init", "--schema", "other", "--json", DATABASE_URL=empty_dsn)
    assert json.loads(other.stdout)["before"] == 0


@pytest.mark.db
def test_a_dsn_can_come_from_a_file(empty_dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text(empty_dsn + "\n")
    assert cmdbus("init", "--dsn-file", str(file)).returncode == 0
    assert cmdbus("init", CMDBUS_DSN_FILE=str(file)).returncode == 0


def test_mistakes_get_one_sentence_without_the_password(tmp_path: Path) -> None:
    """Secrets never appear."""
    empty = tmp_path / "empty"
    empty.touch()
    for arguments, code, sentence in (
        (["--dsn", f"postgresql+asyncpg://ann:{SECRET}@db/x"], 1, "it must be postgresql://"),
        (["--dsn", f"postgresql://ann:{SECRET}@127.0.0.1:1/x"], 1, "cannot connect to database"),
        (["--dsn", "host=127.0.0.1", "--schema", "X"], 1, "schema must be a-z"),
        (["--dsn-file", str(tmp_path / "none")], 2, "cannot read"),
        (["--dsn-file", str(empty)], 2, "is empty"),
        (["--dsn-file", f"postgresql://ann:{SECRET}@db/x"], 2, "takes the name of a file"),
        ([f"postgresql://ann:{SECRET}@db/x"], 2, "unexpected extra argument"),
        (["--dsn", "host=::1 port=1", "--schema", f"postgresql://a:{SECRET}@db"], 1, "schema must"),
        (["--dsn", ""], 2, "is empty"),
    ):
        done = cmdbus("init", *arguments)
        assert done.returncode == code, done
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
        assert SECRET not in done.stderr + done.stdout


def test_a_forgotten_variable_does_not_mean_the_embedded_server() -> None:
    done = cmdbus("init", CMDBUS_DSN="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "CMDBUS_DSN is set and empty" in done.stderr


def test_a_password_on_the_command_line_is_warned_of() -> None:
    for dsn in (f"postgresql://ann:{SECRET}@127.0.0.1:1/x", f"host=::1 port=1 password={SECRET}"):
        assert "visible in the process list" in cmdbus("init", "--dsn", dsn).stderr
        assert "visible" not in cmdbus("init", CMDBUS_DSN=dsn).stderr
    assert "visible" not in cmdbus("init", "--dsn", "postgresql://ann@127.0.0.1:1/x").stderr


def test_help_shows_examples() -> None:
    assert "Examples:" in cmdbus("init", "--help").stdout
    assert "init" in cmdbus("-h").stdout
