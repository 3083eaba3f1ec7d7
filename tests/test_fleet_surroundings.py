"""A fleet whose surroundings are taken away or damaged while it runs: work goes on."""

import mmap
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from eventually import eventually
from fleet import Fleet, kill, unstarted, write_app
from surroundings import assert_goes_on

from cmdbus.board.layout import CELL

pytestmark = pytest.mark.fleet

APP_THAT_LISTS_ITS_FILES = """
from contextlib import suppress
from pathlib import Path
from fleet_app import registry as registry
with Path("files").open("a") as files:
    print("imported", file=files)
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            print(path.readlink(), file=files)
"""


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
@pytest.mark.fleet(started=False, procs=1, log_level="debug")
def test_a_fleet_runs_without_anybody_who_reads_its_log(fleet: Fleet, kind: str) -> None:
    """The reader of the pipe, the descriptor itself, or room on its disk."""
    with nobody_reads(kind) as pipe:
        if kind == "closed":
            fleet.start(shell='exec "$@" <&- >&- 2>&-')
        else:
            fleet.start(stderr=pipe)
        fleet.wait_until_ready()
        assert_goes_on(fleet)
        assert fleet.stop() == 0


@pytest.mark.parametrize("nohup", [False, True])
@pytest.mark.fleet(started=False, procs=1)
def test_a_fleet_stops_with_its_terminal_but_not_under_nohup(fleet: Fleet, nohup: bool) -> None:
    """And another HUP reloads it."""
    controller, terminal = (os.fdopen(end, "rb", buffering=0) for end in os.openpty())
    trap = "trap '' HUP; " if nohup else ""
    with controller, terminal:
        # The leader of a session gets the terminal that it opens.
        name = os.ttyname(terminal.fileno())
        fleet.start(shell=f'{trap}exec "$@" <{name} >{name}')
        before = fleet.wait_until_ready()
        fleet.send_signal(signal.SIGHUP)
        reloaded = fleet.await_successors(before.values())
    if nohup:
        fleet.await_successors(reloaded.values())  # That of the terminal reloads it, too.
        assert_goes_on(fleet)
        assert fleet.stop() == 0
    else:
        assert fleet.wait() == 0


@pytest.mark.fleet(procs=1)
def test_a_fleet_whose_runtime_directory_is_removed_goes_on(fleet: Fleet) -> None:
    """It replaces dead processes, reloads, and stops well."""
    fleet.look()
    shutil.rmtree(fleet.directory)
    assert_goes_on(fleet)
    before = fleet.pids()
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(before.values())
    assert len(fleet.logged("is gone or cannot be written: stacks go to the log")) == 1


@pytest.mark.fleet(started=False, procs=1)
def test_no_process_that_imports_the_application_holds_the_supervisors_name(
    fleet: Fleet, tmp_path: Path
) -> None:
    """A daemon that the application forks there would hold it for longer than the fleet lives.
    Neither at a start nor at a reload, in whose preflight it is imported, too."""
    write_app(tmp_path, APP_THAT_LISTS_ITS_FILES)
    fleet.start()
    before = fleet.wait_until_ready()
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(before.values())
    imports = (tmp_path / "files").read_text().split("imported")[1:]
    assert len(imports) >= 5
    for files in imports:
        assert ".pid" not in files
        assert files.count(".board") <= 1, "the mapped memory's, which has no lock"


def test_pipes_and_huge_files_where_stacks_are_written_keep_no_other_waiting(fleet: Fleet) -> None:
    """Neither the supervisor, which reads them, nor a process that is to write them."""
    stacks = fleet.directory / "cmdbus.stacks"
    for number, path in enumerate(sorted(stacks.iterdir())):
        if number % 2:
            path.unlink()
            os.mkfifo(path)
        else:
            os.truncate(path, 1 << 36)
    fleet.send_signal(signal.SIGUSR1)
    fleet.await_saying("the stacks of worker", 2)
    kill(fleet.pids()[1], signal.SIGABRT)
    assert_goes_on(fleet)
    shutil.rmtree(stacks)
    os.mkfifo(stacks)
    assert fleet.stop() == 0
    stacks.unlink()


