"""The programs of the checkout's scripts, as processes, and the databases that they make."""

import os
import subprocess
import sys
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


def databases(dsn: str, pattern: str) -> list[str]:
    """Their names, which are LIKE `pattern`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "SELECT datname FROM pg_database WHERE datname LIKE %s"
        return [name for (name,) in connection.execute(query, (pattern,))]
