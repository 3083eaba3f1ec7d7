"""Traps at the named points of an instance's processes: who passes takes what lies there, and
kills itself or stays until it is let go. One trap, one victim.

A trap is a file; whoever renames it has it, so that its name says at the end who it was. Who
stays does not stop itself: that signal could come after the one that lets it go on.
"""

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from cmdbus import failpoints as points

DIRECTORY, NAME = "CMDBUS_CHAOS", "CMDBUS_CHAOS_NAME"
TRAPS, SPRUNG, FREED = "traps", "sprung", "freed"
KILL, FREEZE = "kill", "freeze"
_LOOK_S = 0.005
#: Of their processes, those that have settled an outcome: others would die too early for a
#: supervisor that looks for an application that cannot start.
_OF_WORKERS = frozenset(
    (
        points.AFTER_CLAIM,
        points.BEFORE_EFFECT,
        points.BEFORE_COMMIT,
        points.AFTER_COMMIT,
        points.AFTER_RETURN,
        points.SETTLED,
    )
)
_OF_STARTS = (points.BEFORE_FORK, points.IN_CHILD, points.AFTER_FORK)


def pid_of(victim: str) -> int:
    return int(victim.rpartition(".")[2])


class Traps:
    """For who lays them."""

    def __init__(self, directory: Path) -> None:
        self._traps, self._sprung = directory / TRAPS, directory / SPRUNG
        self._freed = directory / FREED
        for path in (self._traps, self._sprung, self._freed):
            path.mkdir(mode=0o700)

    def lay(self, instance: str, point: str, what: str) -> Path:
        trap = self._traps / f"{instance}.{point}"
        made = self._traps / f"{instance}.{point}.{what}"
        made.write_text(what)
        return made.rename(trap)

    def victims(self, instance: str, point: str = "*", what: str = "*") -> list[str]:
        """Oldest first."""
        found = self._sprung.glob(f"*.{instance}.{point}.{what}.*")
        return sorted(path.name for path in found)

    def free(self, victim: str) -> None:
        (self._freed / victim).touch()

    def hits(self) -> Counter[str]:
        """By the name of the fault."""
        names = [path.name.split(".") for path in self._sprung.iterdir()]
        return Counter(f"{what}-at-{point}" for _, _, point, what, _ in names)


def walk_into_them() -> None:
    """For the program of a supervisor, before all else: its children inherit it."""
    directory, instance = Path(os.environ[DIRECTORY]), os.environ[NAME]
    has_settled = False

    def action(point: str) -> None:
        nonlocal has_settled
        if has_settled or point not in _OF_WORKERS:
            _spring(directory, instance, point)
        has_settled = has_settled or point == points.SETTLED

    points.set_failpoint_action(action)


def _spring(directory: Path, instance: str, point: str) -> None:
    trap = directory / TRAPS / f"{instance}.{point}"
    # Not always the first who comes by: a fleet that starts passes these in one order.
    if not trap.exists() or (point in _OF_STARTS and os.urandom(1)[0] & 1):
        return
    with suppress(FileNotFoundError):
        what = trap.read_text()
        name = f"{time.monotonic_ns():020}.{instance}.{point}.{what}.{os.getpid()}"
        trap.rename(directory / SPRUNG / name)
        if what == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        while not (directory / FREED / name).exists():
            time.sleep(_LOOK_S)
