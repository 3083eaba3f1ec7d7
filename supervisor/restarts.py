"""When a dead process may have a successor. Pure: the time and the dice are passed in.

The first restart is at once. Only early deaths make the next ones wait, twice as long
each time, until its number has been quiet for a minute; and only those, too many over
all numbers, make the supervisor give up.
"""

from collections import deque
from collections.abc import Hashable

#: A process that lived less, and settled nothing, died early.
EARLY_SECONDS = 10.0
QUIET_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: Early deaths within WINDOW_SECONDS that are too many: for a fleet of `wanted`, twice as many.
WINDOW_SECONDS = 60.0
_TOO_MANY = 6


class Restarts:
    def __init__(self) -> None:
        #: By number: early deaths in a row, and when the last one was.
        self._early: dict[Hashable, tuple[int, float]] = {}
        self._not_before: dict[Hashable, float] = {}
        self._deaths: deque[float] = deque()

    def died_early(self, number: Hashable, now: float, dice: float) -> float:
        """Seconds until its successor may start; `dice` in [0, 1) spreads them by a fifth."""
        count, at = self._early.get(number, (0, now))
        count = count + 1 if now < at + QUIET_SECONDS else 1
        self._early[number] = count, now
        self._deaths.append(now)
        pause = 0.0
        if count > 1:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (count - 2)) * (0.9 + 0.2 * dice)
        self._not_before[number] = now + pause
        return pause

    def not_before(self, number: Hashable) -> float:
        return self._not_before.get(number, 0.0)

    def too_many(self, wanted: int, now: float) -> bool:
        while self._deaths and self._deaths[0] <= now - WINDOW_SECONDS:
            self._deaths.popleft()
        return len(self._deaths) >= max(_TOO_MANY, 2 * wanted)
