"""The password of a fleet's role, through everything that makes a fleet talk."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli import here
from fleet import Fleet, supervised
from guarded import SECRET, Guarded
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL

pytestmark = pytest.mark.fleet

END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = {}"
LADDER = {"visibility_timeout": 1.2, "thread_timeout": 1.4, "watchdog_timeout": 4}


def pages(fleet: Fleet) -> Iterator[str]:
    [text] = fleet.logged("probes, metrics and status are at")
    for path in ("livez", "readyz", "metrics", "status", "secret"):
        try:
            with urllib.request.urlopen(f"{text.split()[-1]}/{path}", timeout=5) as answer:
                yield answer.read().decode()
        except urllib.error.HTTPError as error:
            yield error.read().decode()


def texts(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """What any user can read of it, with where that is."""
    for pid in fleet.living():
        yield "process list", Path(f"/proc/{pid}/cmdline").read_text()
    yield "page", "".join(pages(fleet))
    for arguments in (["ps"], ["ps", "--json"], ["status"], ["tsq", "list"]):
        place = {"CMDBUS_RUNTIME_DIR": str(fleet.directory), "CMDBUS_DSN": fleet.dsn}
        done = here(*arguments, **place)
        assert done.exit_code == 0, done
        yield " ".join(arguments), done.output
    for path in fleet.directory.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes().decode(errors="replace")
    for table in ("event", "incarnation", "command"):
        yield table, json.dumps(fleet.query(f"SELECT c::text FROM cmdbus.{table} c"))
    yield "sessions", json.dumps(fleet.query("SELECT a::text FROM pg_stat_activity a"))
    yield "log", fleet.log.read_text()


def test_the_password_is_nowhere(guarded: Guarded, tmp_path: Path) -> None:
    """Through a crash, a timeout, a traceback, dumped stacks and a refused login."""
    app = tmp_path / "shop.py"
    app.write_text(
        "from fleet_app import registry\n"
        "@registry.handler('shop', 'Divide')\n"
        "def divide(command, context): context.connection.execute('SELECT 1 / 0')\n"
    )
    with (
        guarded.role("worker") as dsn,
        supervised(dsn, tmp_path, procs=1, threads=2, http="127.0.0.1:0", **LADDER) as fleet,
    ):
        fleet.send_signal(signal.SIGUSR1)
        ids = [fleet.send(type, max_attempts=1)[0] for type in ("Segfault", "Hang", "Divide")]
        fleet.await_outcomes(ids, {("IN_TROUBLESHOOTING_QUEUE", 1): 3}, within=20)
        fleet.wait_until_ready()
        guarded.alter("ROLE", dsn, "NOLOGIN")
        guarded.execute(SQL(END_SESSIONS).format(conninfo_to_dict(dsn)["user"]))
        fleet.await_saying("not permitted to log in")
        guarded.alter("ROLE", dsn, "LOGIN")
        fleet.await_completed(fleet.send("Noop"))
        fleet.await_saying("the stacks of worker")
        found = dict.fromkeys(where for where, text in texts(fleet) if SECRET in text)
        assert not found
    assert SECRET not in fleet.log.read_text()