def test_fleets_of_different_names_share_a_database_and_a_directory(
    dsn: str, tmp_path: Path
) -> None:
    """Neither takes the other for a dead one of its name, whatever the names; the claims of
    one that is killed are run by the other when their leases end."""
    with (
        unstarted(dsn, tmp_path, alone=False, procs=1, name="cmdbus.board") as second,
        unstarted(dsn, tmp_path, alone=False, procs=1) as first,
    ):
        second.start()
        second_pids = second.wait_until_ready()
        ids = second.start_gates(4)
        first.start()
        first.wait_until_ready()
        ids += first.send("Debit", 100, data=0.01)
        assert second.pids() == second_pids
        assert len(second.executing("Gate")) == 4
        kill([second.pid, *second.living()])
        second.wait()
        second.open_gate()
        first.await_completed(ids)
        assert first.effects(ids) == {1: 104}
        assert first.stop() == 0
        assert second.board_path.exists()


def test_garbage_on_the_board_harms_nobody_for_long(fleet: Fleet) -> None:
    """Whatever processes seem to show, none meets an exception or is killed, and
    what is sent then does not wait for the fallback poll."""
    dice = random.Random(26)
    before = fleet.pids()
    layout = fleet.board().layout
    with fleet.board_path.open("r+b") as file, mmap.mmap(file.fileno(), layout.size) as cells:
        for seat in range(layout.seats):
            begin, end = layout.seat(seat), layout.seat(seat) + layout.seat_cells
            cells[begin * CELL : end * CELL] = dice.randbytes((end - begin) * CELL)
    ids = fleet.send("Debit", 50)
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 50}
    assert fleet.wait_until_ready() == before
    assert fleet.stop() == 0, "no process shows claims that it never had"


_CLOCK = """
import pathlib, time

def jumped(now, unit):
    return lambda: now() + unit * int(pathlib.Path("clock").read_text())

time.time, time.time_ns = jumped(time.time, 1), jumped(time.time_ns, 10**9)
"""


@pytest.mark.fleet(started=False, procs=1, threads=8)
def test_a_clock_that_jumps_by_an_hour_changes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """Forth and back, in every process. None is killed, no lease ends, and what is
    due is due by the database's clock."""
    (tmp_path / "sitecustomize.py").write_text(_CLOCK)
    (clock := tmp_path / "clock").write_text("0")
    fleet.start(shell='PYTHONPATH="$PWD:$PYTHONPATH" exec "$@"')
    before = fleet.wait_until_ready()
    later = fleet.send("Noop", 4, delay=1800)
    leases = "SELECT max(lease_until) FROM cmdbus.ready WHERE domain = 'shop'"
    ids = []
    for jump in (3600, -3600):
        # Until after the next renewal of their leases, and due after the jump.
        running = fleet.send("Gate", 8, data=f"open{jump}")
        soon = fleet.send("Debit", 4, delay=0.6)
        eventually(lambda: len(fleet.executing("Gate")) == 8)
        (tmp_path / "new").write_text(str(jump))
        (tmp_path / "new").rename(clock)
        [(last,)] = fleet.query(leases)
        eventually(lambda last=last: fleet.query(leases)[0][0] > last)  # type: ignore[misc]
        (tmp_path / f"open{jump}").touch()
        ids += [*running, *soon, *fleet.send("Debit", 20)]
        fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 64}
    assert fleet.outcomes(later) == {("PENDING", 0): 4}
    assert fleet.pids() == before and not any(fleet.look().restarts.values())
    assert fleet.stop() == 0
    hours = {event["time"][11:13] for event in fleet.events()}
    assert len(hours) > 1, "the clock has jumped"
