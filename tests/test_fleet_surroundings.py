"""A fleet whose surroundings are taken away or spoilt while it runs: work goes on."""

import mmap
import os
import random
import resource
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from fleet import goes_on, kill, make_effects, supervised, unstarted, write_app
from surroundings import control_group

from cmdbus.board.board import Board
from cmdbus.board.layout import CELL

#: Fleets of a busy machine take their time to boot.
pytestmark = [pytest.mark.fleet, pytest.mark.timeout(90)]

#: What hangs is found after two seconds.
SHORT: Mapping[str, Any] = {
    "statement_timeout": 0.8,
    "pool_timeout": 1,
    "visibility_timeout": 1,
    "thread_timeout": 1.5,
    "watchdog_timeout": 2,
    "drain_timeout": 1,
}


def highest_descriptor(pid: int) -> int:
    return max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())


@contextmanager
def nobody_reads(kind: str) -> Iterator[int]:
    """A pipe for the log whose reader is gone, or sleeps while it is full; or a full disk."""
    if kind == "full disk":
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            yield full
        finally:
            os.close(full)
        return
    reader, writer = os.pipe()
    if kind == "gone":
        os.close(reader)
    else:
        os.set_blocking(writer, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
    try:
        yield writer
    finally:
        os.close(writer)
        if kind != "gone":
            os.close(reader)


@pytest.mark.parametrize("kind", ["gone", "asleep", "closed", "full disk"])
def test_a_fleet_runs_without_anybody_who_reads_its_log(
    dsn: str, tmp_path: Path, kind: str
) -> None:
    """The reader of the pipe, the descriptor itself, or room on its disk."""
    make_effects(dsn)
    with unstarted(dsn, tmp_path, log_level="debug") as fleet, nobody_reads(kind) as pipe:
        if kind == "closed":
            fleet.start(shell='exec "$@" <&- >&- 2>&-')
        else:
            fleet.start(stderr=pipe)
        fleet.wait_until_ready()
        goes_on(fleet)
        assert fleet.stop() == 0
        fleet.assert_nothing_left()


def test_a_fleet_whose_runtime_directory_is_removed_goes_on(dsn: str, tmp_path: Path) -> None:
    """It replaces who dies, rolls, and stops well."""
    make_effects(dsn)
    with supervised(dsn, tmp_path) as fleet:
        fleet.look()
        shutil.rmtree(fleet.directory)
        goes_on(fleet)
        before = fleet.pids()
        fleet.send_signal(signal.SIGHUP)
        fleet.await_successors(before.values())
        assert len(fleet.said("is gone or cannot be written: stacks go to the log")) == 1
        assert fleet.stop() == 0


@pytest.mark.parametrize("kind", ["pipes", "huge files"])
def test_nobody_waits_for_what_lies_where_stacks_are_written(
    dsn: str, tmp_path: Path, kind: str
) -> None:
    """Neither the supervisor, which reads them, nor a process that is to write them."""
    make_effects(dsn)
    with supervised(dsn, tmp_path) as fleet:
        for path in (fleet.directory / "cmdbus.stacks").iterdir():
            if kind == "pipes":
                path.unlink()
                os.mkfifo(path)
            else:
                os.truncate(path, 1 << 36)
        fleet.send_signal(signal.SIGUSR1)
        fleet.await_saying("the stacks of worker", 2)
        kill(fleet.pids()[1], signal.SIGABRT)
        goes_on(fleet)


def test_fleets_of_different_names_share_a_database_and_a_directory(
    dsn: str, tmp_path: Path
) -> None:
    """Neither takes the other for a dead one of its name, whatever the names; what
    one leaves when all of it is killed, the other runs when its leases end."""
    make_effects(dsn)
    with (
        unstarted(dsn, tmp_path, alone=False, name="cmdbus.board") as second,
        unstarted(dsn, tmp_path, alone=False) as first,
    ):
        second.start()
        theirs = second.wait_until_ready()
        ids = second.send("Gate", 4, data="open")
        eventually(lambda: len(second.executing("Gate")) == 4)
        first.start()
        first.wait_until_ready()
        ids += first.send("Debit", 100, data=0.01)
        assert second.pids() == theirs
        assert len(second.executing("Gate")) == 4
        kill([second.pid, *second.living()])
        second.wait()
        (tmp_path / "open").touch()
        first.await_completed(ids)
        assert first.effects(ids) == {1: 104}
        assert first.stop() == 0
        first.assert_nothing_left()
        assert second.board_path.exists()


def test_garbage_on_the_board_harms_nobody_for_long(dsn: str, tmp_path: Path) -> None:
    """Whatever processes seem to show, nobody meets an exception or is killed, and
    what is sent then does not wait for the fallback poll."""
    make_effects(dsn)
    dice = random.Random(26)
    with supervised(dsn, tmp_path) as fleet:
        before = fleet.pids()
        board = Board.open(fleet.board_path)
        layout = board.layout
        board.close()
        with fleet.board_path.open("r+b") as file, mmap.mmap(file.fileno(), layout.size) as cells:
            for seat in range(layout.seats):
                begin, end = layout.seat(seat), layout.seat(seat) + layout.seat_cells
                cells[begin * CELL : end * CELL] = dice.randbytes((end - begin) * CELL)
        ids = fleet.send("Debit", 50)
        fleet.await_completed(ids)
        assert fleet.effects(ids) == {1: 50}
        assert fleet.wait_until_ready() == before


def test_a_process_without_descriptors_fails_the_attempt_and_the_fleet_goes_on(
    dsn: str, tmp_path: Path
) -> None:
    """A handler that uses up its process's, and a supervisor that has none to spare."""
    make_effects(dsn)
    with supervised(dsn, tmp_path) as fleet:
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
        goes_on(fleet)
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


def test_a_session_that_the_system_lets_nobody_wait_for_charges_nobody(
    dsn: str, tmp_path: Path
) -> None:
    make_effects(dsn)
    write_app(tmp_path, OUT_OF_DESCRIPTORS)
    with supervised(dsn, tmp_path, procs=1) as fleet:
        ids = fleet.send("Narrow", data="was there")
        fleet.await_completed(ids)
        assert (tmp_path / "was there").exists() and fleet.effects(ids) == {1: 1}


def test_a_steward_without_descriptors_works_again_when_it_has_some(
    dsn: str, tmp_path: Path
) -> None:
    """Also the threads that count and maintain, which open sessions of their own."""
    with supervised(dsn, tmp_path, procs=1, http="127.0.0.1:0") as fleet:
        steward = fleet.steward()
        assert steward is not None
        before = resource.prlimit(steward, resource.RLIMIT_NOFILE)
        # Room for one client, and for no session beside it.
        most = highest_descriptor(steward) + 2
        resource.prlimit(steward, resource.RLIMIT_NOFILE, (most, before[1]))
        assert "cmdbus_queue_depth{" not in fleet.ask("/metrics")[1]
        fleet.await_saying("cannot maintain the schema: [Errno 24] Too many open files")
        resource.prlimit(steward, resource.RLIMIT_NOFILE, before)
        fleet.send("Sleep", 8, 2)
        eventually(lambda: "cmdbus_queue_depth{" in fleet.ask("/metrics")[1])
        assert fleet.steward() == steward


def test_a_supervisor_that_can_start_no_process_waits_until_it_can(
    dsn: str, tmp_path: Path
) -> None:
    """Also for the process that answers probes meanwhile, and for its threads."""
    with control_group("pids") as group, unstarted(dsn, tmp_path, http="127.0.0.1:0") as fleet:
        group.limit(1)
        fleet.start(shell=f'echo 0 > {group.entrance}; exec "$@"')
        none = "cannot start a process (Resource temporarily unavailable)"
        fleet.await_saying(f"{none}: waiting")
        assert len(fleet.said(f"not answered for the moment: {none}")) == 1
        group.limit(2)
        fleet.await_saying("the process that answers them found no thread left")
        group.limit(None)
        fleet.wait_until_ready()
        assert fleet.stop() == 0


def test_a_process_that_does_not_die_of_sigkill_is_given_up(dsn: str, tmp_path: Path) -> None:
    """It is replaced, and what it held runs again, once; it is said, counted, and
    reaped when it can die at last."""
    make_effects(dsn)
    with (
        control_group("freezer") as group,
        supervised(dsn, tmp_path, **SHORT) as fleet,
    ):
        before = fleet.pids()
        ids = fleet.send("Gate", 8, data="open")
        eventually(lambda: len(fleet.executing("Gate")) == 8)
        group.add(before[0])
        group.freeze()
        kill(before[0])
        fleet.await_saying("survived SIGKILL (disk wait?)")
        (tmp_path / "open").touch()
        fleet.await_completed(ids)
        assert fleet.await_successors([before[0]])[1] == before[1]
        assert fleet.look().undead == 1 and before[0] in fleet.living()
        goes_on(fleet)
        group.thaw()
        eventually(lambda: not fleet.look().undead)
        assert before[0] not in fleet.living()
        assert fleet.effects(ids) == {1: 8}
        fleet.await_outcomes(ids, {("COMPLETED", 1): 8})
        assert len(fleet.said("survived SIGKILL (disk wait?)")) == 1
        assert len(fleet.said("which survived SIGKILL, has exited")) == 1
        assert fleet.look().listening and fleet.look().armed


def test_without_room_for_processes_it_tries_again(dsn: str, tmp_path: Path) -> None:
    """For none at all, or for a process and not for its threads. It is no crash loop
    however often it is; and it heals when there is room."""
    make_effects(dsn)
    with control_group("pids") as group, unstarted(dsn, tmp_path, http="127.0.0.1:0") as fleet:
        fleet.start(shell=f'echo 0 > {group.entrance}; exec "$@"')
        before = fleet.wait_until_ready()
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
        goes_on(fleet)
        assert fleet.stop() == 0
        fleet.assert_nothing_left()


def test_a_slot_that_was_given_up_gets_a_thread_when_there_is_room(
    dsn: str, tmp_path: Path
) -> None:
    """The only one of its process, with the lead."""
    ladder = {**SHORT, "watchdog_timeout": 20}
    with (
        control_group("pids") as group,
        unstarted(dsn, tmp_path, procs=1, threads=1, **ladder) as fleet,
    ):
        fleet.start(shell=f'echo 0 > {group.entrance}; exec "$@"')
        before = fleet.wait_until_ready()
        (id,) = fleet.send("Hang", max_attempts=1)
        eventually(lambda: fleet.executing("Hang"))
        group.limit(1)
        fleet.await_saying("housekeeping failed, and is tried again: can't start new thread")
        ids = fleet.send("Noop", 10)
        group.limit(None)
        fleet.await_completed(ids)
        assert fleet.trouble(id)[0] == "TIMEOUT"
        assert fleet.pids() == before
        assert fleet.stop() == 0
        fleet.assert_nothing_left()


def test_a_command_that_takes_all_memory_goes_to_a_person_and_charges_nobody(
    dsn: str, tmp_path: Path
) -> None:
    """The kernel kills its process; at the second loss it runs alone, the third one is
    its last. What ran beside it runs again."""
    make_effects(dsn)
    with control_group("memory") as group, unstarted(dsn, tmp_path) as fleet:
        group.limit(300 << 20)
        fleet.start(shell=f'echo 0 > {group.entrance}; exec "$@"')
        fleet.wait_until_ready()
        innocents = fleet.send("Debit", 3, data=0.5)
        eventually(lambda: len(fleet.executing("Debit")) == 3)
        (id,) = fleet.send("Hog")
        fleet.await_outcomes([id], {("IN_TROUBLESHOOTING_QUEUE", 0): 1}, within=40)
        assert fleet.trouble(id)[0] == "LOST"
        killed = fleet.said("perhaps because memory ran out (OOM)")
        assert len([text for text in killed if "shop/Hog" in text]) == 3
        fleet.await_completed(innocents)
        assert fleet.effects(innocents) == {1: 3}
        fleet.await_successors([])
        assert fleet.stop() == 0
        fleet.assert_nothing_left()


_CLOCK = """
import pathlib, time

def jumped(now, unit):
    return lambda: now() + unit * int(pathlib.Path("clock").read_text())

time.time, time.time_ns = jumped(time.time, 1), jumped(time.time_ns, 10**9)
"""


def test_a_clock_that_jumps_by_an_hour_changes_nothing(dsn: str, tmp_path: Path) -> None:
    """Forth and back, in every process. Nobody is killed, no lease ends, and what is
    due is due by the database's clock."""
    make_effects(dsn)
    (tmp_path / "sitecustomize.py").write_text(_CLOCK)
    (clock := tmp_path / "clock").write_text("0")
    with unstarted(dsn, tmp_path) as fleet:
        fleet.start(shell='PYTHONPATH="$PWD:$PYTHONPATH" exec "$@"')
        before = fleet.wait_until_ready()
        later = fleet.send("Noop", 4, delay=1800)
        ids = []
        for jump in (3600, -3600):
            # Until after the next renewal of their leases, and due after the jump.
            running = fleet.send("Debit", 8, data=1.2)
            soon = fleet.send("Debit", 4, delay=0.6)
            eventually(lambda: len(fleet.executing("Debit")) == 8)
            (tmp_path / "new").write_text(str(jump))
            (tmp_path / "new").rename(clock)
            ids += [*running, *soon, *fleet.send("Debit", 20)]
            fleet.await_completed(ids)
        assert fleet.effects(ids) == {1: 64}
        assert fleet.outcomes(later) == {("PENDING", 0): 4}
        assert fleet.pids() == before and not any(fleet.look().restarts.values())
        assert fleet.stop() == 0
        fleet.assert_nothing_left()
        hours = {event["time"][11:13] for event in fleet.events()}
        assert len(hours) > 1, "the clock has jumped"
