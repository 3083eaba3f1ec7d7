"""What an embedded server has left in its directory, and what it answers."""

import stat
import subprocess
from pathlib import Path

import psutil
import psycopg

from cmdbus.embedded import EmbeddedPostgres


def copy_cluster(source: Path, directory: Path) -> None:
    """The directory of a stopped server, with the owner and the mode of each file."""
    subprocess.run(["cp", "-a", source, directory], check=True)


def postmaster_of(directory: Path) -> int | None:
    """The running server's pid, as the operating system and not as our code sees it."""
    try:
        pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return None
    alive = psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return pid if alive else None


def one(server: EmbeddedPostgres, query: str) -> object:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
