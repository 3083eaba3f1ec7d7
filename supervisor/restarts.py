"""When a process may have a successor. Pure: the time and the random numbers are passed in.


The first restart is immediate. Only early exits make the next ones wait, twice as long each time,
until their number has been quiet for a minute; and only early exits, too many of them over all
numbers while no worker is ready, make the supervisor give up. A process that exits later than
early neither lengthens the pause nor resets it.
"""

from collections import deque
from collections.abc import Hashable

from cmdbus.board.records import Restart

#: Seconds without an early exit, from the end of the pause, after which pauses start over.
QUIET_SECONDS = 60.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 30.0
#: The share of a pause by which it is shortened at most, so that restarts spread.
_JITTER = 0.2
#: Early exits within WINDOW_SECONDS that are too many: at least these, and two for each process.
WINDOW_SECONDS = 60.0
_MIN_TOO_MANY = 6


class Restarts:
    def __init__(self) -> None:
        #: By number: early exits in a row, and the time until which one more continues the row.
        self._early: dict[Hashable, tuple[int, float]] = {}
        self._not_before: dict[Hashable, float] = {}
        self._exits: deque[float] = deque()
        #: By number: why its last process ended, until its successor starts.
        self.reasons: dict[Hashable, Restart] = {}

    def exited_early(self, number: Hashable, now: float, rand: float) -> float:
        """Seconds until the successor may start; `rand` in [0, 1) spreads them."""
        self._exits.append(now)
        return self._pause(number, now, rand, self._in_a_row(number, now))

    def not_started(self, number: Hashable, now: float, rand: float) -> float:
        """Seconds until the next try: no process exited, but the system could not start one."""
        return self._pause(number, now, rand, max(2, self._in_a_row(number, now)))

    def not_before(self, number: Hashable) -> float:
        return self._not_before.get(number, 0.0)

    def too_many(self, wanted: int, now: float) -> bool:
        while self._exits and self._exits[0] <= now - WINDOW_SECONDS:
            self._exits.popleft()
        return len(self._exits) >= max(_MIN_TOO_MANY, 2 * wanted)

    def _in_a_row(self, number: Hashable, now: float) -> int:
        count, until = self._early.get(number, (0, now))
        return count + 1 if now < until else 1

    def _pause(self, number: Hashable, now: float, rand: float, count: int) -> float:
        pause = _length(count) * (1.0 - _JITTER * rand)
        self._not_before[number] = now + pause
        self._early[number] = count, now + pause + QUIET_SECONDS
        return pause


def _length(count: int) -> float:
    """Seconds of the pause after `count` early exits in a row."""
    if count < 2:
        return 0.0
    # A larger power would overflow after some hours.
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(count - 2, 10), _MAX_PAUSE_SECONDS)
