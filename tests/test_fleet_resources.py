"""A fleet that has no descriptors, processes, threads or memory left: it goes on when it has."""

import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from eventually import eventually
from fleet import Fleet, await_rest, kill, write_app
from lab.debugger import held
from surroundings import assert_goes_on, control_group, start_in

from cmdbus.board.records import Phase

pytestmark = pytest.mark.fleet

#: What hangs is found after two seconds.
SHORT: Mapping[str, float] = {
    "statement_timeout": 0.8,
    "pool_timeout": 1,
    "visibility_timeout": 1,
    "thread_timeout": 1.5,
    "watchdog_timeout": 2,
    "drain_timeout": 1,
}


def highest_descriptor(pid: int) -> int:
    return max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.fleet(procs=1)
def test_a_process_without_descriptors_fails_the_attempt_and_the_fleet_goes_on(
    fleet: Fleet,
) -> None:
    """A handler that uses up its process's, and a supervisor that has none to spare."""
    for pid in fleet.pids().values():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))
    (id,) = fleet.send("Files", data=100, max_attempts=1)
    fleet.await_outcomes([id], {("IN_TROUBLESHOOTING_QUEUE", 1): 1})
    assert "Too many open files" in fleet.trouble(id)[1]
    before = resource.prlimit(fleet.pid, resource.RLIMIT_NOFILE)
    spare = highest_descriptor(fleet.pid) + 1
    resource.prlimit(fleet.pid, resource.RLIMIT_NOFILE, (spare, before[1]))
    fleet.send_signal(signal.SIGHUP)
    fleet.await_saying("not reloaded, cannot start a process: Too many open files")
    resource.prlimit(fleet.pid, resource.RLIMIT_NOFILE, before)
    assert_goes_on(fleet)
    pids = fleet.pids()
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(pids.values())


OUT_OF_DESCRIPTORS = """
import resource
from pathlib import Path
from fleet_app import registry as registry

@registry.handler("shop", "Narrow")
def narrow(command, context):
    context.connection.execute("INSERT INTO effect VALUES (%s)", (command.command_id,))
    if not Path(command.data).exists():
        Path(command.data).touch()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            context.connection.execute("SELECT 1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
"""


@pytest.mark.fleet(procs=1, started=False)
def test_a_session_that_the_system_lets_nobody_wait_for_charges_nobody(
    fleet: Fleet, tmp_path: Path
) -> None:
    write_app(tmp_path, OUT_OF_DESCRIPTORS)
    fleet.start()
    ids = fleet.send("Narrow", data="was there")
    fleet.await_completed(ids)
    assert (tmp_path / "was there").exists() and fleet.effects(ids) == {1: 1}


