"""What a machine lends to a test, to be taken away from a fleet: control groups, namespaces.

A test that cannot have them here is skipped, with the reason.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from eventually import eventually

_GROUPS = Path("/sys/fs/cgroup")
#: In version 1 and 2.
_LIMITS = {"pids": ("pids.max", "pids.max"), "memory": ("memory.limit_in_bytes", "memory.max")}


class Group:
    """A control group of this test's own, with one controller."""

    def __init__(self, controller: str, place: Path) -> None:
        self._controller = controller
        self._place = place

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
        place = self._place / "freezer.state"
        place.write_text(state)
        eventually(lambda: place.read_text().strip() == state)

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
    place = parent / f"cmdbus-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    group = Group(controller, place)
    try:
        yield group
    finally:
        group.close()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
