"""scripts/loadtest: what it sends, what it finds, and how it ends. Not how fast anything is."""

import json
import os
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from loads import handlers, runs, verdict, workloads
from loads.connection_budget import ConnectionBudget, need, wanted
from loads.runs import Execution
from programs import SCRIPTS, WITHIN_S, databases, interrupt, run
from queries import insert

from cmdbus import Command

LOADTEST = SCRIPTS / "loadtest"
TINY = ["--instances", "2", "--procs", "1", "--threads", "2", "--commands", "200"]
FIGURES = [
    *("sent", "completed", "lost", "duplicates", "kills"),
    *("rate", "p50_ms", "p95_ms", "p99_ms", "connections"),
]

pytestmark = [
    pytest.mark.timeout(WITHIN_S + 10),
    pytest.mark.skipif(not LOADTEST.exists(), reason="needs the checkout's scripts"),
]


@pytest.mark.process
def test_every_command_ends_once_while_workers_are_killed(dsn: str) -> None:
    """Each effect is there once, by processes of several supervisors."""
    done = run(
        "loadtest",
        "--json",
        "--dsn",
        dsn,
        *TINY,
        "--workload",
        "tx",
        "--rate",
        "200/s",
        "--kill-every",
        "0.4",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found)[:5] == FIGURES[:5] and set(FIGURES) <= set(found)
    assert (found["sent"], found["completed"]) == (200, 200)
    assert (found["lost"], found["duplicates"], found["invented"]) == (0, 0, 0)
    assert found["unexpected"] == 0
    assert found["kills"] >= 1
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"]
    assert 0 < found["connections"] <= 2 * 8 + 6
    assert "all of 2 instances fit: each needs up to 8 connections" in done.stderr
    assert "200 of 200, " in done.stderr
    assert "\r" not in done.stderr


@pytest.mark.process
def test_failures_come_to_the_ends_that_were_expected(dsn: str) -> None:
    """Expected against actual shares."""
    done = run("loadtest", "--json", "--dsn", dsn, *TINY, "--instances", "1", "--workload", "fail")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ends"] == {
        "COMPLETED in attempt 1": 140,
        "COMPLETED in attempt 3": 20,
        "FAILED RULE in attempt 1": 19,
        "IN_TROUBLESHOOTING_QUEUE PERMANENT in attempt 1": 10,
        "IN_TROUBLESHOOTING_QUEUE TRANSIENT in attempt 3": 10,
        "IN_TROUBLESHOOTING_QUEUE TIMEOUT in attempt 1": 1,
    }
    assert (found["completed"], found["lost"], found["duplicates"]) == (160, 0, 0)
    assert "20 (10.00 %)" in done.stdout