@pytest.mark.fleet(threads=1, poll_interval=600, watchdog_timeout=60)
def test_a_worker_that_is_woken_and_cannot_reach_the_database_wakes_another(fleet: Fleet) -> None:
    """It has lost its session, and has no descriptor for a new one."""
    eventually(lambda: all(seat.parked for seat in fleet.workers().values()))
    eventually(lambda: fleet.look().armed)
    woken, other = fleet.workers().values()
    assert woken.pid is not None and other.pid is not None
    before = resource.prlimit(woken.pid, resource.RLIMIT_NOFILE)
    most = highest_descriptor(woken.pid) + 1
    resource.prlimit(woken.pid, resource.RLIMIT_NOFILE, (most, before[1]))
    for slot in woken.slots:
        fleet.query("SELECT pg_terminate_backend(%s, 5000)", slot.backend_pid)
    kill(other.pid, signal.SIGSTOP)
    ids = fleet.send("Noop")
    eventually(lambda: any(slot.phase is Phase.AWAY for slot in fleet.workers()[0].slots))
    kill(other.pid, signal.SIGCONT)
    fleet.await_completed(ids)
    resource.prlimit(woken.pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("maintains", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.fleet(procs=1, http="127.0.0.1:0")
def test_a_steward_without_descriptors_works_again_when_it_has_some(
    fleet: Fleet, maintains: bool
) -> None:
    """Also the thread that counts and, 10 s after its start, the one that maintains, which open
    sessions of their own."""
    steward = fleet.steward()
    assert steward is not None
    before = resource.prlimit(steward, resource.RLIMIT_NOFILE)
    # One client fits, and no session in addition.
    most = highest_descriptor(steward) + 2
    resource.prlimit(steward, resource.RLIMIT_NOFILE, (most, before[1]))
    assert "cmdbus_queue_depth{" not in fleet.ask("/metrics")[1]
    if maintains:
        fleet.await_saying("cannot maintain the schema: [Errno 24] Too many open files")
    resource.prlimit(steward, resource.RLIMIT_NOFILE, before)
    fleet.send("Noop", delay=3600)
    eventually(lambda: "cmdbus_queue_depth{" in fleet.ask("/metrics")[1])
    assert fleet.steward() == steward


@pytest.mark.fleet(started=False)
def test_a_start_with_too_few_descriptors_says_so(fleet: Fleet) -> None:
    """Wherever it meets that; it waits where the cause may pass."""
    for descriptors in range(9, 13):
        before = len(fleet.logged("Too many open files")) if fleet.log.exists() else 0
        fleet.start(shell=f'ulimit -n {descriptors}; exec "$@"')
        fleet.await_saying("Too many open files", count=before + 1)
        assert fleet.stop() in (0, 3)


@pytest.mark.fleet(started=False, procs=1, http="127.0.0.1:0")
def test_a_supervisor_that_can_start_no_process_waits_until_it_can(fleet: Fleet) -> None:
    """Also for the process that answers probes meanwhile, and for its threads."""
    with control_group("pids") as group:
        group.limit(1)
        fleet.start(shell=f'echo 0 > {group.entrance}; exec "$@"')
        none = "cannot start a process (Resource temporarily unavailable)"
        fleet.await_saying(f"{none}: trying again every")
        assert len(fleet.logged(f"not answered for the moment: {none}")) == 1
        group.limit(2)
        fleet.await_saying("the process that answers them found no thread left")
        group.limit(None)
        fleet.wait_until_ready()


@pytest.mark.fleet(**SHORT)
def test_a_process_that_does_not_die_of_sigkill_is_given_up(fleet: Fleet) -> None:
    """It is replaced, and what it held runs again, once; it is logged, counted, and
    reaped when it can die at last."""
    with control_group("freezer") as group:
        before = fleet.pids()
        ids = fleet.start_gates(8)
        group.add(before[0])
        group.freeze()
        kill(before[0])
        fleet.await_saying("survived SIGKILL (disk wait?)")
        fleet.open_gate()
        fleet.await_completed(ids)
        assert fleet.await_successors([before[0]])[1] == before[1]
        assert fleet.look().undead == 1 and before[0] in fleet.living()
        assert_goes_on(fleet)
        group.thaw()
        eventually(lambda: not fleet.look().undead)
        assert before[0] not in fleet.living()
        assert fleet.effects(ids) == {1: 8}
        assert len(fleet.logged("survived SIGKILL (disk wait?)")) == 1
        assert len(fleet.logged("which was given up, has exited")) == 1
        await_rest(fleet)
        assert fleet.look().listening


@pytest.mark.fleet(watchdog_timeout=60)
def test_a_process_that_dies_while_a_debugger_holds_it_is_replaced_at_once(fleet: Fleet) -> None:
    """Long before it counts as hung, although it cannot be reaped; and the supervisor rests."""
    before = fleet.pids()
    ids = fleet.start_gates(8)
    with held(before[0]) as attached:
        if not attached:
            pytest.skip("this user may not attach to a process")
        kill(before[0])
        fleet.await_saying("has exited, but a debugger holds it")
        fleet.open_gate()
        assert fleet.await_successors([before[0]])[1] == before[1]
        fleet.await_completed(ids)
        assert fleet.look().undead == 1 and fleet.look().restarts["crashed"] == 1
        supervisor, began = psutil.Process(fleet.pid), time.monotonic()
        idle = supervisor.cpu_times().user
        fleet.await_completed(fleet.send("Sleep", data=1))
        assert supervisor.cpu_times().user - idle < 0.1 * (time.monotonic() - began)
    fleet.await_saying("which was given up, has exited")
    eventually(lambda: not fleet.look().undead)
    assert fleet.effects(ids) == {1: 8}


@pytest.mark.fleet(started=False, http="127.0.0.1:0")
def test_without_room_for_processes_it_tries_again(fleet: Fleet) -> None:
    """For none at all, or for a process and not for its threads. It is no crash loop
    however often it is; and it heals when there is room."""
    with control_group("pids") as group:
        before = start_in(group, fleet)
        group.limit(1)
        kill(before[0])
        fleet.await_saying(
            "cannot start a process (Resource temporarily unavailable): trying again in"
        )
        assert fleet.readiness() == (200, ["worker 0 has no process"])
        fleet.await_completed(fleet.send("Noop", 10))
        group.limit(group.used + 2)
        fleet.await_saying("the system has no thread left for it: trying again in")
        group.limit(None)
        assert fleet.await_successors([before[0]])[1] == before[1]
        assert fleet.readiness() == (200, [])
        assert_goes_on(fleet)


@pytest.mark.fleet(started=False, procs=1, threads=1, **{**SHORT, "watchdog_timeout": 20})
def test_a_slot_that_was_given_up_gets_a_thread_when_there_is_room(fleet: Fleet) -> None:
    """The only one of its process, with the lead."""
    with control_group("pids") as group:
        before = start_in(group, fleet)
        (id,) = fleet.send("Hang", max_attempts=1)
        eventually(lambda: fleet.executing("Hang"))
        group.limit(1)
        fleet.await_saying("housekeeping failed, and is tried again: can't start new thread")
        ids = fleet.send("Noop", 10)
        group.limit(None)
        fleet.await_completed(ids)
        assert fleet.trouble(id)[0] == "TIMEOUT"
        assert fleet.pids() == before


@pytest.mark.fleet(started=False, procs=1)
def test_a_command_that_takes_all_memory_goes_to_a_person_and_charges_nobody(fleet: Fleet) -> None:
    """The kernel kills its process; after the second loss it runs in quarantine, and the third
    ends it. Other commands of its process run again."""
    with control_group("memory") as group:
        group.limit(300 << 20)
        start_in(group, fleet)
        innocents = fleet.start_gates(3)
        (id,) = fleet.send("Hog")
        fleet.await_saying("perhaps because memory ran out (OOM)")
        fleet.open_gate()
        fleet.await_outcomes([id], {("IN_TROUBLESHOOTING_QUEUE", 0): 1}, within=40)
        assert fleet.trouble(id)[0] == "LOST"
        killed = fleet.logged("perhaps because memory ran out (OOM)")
        assert len([text for text in killed if "shop/Hog" in text]) == 3
        fleet.await_completed(innocents)
        assert fleet.effects(innocents) == {1: 3}
        fleet.await_successors([])
