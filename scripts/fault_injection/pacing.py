"""Producers keep step with fleets that faults have slowed: they pause while many commands wait.
What is sent after a fault is then run as soon as everything works again, on a slow machine, too;
otherwise it would wait behind a backlog that grows as long as the faults last.
"""

import time
from collections.abc import Callable
from pathlib import Path

#: Commands that wait for a fleet, of types that it handles, above which producers pause.
_CROWD = 200
_LOOK_S = 0.05


class Pace:
    """A file between the observer, which counts, and the producers."""

    def __init__(self, directory: Path) -> None:
        self._crowded = directory / "crowded"

    def show(self, waiting: int) -> None:
        if waiting > _CROWD:
            self._crowded.touch()
        else:
            self._crowded.unlink(missing_ok=True)

    def keep(self, pause: float, is_stopping: Callable[[], bool]) -> None:
        """Pauses before the next call, and for as long as it is crowded."""
        time.sleep(pause)
        while self._crowded.exists() and not is_stopping():
            time.sleep(_LOOK_S)