@pytest.mark.long
@pytest.mark.process
def test_transfers_keep_the_balances_while_what_runs_them_is_killed(dsn: str) -> None:
    """Workers, stewards and supervisors: each process ends, and no step is done twice."""
    options = ["--workload", "transfer", "--kill-every", "0.5"]
    done = run("loadtest", "--json", "--dsn", dsn, *TINY, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["started"] == 200 == sum(found["ends"].values())
    assert {"COMPLETED", "COMPENSATED"} <= set(found["ends"])
    assert [found[name] for name in ("lost", "wrong_accounts", "money", "twice")] == [0] * 4
    assert found["kills"] >= 1


@pytest.mark.process
def test_an_interrupted_load_ends_its_instances_and_drops_its_database(dsn: str) -> None:
    arguments = ["--dsn", dsn, *TINY, "--instances", "1", "--rate", "10"]

    def await_commands(process: "subprocess.Popen[bytes]") -> None:
        eventually(lambda: commands_in(dsn, f"cmdbus_load_{process.pid}_%"), WITHIN_S)

    pid, output = interrupt("loadtest", *arguments, when=await_commands)
    assert "interrupted" in output
    assert databases(dsn, f"cmdbus_load_{pid}_%") == []


def test_what_is_lost_doubled_or_invented_is_counted(dsn: str) -> None:
    """Each of the ways in which the checks can find something."""
    lost, waits, twice, tried, doubled, unwanted, without, fine = ids = [uuid4() for _ in range(8)]
    ids += [both := uuid4(), again := uuid4(), trouble := uuid4(), killed := uuid4()]
    stranger = uuid4()
    with psycopg.connect(dsn, autocommit=True) as connection:

        def put(table: str, id_: UUID, **more: object) -> None:
            row = {"command_id": id_, "correlation_id": id_, "data": "0", "priority": 5}
            insert(connection, f"cmdbus.{table}", domain="load", type="Tx", **row, **more)

        put("ready", waits)
        ended: dict[str, Any] = {"token": 1, "created_at": datetime.now(UTC)}
        put("troubleshooting", trouble, attempts=0, losses=0, **ended)
        put("finished", unwanted, attempts=1, losses=0, status="FAILED", **ended)
        ended["status"] = "COMPLETED"
        put("finished", tried, attempts=3, losses=0, **ended)
        for id_ in (twice, twice, doubled, without, fine, stranger, again):
            put("finished", id_, attempts=1, losses=0, **ended)
        for id_ in (both, killed):
            put("finished", id_, attempts=1, losses=1, **ended)
        insert(connection, "cmdbus.event", command_id=tried, domain="load", kind="FAILED")
        for id_ in (twice, tried, doubled, doubled, unwanted, fine, both, again, killed):
            connection.execute("INSERT INTO effect VALUES (%s)", (id_,))
        sent = [(id_, "Tx") for id_ in ids]
        times = [
            *((fine, 1, 2), (killed, 3, 4), (killed, 5, 6)),
            *((both, 1, 5), (both, 4, 6)),  # Each of them is accounted for; but at once.
            *((again, 1, 2), (again, 3, 4)),
        ]
        mix = workloads.WORKLOADS["tx"]
        found = verdict.judge(connection, sent, mix, [Execution(*each) for each in times])
    assert found.sent == 12
    assert found.lost == len((lost, waits, without))
    # A row, an attempt, and two effects too many; and FAILED without an event.
    assert found.duplicates == len((twice, tried, doubled, unwanted)) + 1 + len((both, again))
    assert found.invented == 1
    assert found.unexpected == len((unwanted, tried, trouble))
    assert not found.ok


def test_shares_are_exact_and_in_the_same_order_each_time() -> None:
    for name, mix in workloads.WORKLOADS.items():
        types = workloads.types_of(mix, 997)
        assert types == workloads.types_of(mix, 997), name
        assert {t: types.count(t) for t in set(types)} == {
            t: n for t, n in workloads.counts_of(mix, 997).items() if n
        }
        assert sum(workloads.expected(mix, 997).values()) == 997
        assert {part.type for part in mix} <= {h.type for h in handlers.registry}


def test_as_many_instances_run_as_there_are_connections_for() -> None:
    one = need(4, 8)
    server = ConnectionBudget(most=100, reserved=3, others=2)
    assert (one.peak, server.fitting(10, one)) == (44, 2)
    assert server.sentence(10, one).startswith("only 2 of 10 instances fit: each needs up to 44 ")
    assert ConnectionBudget(most=wanted(10, 4, 8), reserved=3, others=0).fitting(10, one) == 10


def test_a_rate_that_is_none_is_refused() -> None:
    done = run("loadtest", "--json", "--rate", "fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert "commands per second" in done.stderr


def commands_in(dsn: str, name: str) -> Any:
    """Whether commands are being run there."""
    for found in databases(dsn, name):
        with psycopg.connect(dsn, dbname=found, autocommit=True) as connection:
            exists = "SELECT to_regclass('cmdbus.finished') IS NOT NULL"
            if connection.execute(exists).fetchall()[0][0]:
                return connection.execute("SELECT count(*) FROM cmdbus.finished").fetchall()[0][0]
    return 0


def test_executions_are_read_as_they_were_written_even_by_a_process_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(runs.DIRECTORY, str(tmp_path))
    done, killed = (
        Command(
            domain="load",
            type="Noop",
            command_id=uuid4(),
            data=None,
            priority=5,
            correlation_id=uuid4(),
            reply_to=None,
            created_at=datetime.now(UTC),
        )
        for _ in range(2)
    )
    pid = os.fork()
    if pid == 0:
        context: Any = None
        runs.recorded(lambda command, context: None)(done, context)
        runs.recorded(lambda command, context: os.kill(os.getpid(), signal.SIGKILL))(
            killed, context
        )
    os.waitpid(pid, 0)
    path = tmp_path / f"runs.{pid}"
    path.write_bytes(path.read_bytes() + b"half a record")
    first, second = runs.executions(tmp_path)
    assert (first.command_id, second.command_id) == (done.command_id, killed.command_id)
    assert first.entered <= first.left <= second.entered == second.left
