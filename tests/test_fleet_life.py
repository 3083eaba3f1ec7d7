"""A fleet starts, drains or gives up, and its exit code says how that went."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from fleet import Fleet, kill, unstarted, write_app

from cmdbus.board.records import Role

pytestmark = pytest.mark.fleet

BLOCKS_SIGNALS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execv(sys.argv[1], sys.argv[1:])
"""
#: Kills every process of the fleet, and not the preflight, as soon as it has imported this.
DIES_AT_ONCE = """
import os, sys
from fleet_app import registry as registry
if "cmdbus.worker.boot.process" in sys.modules:
    os._exit(7)
"""
#: The check before the start can import it.
NO_PROCESS_CAN_IMPORT = """
import sys
from fleet_app import registry as registry
assert "cmdbus.worker.boot.process" not in sys.modules
"""


def test_a_fleet_starts_runs_and_stops_and_leaves_nothing(fleet: Fleet) -> None:
    ids = fleet.send("Debit", 100)
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 100}
    assert len(fleet.living()) == 1 + 1 + 2
    last = fleet.start_gates(1)
    fleet.send_signal(signal.SIGTERM)
    fleet.await_saying("stops: running commands may end")
    fleet.open_gate()
    assert fleet.wait() == 0
    fleet.assert_nothing_left()
    assert fleet.outcomes(last) == {("COMPLETED", 1): 1}
    assert list(fleet.directory.iterdir()) == []


@pytest.mark.fleet(started=False, drain=True, procs=1)
def test_a_fleet_that_drains_ends_when_everything_is_done(fleet: Fleet) -> None:
    """What is due later is not waited for, what is due soon and what fails is done."""
    ids = fleet.send("Debit", 300) + fleet.send("Debit", 4, data=1.5)
    later = fleet.send("Noop", delay=3600)
    failing = fleet.send("Fail")
    fleet.start()
    assert fleet.wait() == 0
    fleet.assert_nothing_left()
    assert fleet.outcomes(ids) == {("COMPLETED", 1): 304}
    assert fleet.effects(ids) == {1: 304}
    assert fleet.outcomes(later) == {("PENDING", 0): 1}
    assert fleet.outcomes(failing) == {("IN_TROUBLESHOOTING_QUEUE", 1): 1}


@pytest.mark.fleet(started=False, drain=True, procs=2, wake="poll")
def test_a_fleet_that_polls_drains_soon(fleet: Fleet) -> None:
    ids = fleet.send("Noop", 10)
    fleet.start()
    assert fleet.wait(15) == 0
    assert fleet.outcomes(ids) == {("COMPLETED", 1): 10}


@pytest.mark.fleet(
    started=False,
    drain=True,
    procs=1,
    threads=2,
    drain_timeout=0.5,
    thread_timeout=10,
    watchdog_timeout=12,
)
def test_a_fleet_that_drains_waits_for_what_runs_and_what_becomes_due_meanwhile(
    fleet: Fleet,
) -> None:
    """An idle thread, while another one runs a command, is no sign that the fleet is drained."""
    running, retried = fleet.send("Sleep", data=2.8), fleet.send("FailOnce")
    soon = fleet.send("Noop", delay=2)
    fleet.start()
    assert fleet.wait() == 0
    assert fleet.outcomes(running + soon) == {("COMPLETED", 1): 2}
    assert fleet.outcomes(retried) == {("COMPLETED", 2): 1}


def test_a_fleet_that_cannot_start_says_why_and_ends_with_three(
    dsn: str, empty_dsn: str, tmp_path: Path
) -> None:
    """Exit codes 3 and 2: nothing is tried again that cannot get better."""
    places = [tmp_path / name for name in ("app", "schema", "usage")]
    for path in places:
        path.mkdir()
    app, schema, usage = places
    write_app(app, "import a_module_that_is_missing")
    cases: tuple[tuple[Path, str, dict[str, Any], int, str], ...] = (
        (app, dsn, {}, 3, "a_module_that_is_missing"),
        (schema, empty_dsn, {}, 3, "cmdbus init"),
        (usage, dsn, {"thread_timeout": 1}, 3, "--visibility-timeout"),
        (usage, dsn, {"threads": 0}, 2, "--threads"),
    )
    for path, its_dsn, options, code, sentence in cases:
        with unstarted(its_dsn, path, **options) as fleet:
            fleet.start()
            assert fleet.wait() == code
            assert sentence in fleet.log.read_text()
            assert fleet.logged("starts, pid") == []
            assert not fleet.board_path.exists()


