"""What a machine lends to a test, to be taken away from a fleet: control groups, namespaces.

A test that cannot have them here is skipped, with the reason.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from fleet import Fleet, kill
from lab.control_groups import ControlGroup, can_make


def assert_goes_on(fleet: Fleet) -> None:
    """It runs commands, and replaces a killed process and no other."""
    ids = fleet.send("Debit", 50)
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 50}
    before = fleet.wait_until_ready()
    kill(before[0])
    after = fleet.await_successors([before[0]])
    assert after == {**before, 0: after[0]}
    fleet.await_completed(fleet.send("Noop", 10))
    fleet.await_health()


@contextmanager
def control_group(controller: str) -> Iterator[ControlGroup]:
    """One of this test's own."""
    if not can_make(controller):
        pytest.skip(f"no control groups for {controller} can be made here")
    group = ControlGroup(controller, f"cmdbus-test-{os.getpid()}")
    group.make()
    try:
        yield group
    finally:
        group.remove()


def start_in(group: ControlGroup, fleet: Fleet) -> dict[int, int]:
    """The pids of the workers."""
    fleet.start(shell=f'echo 0 > {group.entrance}; exec "$@"')
    return fleet.wait_until_ready()


def unshared(*kinds: str, first: str = "true") -> str:
    """For a fleet's `shell`: it runs in namespaces of its own, after `first` in them."""
    options = ["unshare", *(f"--{kind}" for kind in kinds)]
    if subprocess.run([*options, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    within = shlex.quote(f'{first} && exec "$@"')
    return f'exec {shlex.join(options)} /bin/sh -c {within} sh "$@"'


def mount_in(pid: int, path: Path, options: str) -> None:
    """An empty file system over what a process has there."""
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    subprocess.run(["nsenter", "--target", str(pid), "--mount", *mount], check=True)


class Namespace:
    """Of processes: what a supervisor that is process 1 there calls its own."""

    def __init__(self, outside: int) -> None:
        #: Of process 1, as it is called here.
        self.first = psutil.Process(outside)

    @property
    def processes(self) -> dict[int, psutil.Process]:
        """By their numbers there."""
        found: dict[int, psutil.Process] = {}
        for process in self.first.children(recursive=True):
            with suppress(OSError):  # It has just ended.
                found[number_in(process)] = process
        return found

    @contextmanager
    def taken(self, number: int) -> Iterator[None]:
        """A process of no fleet gets a pid that is free there, and must survive."""
        command = ["nsenter", "--target", str(self.first.pid), "--pid", "--mount"]
        stranger = subprocess.Popen(
            [*command, sys.executable, "-c", _STRANGER, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert stranger.stdin is not None and stranger.stdout is not None
        with stranger:
            assert stranger.stdout.readline() == "there\n"
            yield
            stranger.stdin.close()
            assert stranger.stdout.readline() == "True\n", f"the process with pid {number} is gone"


_STRANGER = """
import os, signal, sys
wanted = int(sys.argv[1])
for _ in range(1000):
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(wanted - 1))
    if (pid := os.fork()) == 0:
        os.setsid()
        signal.pause()
    if pid == wanted:
        break
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
else:
    sys.exit(f"process id {wanted} is in use")
print("there", flush=True)
sys.stdin.read()
print(os.waitpid(wanted, os.WNOHANG) == (0, 0), flush=True)
os.kill(wanted, signal.SIGKILL)
"""


def number_in(process: psutil.Process) -> int:
    """What its own namespace calls it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(x for x in status.splitlines() if x.startswith("NSpid:")).split()[-1])
