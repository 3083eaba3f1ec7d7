"""Which types are quick, and how far ahead of its threads a process may claim. No clock inside
but the one that counts steps."""

import time
from collections import deque

#: A type is quick while the slowest of its latest runs took less than this.
QUICK_SECONDS = 0.05
_RUNS = 100
#: Claimed ahead is what will be started within this time, and never more than the limit.
_AHEAD_SECONDS = 0.02
MAX_AHEAD = 256


class Pace:
    """Written by all threads: each operation is atomic, and a lost update costs nothing."""

    def __init__(self) -> None:
        self._slowest: dict[tuple[str, str], deque[float]] = {}
        self._last_step = time.monotonic()
        #: Commands a second, as the latest steps saw it.
        self._rate = 0.0

    def ran(self, domain: str, type: str, seconds: float) -> None:
        runs = self._slowest.get((domain, type))
        if runs is None:
            runs = self._slowest.setdefault((domain, type), deque(maxlen=_RUNS))
        runs.append(seconds)

    def is_quick(self, domain: str, type: str) -> bool:
        runs = self._slowest.get((domain, type))
        return runs is not None and max(runs) < QUICK_SECONDS

    def stepped(self, claimed: int) -> None:
        now = time.monotonic()
        elapsed, self._last_step = now - self._last_step, now
        self._rate = claimed / max(elapsed, 0.0001)

    def ahead(self) -> int:
        return min(MAX_AHEAD, int(self._rate * _AHEAD_SECONDS))
