"""Producers and fleets in the environments that they meet: each a small run of its own.

A standby as the first host is in test_failover.py, poolers are in test_poolers.py, encodings of
the database in test_encodings.py, patched libraries in test_app.py,
blocked signals in test_fleet_life.py.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from fleet import Fleet, write_app
from psycopg.sql import SQL, Identifier

from cmdbus import CommandBus

pytestmark = [pytest.mark.process]

ROOT = Path(__file__).resolve().parent.parent
#: This interpreter, and those of the matrix where its environments were made.
PYTHONS = [sys.executable, *sorted(map(str, ROOT.glob(".venv-*/bin/python")))]

FORK_IN_C = """
import ctypes, os, sys, threading, time
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

def others():
    frames = sys._current_frames()
    return [frames[ident].f_code.co_name for ident in frames if ident != threading.get_ident()]

before = session()
fork = ctypes.PyDLL(None).fork
children = []
for number in range(2):
    # A child waits for good if a thread of its parent wants the GIL when it is forked.
    while {*others()} - {"wait"}:
        time.sleep(0.01)
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

OTHER_ADAPTERS = """
import psycopg, psycopg.types.json
from psycopg.types.string import TextLoader
from psycopg.types.numeric import FloatLoader

class Shout(psycopg.adapt.Dumper):
    def dump(self, value):
        return f"{value}!".encode()

def fail(text):
    raise ZeroDivisionError

for _type in ("uuid", "timestamptz", "int2", "int4", "int8", "bool", "float8", "text[]"):
    psycopg.adapters.register_loader(_type, TextLoader)
psycopg.adapters.register_loader("numeric", FloatLoader)
for _type in (int, str, float):
    psycopg.adapters.register_dumper(_type, Shout)
psycopg.types.json.set_json_loads(fail)
"""

SENDS_WITH_OTHER_ADAPTERS = f"""
import sys, uuid
from psycopg_pool import ConnectionPool
from cmdbus import CommandBus, SendRequest
{OTHER_ADAPTERS}
with ConnectionPool(sys.argv[1]) as pool, pool.connection() as connection:
    for bus in CommandBus(sys.argv[1]), CommandBus(pool=pool):
        own = uuid.uuid4()
        id_ = bus.send("payments", "Debit", {{"n": 1}}, command_id=own, priority=7, delay=9)
        assert id_ == own, id_
        record = bus.get("payments", own)
        assert (record.command_id, record.data, record.priority) == (own, {{"n": 1}}, 7)
        later = record.due_at - record.created_at
        assert later.total_seconds() > 8, record
        bus.send_many([SendRequest("payments", "Debit")] * 3, connection=connection)
        assert [str(event.kind) for event in bus.audit("payments", own)] == ["SENT"]
        bus.configure("payments", max_depth=50, operator="ann")
        assert bus.snapshot("payments")["scheduled"] == 1 and bus.domains()
        bus.cancel("payments", own)
        bus.close()
"""


