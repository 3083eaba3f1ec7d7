"""Armed failpoints of an instance's processes: the first process that reaches one kills itself,
or waits there until it is released.

An armed failpoint is a file. The process that renames it has hit it, and the new name says which
process that was. A waiting process does not stop itself: its SIGSTOP could arrive after the
SIGCONT that releases it.
"""

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from cmdbus import failpoints as points

DIRECTORY, NAME = "CMDBUS_CHAOS", "CMDBUS_CHAOS_NAME"
ARMED, HIT, RELEASED = "armed", "hit", "released"
KILL, FREEZE = "kill", "freeze"
_LOOK_S = 0.005
#: Hit only by processes that have settled an outcome: a process that dies earlier looks to its
#: supervisor like an application that cannot start.
OF_WORKERS = (
    points.AFTER_CLAIM,
    points.BEFORE_EFFECT,
    points.BEFORE_COMMIT,
    points.AFTER_COMMIT,
    points.AFTER_RETURN,
    points.SETTLED,
)
_OF_STARTS = (points.BEFORE_FORK, points.IN_CHILD, points.AFTER_FORK)


def pid_of(victim: str) -> int:
    return int(victim.rpartition(".")[2])


class Failpoints:
    """Arms failpoints, and knows the processes that hit them."""

    def __init__(self, directory: Path) -> None:
        self._armed, self._hit = directory / ARMED, directory / HIT
        self._released = directory / RELEASED
        for path in (self._armed, self._hit, self._released):
            path.mkdir(mode=0o700)

    def arm(self, instance: str, point: str, what: str) -> Path:
        path = self._armed / f"{instance}.{point}"
        made = self._armed / f"{instance}.{point}.{what}"
        made.write_text(what)
        return made.rename(path)

    def victims(self, instance: str, point: str = "*", what: str = "*") -> list[str]:
        """Oldest first."""
        found = self._hit.glob(f"*.{instance}.{point}.{what}.*")
        return sorted(path.name for path in found)

    def release(self, victim: str) -> None:
        (self._released / victim).touch()

    def hits(self) -> Counter[str]:
        """By the name of the fault."""
        names = [path.name.split(".") for path in self._hit.iterdir()]
        return Counter(f"{what}-at-{point}" for _, _, point, what, _ in names)


def activate() -> None:
    """Runs first in the program of a supervisor: its children inherit the action."""
    directory, instance = Path(os.environ[DIRECTORY]), os.environ[NAME]
    has_settled = False

    def action(point: str) -> None:
        nonlocal has_settled
        if has_settled or point not in OF_WORKERS:
            _hit_failpoint(directory, instance, point)
        has_settled = has_settled or point == points.SETTLED

    points.set_failpoint_action(action)


def _hit_failpoint(directory: Path, instance: str, point: str) -> None:
    armed = directory / ARMED / f"{instance}.{point}"
    # Not always the first process: those of a starting fleet reach these in a fixed order.
    if not armed.exists() or (point in _OF_STARTS and os.urandom(1)[0] & 1):
        return
    with suppress(FileNotFoundError):
        what = armed.read_text()
        name = f"{time.monotonic_ns():020}.{instance}.{point}.{what}.{os.getpid()}"
        armed.rename(directory / HIT / name)
        if what == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        while not (directory / RELEASED / name).exists():
            time.sleep(_LOOK_S)
