"""Which types are quick, and how far ahead of its threads a process may claim. No clock inside
but the one that counts steps."""

import time

#: A type is quick while the slowest of its latest runs took less than this.
QUICK_SECONDS = 0.05
_RUNS = 100
#: Claimed ahead is what will be started within this time, and never more than the limit.
_AHEAD_SECONDS = 0.02
MAX_AHEAD = 256


class Pace:
    """Written by all threads: each operation is atomic, and a lost update costs nothing."""

    def __init__(self) -> None:
        #: Quick runs that a type still needs before it is quick; missing: it never ran.
        self._missing: dict[tuple[str, str], int] = {}
        self._last_step = time.monotonic()
        #: Commands a second, as the latest step saw it.
        self._rate = 0.0

    def ran(self, domain: str, type: str, seconds: float) -> None:
        key = domain, type
        if seconds >= QUICK_SECONDS:
            self._missing[key] = _RUNS
        else:
            self._missing[key] = max(0, self._missing.get(key, 0) - 1)

    def is_quick(self, domain: str, type: str) -> bool:
        return self._missing.get((domain, type)) == 0

    def stepped(self, claimed: int) -> None:
        now = time.monotonic()
        elapsed, self._last_step = now - self._last_step, now
        self._rate = claimed / max(elapsed, 0.0001)

    def ahead(self) -> int:
        return min(MAX_AHEAD, int(self._rate * _AHEAD_SECONDS))