def run(
    source: str, dsn: str, *, python: str = sys.executable
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([python, "-c", source, dsn], capture_output=True, text=True, timeout=50)


def test_a_fork_in_c_shares_no_session(dsn: str) -> None:
    """uWSGI's default: the application is loaded before the fork, and no hook runs in it."""
    done = run(FORK_IN_C, dsn)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pool_of_another_process_is_refused(dsn: str) -> None:
    done = run(POOL_OF_ANOTHER_PROCESS, dsn)
    assert done.returncode == 0, done
    assert "two processes cannot share connections" in done.stdout


def test_a_producer_may_register_other_adapters(dsn: str) -> None:
    """What it registers with the driver for all connections is for its own statements."""
    done = run(SENDS_WITH_OTHER_ADAPTERS, dsn)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("source", [NEVER_CLOSED, FIRST_USED_AT_EXIT], ids=["open", "at exit"])
def test_a_program_that_does_not_close_its_bus_ends_at_once_and_in_silence(
    dsn: str, source: str, python: str
) -> None:
    def took() -> float:
        done = run(source, dsn, python=python)
        ended = time.monotonic()
        assert (done.returncode, done.stderr) == (0, "")
        return ended - float(done.stdout)

    # The best of three: a busy machine may keep one of them from its end.
    assert any(took() < 2 for _ in range(3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What surrounds a supervisor, its database and its application."""

    variables: Mapping[str, str] = field(default_factory=dict)
    #: What a shell executes before it becomes the supervisor.
    shell: str = ""
    #: What the application does when it is imported, before anything else.
    app: str = ""
    #: Settings of the database.
    settings: Mapping[str, str] = field(default_factory=dict)


WRAPS_THREADS = """
import threading
_start, _run = threading.Thread.start, threading.Thread.run
threading.Thread.start = lambda self: _start(self)
threading.Thread.run = lambda self: _run(self)
"""
STOPS_CLOCKS = """
import time
for _name in ("time", "monotonic", "perf_counter"):
    setattr(time, _name, lambda: 1e9)
for _name in ("time_ns", "monotonic_ns"):
    setattr(time, _name, lambda: 10**18)
"""
LOGS_TO_A_DEAD_SERVER = """
import logging
import fleet_app  # It removes the handlers that there are.

class _Shipping(logging.Handler):
    def emit(self, record):
        raise OSError("the server for logs is away")

logging.getLogger().addHandler(_Shipping())
"""
LOGS_TO_A_SERVER_THAT_HANGS = """
import logging, threading
import fleet_app

class _Shipping(logging.Handler):
    def emit(self, record):
        threading.Event().wait()

logging.getLogger().addHandler(_Shipping())
"""
ENVIRONMENTS = {
    "no environment, few descriptors, logging that hangs": Environment(
        shell='ulimit -n 128; exec env -i CMDBUS_DSN="$CMDBUS_DSN" PYTHONPATH="$PYTHONPATH" "$@"',
        app=LOGS_TO_A_SERVER_THAT_HANGS,
    ),
    "no locale, no docstrings, zones that disagree, other forms of values, strict isolation": (
        Environment(
            variables={
                "LC_ALL": "C",
                "PYTHONUTF8": "0",
                "PYTHONCOERCECLOCALE": "0",
                "PYTHONOPTIMIZE": "2",
                "TZ": "America/St_Johns",
                "PGTZ": "Asia/Kathmandu",
            },
            settings={
                "timezone": "Australia/Lord_Howe",
                "DateStyle": "German, DMY",
                "IntervalStyle": "sql_standard",
                "bytea_output": "escape",
                "extra_float_digits": "-5",
                "lc_monetary": "C",
                "default_transaction_isolation": "serializable",
            },
        )
    ),
    "wrapped threads, stopped clocks, other adapters, logging that raises": Environment(
        app=WRAPS_THREADS + STOPS_CLOCKS + OTHER_ADAPTERS + LOGS_TO_A_DEAD_SERVER
    ),
}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@pytest.mark.fleet(started=False, procs=1, threads=2)
def test_a_fleet_runs_in_its_environment(
    fleet: Fleet,
    bus: CommandBus,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    environment: Environment,
) -> None:
    """Commands of all ways are run, on time, and it stops when it is ordered to."""
    for variable, value in environment.variables.items():
        monkeypatch.setenv(variable, value)
    database = Identifier(connection.info.dbname)
    for setting, value in environment.settings.items():
        change = SQL("ALTER DATABASE {} SET {} = {}")
        connection.execute(change.format(database, Identifier(setting), value))
    write_app(fleet.place, f"{environment.app}\nfrom fleet_app import registry as registry")
    fleet.start(shell=environment.shell)
    fleet.wait_until_ready()
    ids = fleet.send("Noop", 20) + fleet.send("Noop", 1, {"text": "h\u00e9 \u65e5"})
    delayed = bus.send("shop", "Noop", delay=0.3)
    [retried] = fleet.send("FailOnce")
    fleet.await_completed([*ids, delayed])
    fleet.await_outcomes([retried], {("COMPLETED", 2): 1})
    record = bus.get("shop", delayed)
    assert record is not None and record.started_at is not None
    assert 0 <= (record.started_at - record.due_at).total_seconds() < 20
    assert [str(event.kind) for event in bus.audit("shop", delayed)][:2] == ["SENT", "RECEIVED"]
