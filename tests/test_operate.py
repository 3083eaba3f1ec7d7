"""The operator's command, as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from cli import CALL, cmdbus, here
from click.testing import CliRunner
from roles import role

from cmdbus.database.statements import versions
from cmdbus.supervisor.cli.operate import main
from cmdbus.supervisor.cli.supervise import main as supervise

SECRET = "s3cr3t"
COMMANDS = sorted(main.commands)
GROUPS = {
    "tsq": ("list", "summary", "show", "retry", "cancel", "complete"),
    "domain": ("list", "show", "configure"),
    "batch": ("list", "show", "cancel"),
    "process": ("list", "show", "cancel", "retry", "signal"),
    "limit": ("list", "set", "clear"),
    "bridge": ("list", "add", "remove"),
    "schedule": ("list", "add", "remove", "pause", "resume", "run", "next"),
    "breaker": ("list", "show", "open", "close", "reset", "set", "clear"),
}
ALL_TAKE = {"--dsn", "--dsn-file", "--schema", "--runtime-dir", "--name", "--json"}


def test_init_installs_the_schema_and_reports_its_version(empty_dsn: str) -> None:
    first = cmdbus("init", "--dsn", empty_dsn)
    version = len(versions())
    assert first.stdout.startswith(f"schema cmdbus: installed, version {version}, in database")
    assert (first.returncode, first.stderr) == (0, "")
    second = here("init", CMDBUS_DSN=empty_dsn)
    assert second.stdout.startswith(f"schema cmdbus: up to date, version {version}")
    other = here("init", "--schema", "other", "--json", DATABASE_URL=empty_dsn)
    assert json.loads(other.stdout)["before"] == 0
    assert json.loads(other.stdout)["grants"] == {}


def test_init_lists_the_roles_that_got_rights(dsn: str) -> None:
    with role(dsn, "monitor") as connection:
        [[name]] = connection.execute("SELECT current_user").fetchall()
        granted = ["--dsn", dsn, "--monitor", name, "--producer", name]
        lines = here("init", *granted).stdout.splitlines()
        assert lines[1:] == [
            f"{name}: has the rights of a role of kind {kind}" for kind in ("producer", "monitor")
        ]
        result = json.loads(here("init", *granted, "--json").stdout)
        assert result["grants"] == {"producer": [name], "monitor": [name]}


def test_a_dsn_can_come_from_a_file(empty_dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text(empty_dsn + "\n")
    assert here("init", "--dsn-file", str(file)).exit_code == 0
    assert here("init", CMDBUS_DSN_FILE=str(file)).exit_code == 0


def test_files_and_spans_without_an_end_get_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cmdbus.toml").symlink_to("/dev/zero")
    for arguments, sentence in (
        (["list", "--since", "99999999d"], "(2h would be two hours ago)"),
        (["domain", "configure", "payments", "--keep", "9999999999d"], "it is too long"),
        (["send", "payments", "Debit", "@/dev/zero"], "it has more than 33554432 bytes"),
        (["send", "payments", "Debit", "--unique-until", "ended"], "or finished or started"),
        (["send", "payments", "Debit", "--unique-until", "0"], "from 0.001 to 3153600000 seconds"),
        (["send", "payments", "Debit", "--expires", "0"], "it must be more than 0 seconds, not 0"),
        (["domain", "list", "--dsn-file", "/dev/zero"], "it has more than 65536 bytes"),
    ):
        wrong = here(*arguments)
        assert wrong.exit_code == 2 and sentence in wrong.stderr, (arguments, wrong.stderr)
    result = cmdbus("ps", cwd=tmp_path)
    assert result.returncode == 2 and "it has more than 1048576 bytes" in result.stderr, (
        result.stderr
    )


def test_an_output_that_cannot_be_written_gets_one_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = cmdbus("ps", "--watch", "--json", "--runtime-dir", str(tmp_path), stdout=full)
    assert result.stderr == "Error: the output cannot be written: No space left on device\n"
    assert result.returncode == 1


def test_an_input_that_is_closed_is_empty() -> None:
    closing = ("/bin/sh", "-c", 'exec "$@" <&-', "sh")
    result = subprocess.run(
        [*closing, sys.executable, "-c", CALL, "send", "payments", "Debit", "-"],
        capture_output=True,
        text=True,
        timeout=25,
    )
    assert result.returncode == 2 and "it is not JSON" in result.stderr, result.stderr


def test_mistakes_get_one_sentence_without_the_password(tmp_path: Path) -> None:
    """Secrets never appear."""
    empty = tmp_path / "empty"
    empty.touch()
    two = tmp_path / "two"
    two.write_text(f"postgresql://ann:{SECRET}@127.0.0.1:1/x\npostgresql://127.0.0.1:1/y\n")
    for arguments, code, sentence in (
        (["--dsn-file", str(two)], 2, "must hold one DSN, in one line"),
        (["--dsn", SECRET], 2, "neither a URI like postgresql://host/database nor keywords"),
        (["--dsn", f"postgresql+asyncpg://ann:{SECRET}@db/x"], 2, "it must be postgresql://"),
        (["--dsn", f"postgresql://ann:{SECRET}@127.0.0.1:1/x"], 1, "cannot connect to database"),
        (["--dsn", "host=127.0.0.1", "--schema", "X"], 2, "schema must be a-z"),
        (["--dsn-file", str(tmp_path / "none")], 2, "cannot read"),
        (["--dsn-file", str(empty)], 2, "is empty"),
        (["--dsn-file", f"postgresql://ann:{SECRET}@db/x"], 2, "takes the name of a file"),
        ([f"postgresql://ann:{SECRET}@db/x"], 2, "unexpected extra argument"),
        (["--dsn", "host=::1 port=1", "--schema", f"postgresql://a:{SECRET}@db"], 2, "schema must"),
        (["--dsn", ""], 2, "is empty"),
        (["--dsn", "host=127.0.0.1", "--dsn-file", "none"], 2, "give one of them"),
    ):
        done = here("init", *arguments)
        assert done.exit_code == code, done
        assert sentence in done.stderr and "Traceback" not in done.stderr
        assert SECRET not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("send shop", "TYPE is missing, as in: cmdbus send payments DebitAccount '{"),
        ("get", "DOMAIN is missing, as in: cmdbus get payments 01a1ef5a-"),
        ("pause", "DOMAIN is missing, as in: cmdbus pause payments"),
    ],
)
def test_a_missing_argument_gets_one_sentence_with_an_example(typed: str, sentence: str) -> None:
    result = here(*typed.split())
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {sentence}")


def test_a_group_alone_shows_its_help_once() -> None:
    result = here("tsq")
    assert result.output.count("Usage:") == 1 and "summary" in result.output


@pytest.mark.parametrize(
    "typed",
    [
        "status {}",
        "get {} 7",
        "send {} B",
        "send a B {}",
        "send a B --delay {}",
        "cancel a {}",
        "pause {}",
        "tsq list {}",
        "tsq list --since {}",
        "tsq retry a {}",
        "ps --name {}",
        "ps --runtime-dir {}",
        "status --dsn-file {}",
    ],
)
def test_a_dsn_in_the_wrong_place_is_not_shown(typed: str) -> None:
    """Secrets never appear."""
    arguments = typed.format(f"postgresql://ann:{SECRET}@db/x").split()
    done = here(*arguments, CMDBUS_DSN="host=127.0.0.1 port=1")
    assert done.exit_code in (1, 2) and done.stderr.startswith(("Usage:", "Error:"))
    assert SECRET not in done.output


def test_a_forgotten_variable_does_not_mean_the_embedded_server() -> None:
    done = here("init", CMDBUS_DSN="")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "CMDBUS_DSN is set and empty" in done.stderr


def test_a_password_on_the_command_line_is_warned_of() -> None:
    for dsn in (f"postgresql://ann:{SECRET}@127.0.0.1:1/x", f"host=::1 port=1 password={SECRET}"):
        assert "visible in the process list" in here("init", "--dsn", dsn).stderr
        assert "visible" not in here("init", CMDBUS_DSN=dsn).stderr
    assert "visible" not in here("init", "--dsn", "postgresql://ann@127.0.0.1:1/x").stderr


@pytest.mark.parametrize("joint", [" ", "="])
def test_a_password_on_the_command_line_is_in_no_argument_that_libraries_report(
    monkeypatch: pytest.MonkeyPatch, joint: str
) -> None:
    """As Sentry does, with each event."""
    dsn = f"postgresql://ann:{SECRET}@127.0.0.1:1/x"
    monkeypatch.setattr("sys.argv", ["cmdbus", "init", *f"--dsn{joint}{dsn}".split()])
    here("init", "--dsn", dsn)
    assert sys.argv == ["cmdbus", "init", *f"--dsn{joint}***".split()]


def test_help_shows_examples() -> None:
    assert "Examples:" in here("init", "--help").stdout
    assert "init" in here("-h").stdout


def test_help_does_not_depend_on_docstrings() -> None:
    """PYTHONOPTIMIZE=2 leaves them out."""

    def all_of(command: click.Command) -> Iterator[click.Command]:
        yield command
        for each in command.commands.values() if isinstance(command, click.Group) else ():
            yield from all_of(each)

    for command in (*all_of(main), supervise):
        assert command.help and command.callback and not command.callback.__doc__, command.name
    shown = cmdbus("send", "--help", PYTHONOPTIMIZE="2").stdout
    assert "Send a command, and print its id." in shown and "Examples:" in shown


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    here_and_gone = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    for command, code, sentence in (
        (["cmdbus-supervise", "--check"], 3, "change to one that exists"),
        (["cmdbus-supervise", "--app", "a:b", "--dsn", "host=::1"], 3, "change to one that exists"),
        (["cmdbus", "ps", "--runtime-dir", "run"], 1, "change to one that exists"),
        (["cmdbus-supervise", "--help"], 0, ""),
    ):
        program = str(Path(sys.executable).with_name(command[0]))
        done = subprocess.run(
            ["/bin/sh", "-c", here_and_gone, str(tmp_path / "gone"), program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=25,
        )
        assert done.returncode == code, done
        assert sentence in done.stderr and len(done.stderr.splitlines()) == bool(code)


def test_a_locale_without_utf_8_changes_no_data(dsn: str) -> None:
    plain: Any = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "CMDBUS_DSN": dsn}
    sent = cmdbus("send", "shop", "Debit", '"grün"', **plain)
    assert (sent.returncode, sent.stderr) == (0, "")
    id_ = sent.stdout.strip()
    shown = cmdbus("get", "shop", id_, **plain)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert '"grün"' in shown.stdout


def test_a_key_of_a_command_that_is_there_prints_its_id(dsn: str) -> None:
    unique = ["send", "shop", "Debit", "--unique", "report", "--dsn", dsn]
    first = here(*unique, "--unique-until", "2h").stdout
    assert here(*unique, "--on-conflict", "existing").stdout == first
    refused = here(*unique)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"command {first.strip()} of domain 'shop' has the unique key 'report'" in refused.stderr
    assert here(*unique, "--on-conflict", "replace").stdout != first
    shown = here("get", "shop", first.strip(), "--dsn", dsn).stdout
    assert "unique key      report" in shown and "REPLACED: replaced by command" in shown


def test_completion_knows_the_commands() -> None:
    script = Path(sys.executable).with_name("cmdbus")
    words = {"COMP_WORDS": "cmdbus ts", "COMP_CWORD": "1"}
    environment = {**os.environ, "_CMDBUS_COMPLETE": "bash_complete", **words}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=25)
    assert done.stdout == "plain,tsq\n"


@pytest.mark.parametrize(
    "command", [*COMMANDS, *(f"{group} {name}" for group in GROUPS for name in GROUPS[group])]
)
def test_every_command_takes_what_all_take_and_shows_examples(command: str) -> None:
    assert ("Examples:" in here(*command.split(), "-h").stdout) == (command not in GROUPS)
    found = main.commands[command.split()[0]]
    # `check` hands all options on to cmdbus-supervise.
    if command not in (*GROUPS, "check"):
        if isinstance(found, click.Group):
            found = found.commands[command.split()[1]]
        shown = [p for p in found.params if isinstance(p, click.Option) and not p.hidden]
        assert {option for parameter in shown for option in parameter.opts} >= ALL_TAKE


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Click itself does not look."""

    @click.command("red")
    def red() -> None:
        click.secho("red", fg="red")

    monkeypatch.setitem(main.commands, "red", red)
    for value, shown in (("", "\x1b[31mred\x1b[0m\n"), ("1", "red\n")):
        runner = CliRunner(env={"NO_COLOR": value})
        assert runner.invoke(main, ["red"], color=True).stdout == shown
