"""Whatever a command does to its thread or its process: it is found, no other is charged, and the
fleet is whole again."""

import signal
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from eventually import eventually
from fleet import Fleet, kill
from tracing import ends_other_threads

from cmdbus.board.records import Role

#: Watchdog 3.5 s. What is late is found within its rung and a second, on a machine with room.
SHORT: Mapping[str, float] = {
    "statement_timeout": 1,
    "pool_timeout": 1,
    "visibility_timeout": 1.9,
    "thread_timeout": 2,
    "watchdog_timeout": 3.5,
    "drain_timeout": 1,
}
pytestmark = pytest.mark.fleet(**SHORT)


def await_trouble(fleet: Fleet, id: UUID) -> tuple[str, str, dict[str, Any]]:
    """Each suspect before it takes the start of a process."""
    fleet.await_outcomes([id], {("IN_TROUBLESHOOTING_QUEUE", 1): 1}, within=60)
    return fleet.trouble(id)


def details_of(trouble: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    return dict(trouble[2]["details"])


def stuck_threads(fleet: Fleet) -> dict[int | None, int]:
    """By the process that has any, until it is dead."""
    seats = [seat for seat in fleet.look().seats if seat.role in (Role.WORKER, Role.STOPPING)]
    return {seat.pid: count for seat in seats if (count := seat.levels.stuck_threads)}


def stay_stopped(fleet: Fleet, others: list[int], seconds: float) -> None:
    """The supervisor, and others that it finds stopped when it goes on. The wait is the fault."""
    stalls = len(fleet.logged("the supervisor stalled"))
    kill([fleet.pid, *others], signal.SIGSTOP)
    time.sleep(seconds)
    kill(fleet.pid, signal.SIGCONT)
    fleet.await_saying("the supervisor stalled", stalls + 1)
    kill(others, signal.SIGCONT)


def test_a_command_that_hangs_is_given_up_and_its_process_replaced(fleet: Fleet) -> None:
    """At the thread timeout the attempt fails, with its stack; if the thread stays stuck, the
    process stops. It counts once, other commands run on, and the other process stays."""
    before = fleet.pids()
    (id,) = fleet.send("Hang", max_attempts=1)
    (gil_holder,) = eventually(lambda: fleet.executing("Hang"))
    innocents = fleet.send("Noop", 100) + fleet.send("Sleep", 12, data=0.5)
    assert eventually(lambda: stuck_threads(fleet)) == {gil_holder: 1}
    code, message, details = await_trouble(fleet, id)
    assert (code, details["reason"]) == ("TIMEOUT", "EXHAUSTED")
    assert "gave up after 2 s" in message
    assert "in hang" in details["details"]["stack"]
    fleet.await_completed(innocents)
    number = next(number for number, pid in before.items() if pid == gil_holder)
    # The supervisor may have stalled, and pauses then.
    eventually(lambda: fleet.pids().get(number, gil_holder) != gil_holder, 30)
    eventually(lambda: gil_holder not in fleet.living())
    after = fleet.wait_until_ready()
    assert after[1 - number] == before[1 - number]
    (report,) = fleet.logged("is ordered to stop: a slot is stuck")
    assert f"it ran shop/Hang {id} (attempt 1, slot " in report
    assert fleet.look().restarts["stuck"] == 1


@pytest.mark.fleet(procs=1, watchdog_timeout=20)
def test_a_fleet_whose_threads_all_hang_heals(fleet: Fleet) -> None:
    """More than three stuck threads replace their process at once, and not when the watchdog does
    it because of one of them."""
    before = fleet.pids()
    ids = fleet.send("Hang", 4, max_attempts=1)
    eventually(lambda: len(fleet.executing("Hang")) == 4)
    behind = fleet.send("Noop", 100)
    fleet.await_completed(behind)
    fleet.await_outcomes(ids, {("IN_TROUBLESHOOTING_QUEUE", 1): 4})
    fleet.await_successors(before.values())
    eventually(lambda: not set(before.values()) & set(fleet.living()))
    assert fleet.look().restarts["stuck"] == 1
    assert fleet.logged("4 stuck threads within 5 minutes")
    fleet.await_health()


def test_a_command_that_crashes_its_process_is_found_among_innocent_ones(fleet: Fleet) -> None:
    """Commands of the same process run again; the one that crashes alone is the cause."""
    innocents = fleet.send("Debit", 100, data=0.01)
    crashing = [fleet.send(type)[0] for type in ("Segfault", "Abort", "Leave")]
    innocents += fleet.send("Debit", 100, data=0.01)
    segfault, abort, leave = (await_trouble(fleet, id) for id in crashing)
    assert {code for code, *_ in (segfault, abort, leave)} == {"CRASHED"}
    assert "it ran alone, and its process" in segfault[1]
    assert "SIGSEGV" in segfault[1]
    assert details_of(segfault)["signal"] == signal.SIGSEGV
    fleet.await_saying("the commands of quarantine, pid", 3)
    assert "in segfault" in details_of(segfault)["stack"]
    assert details_of(segfault)["stack"].count("most recent call first") == 1
    assert details_of(abort)["signal"] == signal.SIGABRT
    assert "in abort" in details_of(abort)["stack"]
    assert (details_of(leave)["signal"], details_of(leave)["code"]) == (0, 0)
    assert "exited with code 0" in leave[1]
    fleet.await_completed(innocents)
    assert fleet.effects(innocents) == {1: 200}
    fleet.wait_until_ready()
    eventually(lambda: not fleet.look().with_role(Role.QUARANTINE))


@pytest.mark.long
@pytest.mark.fleet(watchdog_timeout=20)
def test_an_attempt_that_has_ended_by_timeout_is_not_what_a_killed_process_ran(
    fleet: Fleet,
) -> None:
    (id,) = fleet.send("Hang", max_attempts=1)
    (pid,) = eventually(lambda: fleet.executing("Hang"))
    await_trouble(fleet, id)
    kill(pid)
    [line] = fleet.await_saying("was killed by SIGKILL")
    assert "it ran" not in line


@pytest.mark.long
@pytest.mark.fleet(thread_timeout=5, watchdog_timeout=7)
def test_a_suspect_that_times_out_alone_is_no_crash_of_its_process(fleet: Fleet) -> None:
    (id,) = fleet.send("Hang", max_attempts=1)
    killed: set[int] = set()
    for _ in range(2):
        (pid,) = eventually(lambda: set(fleet.executing("Hang")) - killed)
        kill(pid)
        killed.add(pid)
    assert await_trouble(fleet, id)[0] == "TIMEOUT"
    fleet.await_saying("quarantine has stopped")
    assert not fleet.logged("exited with code 0")
    assert fleet.look().restarts["crashed"] == 2
    assert len(fleet.logged("is in the troubleshooting queue")) == 1


@pytest.mark.fleet(procs=3)
def test_a_process_that_does_not_come_back_is_replaced(fleet: Fleet) -> None:
    """The command that holds the GIL is found by its CPU time, and charged, with a stack
    that no Python could write. A stopped process charges no command. The other
    commands run again, and the third process stays."""
    before = fleet.pids()
    innocents = fleet.start_gates(11)
    (id,) = fleet.send("HoldGil", max_attempts=1)
    (gil_holder,) = eventually(lambda: fleet.executing("HoldGil"))
    stopped = next(pid for pid in before.values() if pid != gil_holder)
    kill(stopped, signal.SIGSTOP)
    code, message, details = await_trouble(fleet, id)
    assert code == "TIMEOUT", (code, message)
    assert "held up its whole process" in message
    stack = details["details"]["stack"]
    assert "in hold_gil" in stack and "in gate" not in stack
    (report,) = fleet.logged("main thread hung; it ran")
    assert str(id) in report and "attempt 1, slot" in report
    assert any("in hold_gil" in text for text in fleet.logged("the stacks of worker"))
    fleet.await_saying("is killed: a signal had suspended it; it ran shop/Gate")
    fleet.open_gate()
    fleet.await_completed(innocents)
    assert fleet.effects(innocents) == {1: 11}
    after = fleet.wait_until_ready()
    kept = {number for number, pid in before.items() if pid not in (gil_holder, stopped)}
    assert {number for number, pid in after.items() if before[number] == pid} == kept
    assert not {gil_holder, stopped} & set(fleet.living())
    assert fleet.look().restarts["hung"] == 2


@pytest.mark.fleet(procs=1, visibility_timeout=9, thread_timeout=10, watchdog_timeout=11.5)
def test_a_command_that_holds_the_gil_beyond_a_short_timeout_is_charged(fleet: Fleet) -> None:
    """Its slot is found stuck before the main thread is overdue, which cannot settle it."""
    (neighbour,) = fleet.start_gates(1)
    (id,) = fleet.send("HoldGilBeyondTimeout", max_attempts=1)
    code, message, details = await_trouble(fleet, id)
    assert (code, details["reason"]) == ("TIMEOUT", "EXHAUSTED")
    assert "it held up its whole process" in message and "a command did not end" in message
    assert "in hold_gil_beyond_timeout" in details["details"]["stack"]
    fleet.open_gate()
    fleet.await_completed([neighbour])
    losses = "SELECT losses FROM cmdbus.finished WHERE command_id = %s"
    assert fleet.query(losses, neighbour) == [(1,)]
    assert fleet.look().restarts["stuck"] == 1


@pytest.mark.fleet(procs=1)
def test_a_command_that_replaces_the_clock_and_hangs_is_given_up(fleet: Fleet) -> None:
    before = fleet.pids().values()
    (id,) = fleet.send("FreezeTime", max_attempts=1)
    code, message, _ = await_trouble(fleet, id)
    assert code == "TIMEOUT" and "gave up after 2 s" in message
    fleet.await_successors(before)
    eventually(lambda: not set(before) & set(fleet.living()))
    fleet.await_completed(fleet.send("Noop", 10))


@pytest.mark.fleet(thread_timeout=2.8, watchdog_timeout=3)
def test_no_process_is_killed_because_the_supervisor_was_stopped(fleet: Fleet) -> None:
    """First the supervisor only, then the whole fleet, for longer than the watchdog timeout."""
    before = fleet.pids()
    kill(fleet.pid, signal.SIGSTOP)
    ids = fleet.send("Debit", 20, data=0.1)
    fleet.await_completed(ids)
    stay_stopped(fleet, [], 3.2)
    # Some with a long timeout, some whose time is over before any process runs again, and some
    # whose idle transactions the server ends meanwhile.
    gates, waits = fleet.send("Gate", 3, data="open"), fleet.send("Wait", 3, data="open")
    idle = fleet.send("GateInTime", 2, data="open")
    running = ("Gate", 3), ("Wait", 3), ("GateInTime", 2)
    eventually(lambda: all(len(fleet.executing(type)) == count for type, count in running))
    stay_stopped(fleet, [pid for pid in fleet.living() if pid != fleet.pid], 3.2)
    fleet.open_gate()
    fleet.await_completed([*ids, *gates, *waits, *idle])
    assert fleet.effects([*ids, *gates, *idle]) == {1: 25}
    fleet.await_saying("the process stalled", 2)
    assert fleet.pids() == before
    assert set(fleet.look().restarts.values()) == {0}
    assert not fleet.logged("is overdue"), "one that goes on in time is not killed"


@pytest.mark.parametrize(
    "type",
    [
        pytest.param("EndThreads", marks=ends_other_threads),
        pytest.param("CloseFiles", marks=pytest.mark.long),
        pytest.param("ReuseFiles", marks=pytest.mark.long),
    ],
)
@pytest.mark.fleet(procs=1)
def test_a_process_that_cannot_go_on_is_replaced(fleet: Fleet, type: str) -> None:
    """Threads that were ended, descriptors that were closed under the driver, or that lead to
    another file now: while its main thread goes on, nothing else would show it."""
    before = fleet.pids()
    fleet.send(type)
    ids = fleet.send("Debit", 30)
    # A thread may end while it runs one of them, which is executed again.
    fleet.await_all_completed(ids)
    assert fleet.effects(ids) == {1: 30}
    # A thread that idles ends when it is woken.
    eventually(lambda: fleet.pids() not in (before, {}), 20)
    assert fleet.logged("this process cannot go on, and exits to be replaced")
