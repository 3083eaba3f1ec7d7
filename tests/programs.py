"""The programs of the checkout's scripts, as processes, and the databases that they make."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
#: Seconds for one run; several times the usual, for a busy machine that measures coverage.
WITHIN_S = 80


def run(
    program: str, *arguments: str, within: float = WITHIN_S
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, SCRIPTS / program, *arguments],
        cwd=os.sep,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )


def interrupt(
    program: str, *arguments: str, when: "Callable[[subprocess.Popen[bytes]], object]"
) -> tuple[int, str]:
    """A Ctrl-C once `when` returns: the pid of what has ended in order, and its last words."""
    pipe, command = subprocess.PIPE, [sys.executable, str(SCRIPTS / program), *arguments]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        try:
            when(process)
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=WITHIN_S)[1].decode()
        finally:
            process.kill()
    assert process.returncode == 130, output
    return process.pid, output


def databases(dsn: str, pattern: str) -> list[str]:
    """Their names, which are LIKE `pattern`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "SELECT datname FROM pg_database WHERE datname LIKE %s"
        return [name for (name,) in connection.execute(query, (pattern,))]
