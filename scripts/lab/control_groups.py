"""Control groups, of version 1 or 2, with one controller each."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
#: The files of each controller's limit, in version 1 and 2.
_LIMITS = {"pids": ("pids.max", "pids.max"), "memory": ("memory.limit_in_bytes", "memory.max")}
_NO_SWAP = {"memory.swappiness": "0", "memory.swap.max": "0"}
#: Seconds until the kernel has changed a group; a process that waits for a disk may take them.
_CHANGES_S = 10.0
_POLL_S = 0.01


def can_make(controller: str) -> bool:
    """Whether this user can make control groups with it here. There is a freezer in version 1
    only: that of version 2 lets SIGKILL through."""
    parent = _parent(controller)
    if parent == _GROUPS:
        enabled = _GROUPS / "cgroup.subtree_control"
        if controller not in _LIMITS or not enabled.exists():
            return False
        if controller not in enabled.read_text().split():
            return False
    return os.access(parent / "cgroup.procs", os.W_OK)


def _parent(controller: str) -> Path:
    parent = _GROUPS / controller
    return parent if parent.is_dir() else _GROUPS


class ControlGroup:
    def __init__(self, controller: str, name: str) -> None:
        self._controller = controller
        self._path = _parent(controller) / name

    def make(self) -> None:
        self._path.mkdir()

    @property
    def entrance(self) -> Path:
        """A process that writes its pid here, or 0, is in the group."""
        return self._path / "cgroup.procs"

    def add(self, *pids: int) -> None:
        _move(pids, self._path)

    def limit(self, maximum: int | None) -> None:
        """Bytes, or processes and threads; None is no limit."""
        first, second = (self._path / name for name in _LIMITS[self._controller])
        no_limit = "-1" if first.exists() and first != second else "max"
        for name, none in _NO_SWAP.items():
            if (self._path / name).exists():
                (self._path / name).write_text(none)
        file = first if first.exists() else second
        file.write_text(no_limit if maximum is None else str(maximum))

    @property
    def used(self) -> int:
        """Processes and threads."""
        return int((self._path / "pids.current").read_text())

    def freeze(self) -> None:
        """Keeps even SIGKILL from its processes."""
        self._change("FROZEN")

    def thaw(self) -> None:
        self._change("THAWED")

    def _change(self, state: str) -> None:
        file = self._path / "freezer.state"
        file.write_text(state)
        _await(lambda: file.read_text().strip() == state, f"{self._path} is not {state}")

    def remove(self) -> None:
        """The processes in it go on outside."""
        with suppress(OSError):
            self.thaw()
        _await(self._is_removed, f"{self._path} cannot be removed")

    def _is_removed(self) -> bool:
        with suppress(OSError):
            _move(map(int, self.entrance.read_text().split()), self._path.parent)
            self._path.rmdir()
        return not self._path.exists()


def _move(pids: Iterable[int], group: Path) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(f"{pid}")


def _await(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _CHANGES_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(problem)
        time.sleep(_POLL_S)
