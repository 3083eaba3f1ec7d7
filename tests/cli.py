"""The operator's command and the supervisor's: as processes, or quicker in this one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from click.testing import CliRunner, Result

from cmdbus.supervisor.cli.operate import main

SUPERVISE = [sys.executable, "-c", "from cmdbus.supervisor.cli.supervise import main; main()"]
CALL = "from cmdbus.supervisor.cli.operate import main; main()"


def cmdbus(
    *arguments: str,
    stdin: str = "",
    stdout: int | IO[str] = subprocess.PIPE,
    cwd: Path | None = None,
    **environment: str,
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", CALL, *arguments],
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=25,
        cwd=cwd,
        env={**environment_without_ours(), **environment},
    )


def supervise(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`cmdbus-supervise`, which ends by itself."""
    return subprocess.run(
        [*SUPERVISE, *arguments],
        capture_output=True,
        text=True,
        timeout=25,
        env={**os.environ, **environment},
    )


def at_terminal(
    *arguments: str, answer: str, first: Callable[[], object] = int
) -> "subprocess.CompletedProcess[str]":
    """`first` is called when it asks, before the answer."""
    writer, reader = os.openpty()
    with (
        os.fdopen(writer, "wb", 0) as terminal,
        os.fdopen(reader, "rb", 0) as stdin,
        subprocess.Popen(
            [sys.executable, "-c", CALL, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment_without_ours(),
        ) as process,
    ):
        assert process.stderr is not None
        question = ""
        while not question.endswith("]: ") and (character := process.stderr.read(1)):
            question += character
        first()
        terminal.write(answer.encode())
        stdout, stderr = process.communicate(timeout=25)
        return subprocess.CompletedProcess([], process.returncode, stdout, question + stderr)


def here(*arguments: str, stdin: str = "", **environment: str) -> Result:
    """In this process, with its exit code, stdout and stderr."""
    inherited = dict.fromkeys(set(os.environ) - set(environment_without_ours()))
    runner = CliRunner(env={**inherited, **environment})
    result = runner.invoke(main, list(arguments), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def done(result: Result) -> str:
    """What it printed; it did what it was asked for, and complained of nothing."""
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def environment_without_ours() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CMDBUS_") and name not in ("DATABASE_URL", "SUDO_USER", "NO_COLOR")
    }
