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
from eventually import eventually

_GROUPS = Path("/sys/fs/cgroup")
#: In version 1 and 2.
_LIMITS = {"pids": ("pids.max", "pids.max"), "memory": ("memory.limit_in_bytes", "memory.max")}

_NO_SWAP = {"memory.swappiness": "0", "memory.swap.max": "0"}


class Group:
    """A control group of this test's own, with one controller."""

    def __init__(self, controller: str, path: Path) -> None:
        self._controller = controller
        self._place = path

    def add(self, *pids: int) -> None:
        for pid in pids:
            (self._place / "cgroup.procs").write_text(str(pid))

    @property
    def entrance(self) -> Path:
        """Who writes its pid here, or 0, is in it."""
        return self._place / "cgroup.procs"

    def limit(self, most: int | None) -> None:
        """Bytes, or processes and threads; None takes it back."""
        first, second = (self._place / name for name in _LIMITS[self._controller])
        no_limit = "-1" if first.exists() and first != second else "max"
        limit = first if first.exists() else second
        for name, none in _NO_SWAP.items():
            if (self._place / name).exists():
                (self._place / name).write_text(none)
        limit.write_text(no_limit if most is None else str(most))

    @property
    def used(self) -> int:
        return int((self._place / "pids.current").read_text())

    def freeze(self) -> None:
        """Also from SIGKILL, which the freezer of version 2 lets through."""
        self._change("FROZEN")

    def thaw(self) -> None:
        self._change("THAWED")

    def _change(self, state: str) -> None:
        path = self._place / "freezer.state"
        path.write_text(state)
        eventually(lambda: path.read_text().strip() == state)

    def close(self) -> None:
        if self._controller == "freezer":
            self.thaw()
        eventually(self._is_removed)

    def _is_removed(self) -> bool:
        try:
            self._place.rmdir()
        except OSError:
            return False
        return True


@contextmanager
def control_group(controller: str) -> Iterator[Group]:
    """Whoever is in it must have ended before this does."""
    parent = _GROUPS / controller
    if not parent.is_dir():
        lent = _GROUPS / "cgroup.subtree_control"
        if controller not in _LIMITS or controller not in _read(lent).split():
            pytest.skip(f"this machine has no control groups for {controller}")
        parent = _GROUPS
    path = parent / f"cmdbus-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    group = Group(controller, path)
    try:
        yield group
    finally:
        group.close()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


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
        """A number that is free there is a stranger's meanwhile, who is not to be harmed."""
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
            assert stranger.stdout.readline() == "True\n", f"whoever has number {number} is gone"


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