@pytest.mark.fleet(
    procs=1, threads=8, visibility_timeout=60, thread_timeout=70, watchdog_timeout=90
)
def test_a_second_supervisor_of_a_name_is_refused_also_if_the_pidfile_was_removed(
    fleet: Fleet,
) -> None:
    """Programs that remove old files do that. The board is locked, and the pidfile is put back."""
    ids = fleet.start_gates(8)
    first, pidfile = fleet.process, fleet.directory / "cmdbus.pid"
    for refusals in (1, 2):
        fleet.start()
        assert fleet.wait() == 3
        fleet.process = first
        fleet.await_saying(f"runs already (pid {fleet.pid})", refusals)
        pidfile.unlink(missing_ok=True)
    eventually(lambda: pidfile.exists() and pidfile.read_text() == f"{fleet.pid}\n", 15.0)
    fleet.open_gate()
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 8}
    assert fleet.query("SELECT max(token) FROM cmdbus.finished") == [(1,)]


@pytest.mark.fleet(started=False, procs=1)
def test_a_supervisor_whose_parent_blocks_signals_can_be_stopped(fleet: Fleet) -> None:
    fleet.program = [sys.executable, "-c", BLOCKS_SIGNALS, *fleet.program]
    fleet.start()
    before = fleet.wait_until_ready()
    fleet.send_signal(signal.SIGUSR1)
    fleet.await_saying("the stacks of worker")
    assert "most recent call first" in fleet.logged("the stacks of worker")[0]
    kill(before[0], signal.SIGTERM)
    fleet.await_successors([before[0]])


@pytest.mark.fleet(started=False)
def test_a_fleet_whose_workers_cannot_import_the_application_ends(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Although its preflight could. The reason is logged once."""
    write_app(tmp_path, NO_PROCESS_CAN_IMPORT)
    fleet.start()
    assert fleet.wait() == 3
    assert len(fleet.logged("importing shop failed")) == 1
    assert fleet.living() == []


@pytest.mark.fleet(started=False)
def test_a_fleet_whose_processes_die_at_once_gives_up(fleet: Fleet, tmp_path: Path) -> None:
    """Exit code 4, after a number of starts that is bounded."""
    write_app(tmp_path, DIES_AT_ONCE)
    fleet.start()
    assert fleet.wait() == 4
    starts = [m for m in fleet.logged("starts, pid") if "supervisor" not in m]
    assert 6 <= len(starts) <= 9
    assert fleet.living() == []


@pytest.mark.fleet(procs=3)
def test_the_crash_of_the_last_ready_worker_is_no_crash_loop(fleet: Fleet) -> None:
    """Its successor starts at once, however many others have exited early."""
    gates = fleet.start_gates(1)
    [last] = fleet.executing("Gate")
    killed = {last}

    def is_alone() -> bool:
        """After too many early exits: the others are killed as soon as they have begun to start,
        however slow that is."""
        pids = {seat.pid for seat in fleet.look().with_role(Role.WORKER) if seat.pid}
        kill(pids - killed)
        killed.update(pids)
        return pids == {last} and bool(fleet.logged("the ready ones continue"))

    eventually(is_alone, 30)
    kill(last)
    fleet.open_gate()
    fleet.await_completed(gates)
    assert fleet.running


@pytest.mark.fleet(procs=1)
def test_a_worker_that_a_stranger_ends_is_replaced(fleet: Fleet) -> None:
    """A TERM that an operator sends to a child: it beats until what it runs has ended, while its
    successor runs."""
    before = fleet.pids()
    ids = fleet.start_gates(1)
    kill(before.values(), signal.SIGTERM)
    fleet.await_successors(before.values())
    [stopping] = fleet.look().with_role(Role.STOPPING)
    due = stopping.due
    assert stopping.pid in before.values() and stopping.terminated and due
    eventually(lambda: (fleet.look().with_role(Role.STOPPING)[0].due or 0) > due + 2 * 10**9)
    fleet.open_gate()
    fleet.await_completed(ids)
    eventually(lambda: not fleet.look().with_role(Role.STOPPING))
    steward = fleet.steward()
    assert steward is not None
    kill(steward, signal.SIGTERM)
    fleet.succeeded(steward)
    reports = fleet.logged(", was stopped by a SIGTERM that the supervisor did not send")
    stopped = sorted(text[: text.index(",")] for text in reports)
    assert stopped == ["steward", "worker 0"]
    assert {reason: n for reason, n in fleet.look().restarts.items() if n} == {"terminated": 2}
    assert not fleet.messages(level="error")
