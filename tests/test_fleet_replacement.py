"""Processes that are replaced by order or by age: the successor first, and nothing is lost."""

import re
import signal
from pathlib import Path

import pytest
from eventually import eventually, stays
from fleet import Fleet, kill, write_app

from cmdbus.board.records import Role

pytestmark = pytest.mark.fleet

APP = "from fleet_app import registry as registry"
#: A process that has been degraded for 1.5 s is replaced.
QUICK = {
    "statement_timeout": 0.2,
    "pool_timeout": 0.2,
    "visibility_timeout": 0.5,
    "thread_timeout": 1,
    "watchdog_timeout": 1.5,
}
#: Warnings of a machine that stalls for a moment.
STALLS = re.compile("stalled for|is overdue|has recovered in time")
#: Imports well in the preflight, and in no worker process that a reload starts.
BROKEN_IN_WORKERS = """
import sys
from fleet_app import registry as registry
if "cmdbus.worker.boot.process" in sys.modules:
    raise RuntimeError("no such service")
"""
#: As BROKEN_IN_WORKERS, but for the first process that imports it.
BROKEN_IN_MOST_WORKERS = """
import os
import sys
from fleet_app import registry as registry
if "cmdbus.worker.boot.process" in sys.modules:
    os.close(os.open("imported", os.O_CREAT | os.O_EXCL))
"""


def capacities(fleet: Fleet) -> list[int]:
    """How many processes claimed after each that began to and each that ceased to, once the
    fleet was whole."""
    claiming: set[str] = set()
    counts = []
    # Within a millisecond, a process stops when its successor runs.
    events = sorted(fleet.events(), key=lambda e: (e["time"], " stops" in e["message"]))
    for event in events:
        if began_or_ceased := re.match(r"worker \S+:(\d+) (runs|stops)", event["message"]):
            pid, what = began_or_ceased.groups()
            (claiming.add if what == "runs" else claiming.remove)(pid)
            counts.append(len(claiming))
    return counts[int(str(fleet.options["procs"])) - 1 :]


def test_a_reload_replaces_one_process_after_another(fleet: Fleet, tmp_path: Path) -> None:
    """A HUP while one is under way changes nothing, and a broken application leaves
    the fleet as it is, wherever it breaks."""
    before, steward = fleet.pids(), fleet.steward()
    ids = fleet.send("Debit", 300, data=0.02)
    fleet.send_signal(signal.SIGHUP)
    fleet.await_saying("reloading: checking")
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(before.values())
    eventually(lambda: fleet.steward() not in (None, steward), 30)
    assert capacities(fleet) == [2, 3, 2, 3, 2]
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 300}
    assert fleet.look().restarts["reloaded"] == 3
    assert not [text for text in fleet.messages(level="warning") if not STALLS.search(text)]
    for text, line in (
        ("raise RuntimeError('no such file')", "RuntimeError: no such file"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "goes on as it is: app: its check was killed by SIGKILL",
        ),
        (BROKEN_IN_WORKERS, "the fleet keeps the old one"),
    ):
        after, steward = fleet.wait_until_ready(), fleet.steward()
        write_app(tmp_path, text)
        fleet.send_signal(signal.SIGHUP)
        fleet.await_saying(line)
        assert fleet.pids() == after
        more = fleet.send("Debit", 10)
        fleet.await_completed(more)
    assert fleet.steward() == steward
    write_app(tmp_path, APP)


def test_a_reload_after_one_that_failed_half_way_replaces_every_process(
    fleet: Fleet, tmp_path: Path
) -> None:
    before = fleet.pids()
    write_app(tmp_path, BROKEN_IN_MOST_WORKERS)
    fleet.send_signal(signal.SIGHUP)
    fleet.await_saying("the fleet keeps the old one")
    mixed = fleet.wait_until_ready()
    assert len({*before.values()} & {*mixed.values()}) == 1
    write_app(tmp_path, APP)
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(mixed.values())


