"""A producer in the environments that it meets: each a small run of its own."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.db, pytest.mark.process]

ROOT = Path(__file__).resolve().parent.parent
#: This interpreter, and those of the matrix where its environments were made.
PYTHONS = [sys.executable, *sorted(map(str, ROOT.glob(".venv-*/bin/python")))]

FORK_IN_C = """
import ctypes, os, sys
from cmdbus import CommandBus
bus = CommandBus(sys.argv[1])

def session():
    with bus._connections._pool().connection() as connection:
        return connection.info.backend_pid

first = bus.send("payments", "Debit", {"from": "parent"})

def works(name):
    for n in range(50):
        id_ = bus.send("payments", "Debit", {"from": name, "n": n})
        record = bus.get("payments", id_)
        assert record and record.command_id == id_, record
        assert record.data == {"from": name, "n": n}, record

before = session()
fork = ctypes.CDLL(None).fork
children = []
for number in range(2):
    child = fork()
    if child == 0:
        code = 1
        try:
            works(f"child {number}")
            assert session() != before
            bus.close()
            code = 0
        finally:
            sys.stderr.flush()
            # The first one ends as interpreters do: what is collected must end no session.
            sys.exit(code) if number == 0 else os._exit(code)
    children.append(child)
works("parent")
for child in children:
    assert os.waitpid(child, 0)[1] == 0
assert bus.get("payments", first)
assert session() == before, "a child has ended the session of its parent"
"""

POOL_OF_ANOTHER_PROCESS = """
import os, sys
from cmdbus import CommandBus, InvalidOperationError
from psycopg_pool import ConnectionPool
with ConnectionPool(sys.argv[1], min_size=1, open=True) as pool:
    bus = CommandBus(pool=pool)
    bus.send("payments", "Debit")
    child = os.fork()
    if child == 0:
        try:
            bus.send("payments", "Debit")
        except InvalidOperationError as error:
            os.write(1, str(error).encode())
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    bus.send("payments", "Debit")
"""

NEVER_CLOSED = """
import sys, time
from cmdbus import CommandBus
bus = CommandBus(sys.argv[1])
bus.send("payments", "Debit")
print(time.monotonic())
"""

FIRST_USED_AT_EXIT = """
import atexit, sys, time
from cmdbus import CommandBus
bus, late = CommandBus(sys.argv[1]), CommandBus(sys.argv[1])
atexit.register(lambda: [late.send("payments", "Debit"), bus.send("payments", "Debit")])
bus.send("payments", "Debit")
print(time.monotonic())
"""


def run(
    source: str, dsn: str, *, python: str = sys.executable
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([python, "-c", source, dsn], capture_output=True, text=True, timeout=28)


def test_a_fork_in_c_shares_no_session(dsn: str) -> None:
    """uWSGI's default: the application is loaded before the fork, and no hook runs in it."""
    done = run(FORK_IN_C, dsn)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pool_of_another_process_is_refused(dsn: str) -> None:
    done = run(POOL_OF_ANOTHER_PROCESS, dsn)
    assert done.returncode == 0, done
    assert "two processes cannot share connections" in done.stdout


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("source", [NEVER_CLOSED, FIRST_USED_AT_EXIT], ids=["open", "at exit"])
def test_a_program_that_does_not_close_its_bus_ends_at_once_and_in_silence(
    dsn: str, source: str, python: str
) -> None:
    done = run(source, dsn, python=python)
    took = time.monotonic() - float(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert took < 2, took
