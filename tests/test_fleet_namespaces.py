"""A fleet in namespaces of its own: where the supervisor is process 1, numbers of processes are
used again, and memory and runtime directory are not what they should be."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from eventually import eventually
from fleet import Fleet, unstarted
from surroundings import Namespace, assert_goes_on, mount_in, unshared

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(os.getuid() != 0, reason="namespaces and mounts need root"),
]


@pytest.mark.fleet(started=False, procs=1)
def test_as_process_1_it_reaps_orphans_and_signals_nobody_who_has_a_dead_ones_number(
    fleet: Fleet,
) -> None:
    """Also through a reload, whose examination is no orphan."""
    fleet.start(shell=unshared("pid", "fork", "kill-child", "mount-proc"))
    before = fleet.wait_until_ready()
    steward = fleet.steward()
    assert steward is not None
    [first] = psutil.Process(fleet.pid).children()
    inside = Namespace(first.pid)
    fleet.await_completed(fleet.send("Orphan", 20))
    with ExitStack() as strangers:
        inside.processes[before[0]].kill()
        fleet.await_successors([before[0]])
        strangers.enter_context(inside.taken(before[0]))
        inside.processes[steward].kill()
        successor = fleet.succeeded(steward)
        strangers.enter_context(inside.taken(steward))
        now = fleet.pids()
        first.send_signal(signal.SIGHUP)
        after = fleet.await_successors(now.values())
        fleet.succeeded(successor)  # None of its threads takes a pid that a stranger is to have.
        for pid in now.values():
            strangers.enter_context(inside.taken(pid))
        ids = fleet.send("Debit", 50)
        fleet.await_completed(ids)
        assert fleet.effects(ids) == {1: 50}
        assert fleet.pids() == after
    eventually(lambda: not [p for p in first.children() if p.status() == "zombie"])
    assert not fleet.logged("exited with code 3")
    assert fleet.look().restarts["crashed"] == 2
    first.terminate()
    assert fleet.wait() == 0
    fleet.assert_nothing_left()


def test_a_runtime_directory_without_room_is_refused_with_a_sentence(
    dsn: str, tmp_path: Path
) -> None:
    """At once, and no writer is killed later."""
    (tmp_path / "run").mkdir(mode=0o700)
    for most, says in (("64k", "no board of "), ("4k", "the pidfile ")):
        with unstarted(dsn, tmp_path) as fleet:
            mount = f"mount -t tmpfs -o size={most},mode=700 tmpfs {fleet.directory}"
            fill = f"cat /dev/zero > {fleet.directory}/full 2> /dev/null"
            both = mount if most == "64k" else f"{mount} && {{ {fill}; true; }}"
            fleet.start(shell=unshared("mount", first=both))
            assert fleet.wait() == 3
            [text] = fleet.messages(level="error")
            assert text.startswith(says)
            assert "No space left on device; choose another place with --runtime-dir" in text


@pytest.mark.fleet(started=False, procs=1)
def test_it_goes_on_when_its_runtime_directory_is_full_and_when_it_is_read_only(
    fleet: Fleet, tmp_path: Path
) -> None:
    """/dev/shm is read-only from the beginning."""
    (run := tmp_path / "run").mkdir(mode=0o700)
    mounts = "mount -t tmpfs -o ro tmpfs /dev/shm && mount -t tmpfs -o size=8m,mode=700 tmpfs"
    fleet.start(shell=unshared("mount", first=f"{mounts} {run}"))
    fleet.directory = Path(f"/proc/{fleet.pid}/root{run}")
    fleet.wait_until_ready()
    with pytest.raises(OSError, match="No space"):
        (fleet.directory / "full").write_bytes(bytes(16 * 1024 * 1024))
    assert_goes_on(fleet)
    mount_in(fleet.pid, run, "ro")
    assert_goes_on(fleet)
    before = fleet.pids()
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(before.values())
    assert len(fleet.logged("is gone or cannot be written: stacks go to the log")) == 1