def test_a_fleet_goes_on_while_its_successors_cannot_import_the_application(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Half a deployment: ready workers go on, and the next start waits ever longer. Without
    a steward they poll."""
    before, steward = fleet.pids(), fleet.steward()
    assert steward is not None
    write_app(tmp_path, "raise RuntimeError('half a deployment')")
    kill([before[0], steward])
    fleet.await_saying("exited with code 3", 4, within=20.0)
    fleet.await_saying("as soon as they start: the ready ones continue, the next start waits")
    fleet.await_completed(fleet.send("Noop", 10))
    assert fleet.pids() == {1: before[1]}
    assert len(fleet.logged("a process cannot start: the ready ones continue")) == 1
    write_app(tmp_path, APP)
    assert fleet.wait_until_ready(within=30.0)[1] == before[1]


def test_there_can_be_more_processes_and_fewer(fleet: Fleet) -> None:
    """TTIN and TTOU; never less than one, and a process that leaves ends what it runs."""
    fleet.send_signal(signal.SIGTTIN)
    three = fleet.wait_until_ready(3)
    ids = fleet.start_gates(12)
    for text in ("2 worker processes from", "1 worker process from", "1 worker process stays"):
        fleet.send_signal(signal.SIGTTOU)
        fleet.await_saying(text)
    eventually(lambda: fleet.pids() == {0: three[0]})
    fleet.open_gate()
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 12}
    assert set(fleet.look().restarts.values()) == {0}

    def at_its_most() -> list[str]:
        fleet.send_signal(signal.SIGTTIN)
        return fleet.logged("6 worker processes stay: the board has no seat for more")

    eventually(at_its_most)


@pytest.mark.fleet(procs=1, max_commands=50, max_rss="150M")
def test_processes_are_replaced_at_their_limits_of_commands_and_memory(fleet: Fleet) -> None:
    """The replacement first, and no attempt is lost."""
    # First what only a process that has run few commands is replaced for.
    first = fleet.pids().values()
    ids = fleet.send("Leak", 8, data=20_000_000)
    fleet.await_completed(ids)
    second = fleet.await_successors(first).values()
    ids = fleet.send("Debit", 200, data=0.01)
    fleet.await_successors(second)
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 200}
    assert set(capacities(fleet)) == {1, 2}
    assert fleet.look().restarts["recycled"] >= 2
    assert fleet.logged("recycled, as its predecessor has reached a limit: it has run ")
    assert fleet.logged("MiB of memory (--max-rss 150M)")
    eventually(lambda: all(s.rss_bytes for s in fleet.look().with_role(Role.WORKER)))


@pytest.mark.fleet(procs=1, max_age=0.5)
def test_processes_are_replaced_at_their_maximum_age(fleet: Fleet) -> None:
    fleet.await_successors(fleet.pids().values())
    assert fleet.logged(" s old (--max-age 0.5)")
    fleet.await_completed(fleet.send("Debit", 8, data=0.1))
    assert set(capacities(fleet)) == {1, 2}


@pytest.mark.fleet(**QUICK)
def test_a_degraded_process_is_replaced_while_another_is_healthy(fleet: Fleet) -> None:
    """Gently. If all are degraded the cause is outside, and no process is replaced."""

    def have_health(numbers: set[int], health: str, type: str, data: object = None) -> bool:
        """After more of these commands: one of the processes may run all that are there."""
        fleet.send(type, 30, data=data)
        workers = fleet.workers()
        return {workers[number].health for number in numbers} == {health}

    def are_degraded() -> bool:
        """And none is replaced, because it was degraded alone for long enough."""
        whole = len(fleet.look().with_role(Role.WORKER)) == 2
        return whole and have_health({0, 1}, "DEGRADED", "Fail")

    eventually(are_degraded, 30)
    before, replaced = fleet.pids(), fleet.look().restarts["degraded"]
    stays(lambda: fleet.pids() == before, 2.0)
    eventually(lambda: have_health({1}, "HEALTHY", "FailFrom", before[0]))
    after = fleet.await_successors([before[0]])
    assert after[1] == before[1]
    assert fleet.logged(": degraded")[-1].startswith("worker 0 starts")
    assert set(capacities(fleet)) == {2, 3}
    assert fleet.look().restarts["degraded"] == replaced + 1
    fleet.await_health()
