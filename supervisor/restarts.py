"""When a process may have a successor. Pure: the time and the random numbers are passed in.

The first restart is immediate. Only early exits make the next ones wait, twice as long each time,
until their post has been quiet for a minute; and only early exits, too many of them over all
posts while no worker is ready, make the supervisor give up. A process that exits later than
early neither lengthens the pause nor resets it; nor is it a reason to give up, if it leaves no
worker that is ready: its successor may be. A quarantine process that finds nothing to run makes
the next one wait in the same way.
"""

from collections import deque

from cmdbus.backoff import Backoff
from cmdbus.board.records import Restart
from cmdbus.supervisor.fleet_view import Post

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
        #: The pauses of each post's row of early exits, and the time until which one more
        #: continues the row.
        self._rows: dict[Post, tuple[Backoff, float]] = {}
        #: The earliest start of the next process of a post; missing: now.
        self.not_before: dict[Post, float] = {}
        self._exits: deque[float] = deque()
        self._exited_late_at = float("-inf")
        #: The reason why the last process of a post ended, until its successor starts.
        self.reasons: dict[Post, Restart] = {}

    def exited_early(self, post: Post, now: float, rand: float) -> float:
        """Seconds until the successor may start; `rand` in [0, 1) spreads them."""
        self._exits.append(now)
        return self._pause(post, now, rand, is_first_free=True)

    def exited_late(self, now: float) -> None:
        """A worker that was ready, and no early exit."""
        self._exited_late_at = now

    def not_started(self, post: Post, now: float, rand: float) -> float:
        """Seconds until the next try: no process exited, but the system could not start one."""
        return self._pause(post, now, rand, is_first_free=False)

    def ran_nothing(self, post: Post, now: float, rand: float) -> float:
        """Seconds until the successor of a quarantine process that found no suspect to claim may
        start: another node had claimed the one that there was, or a session has locked it."""
        return self._pause(post, now, rand, is_first_free=True)

    def ran(self, post: Post) -> None:
        """A quarantine process found a suspect, which ends its post's row of pauses."""
        self._rows.pop(post, None)

    def too_many(self, wanted: int, now: float) -> bool:
        while self._exits and self._exits[0] <= now - WINDOW_SECONDS:
            self._exits.popleft()
        return len(self._exits) >= max(_MIN_TOO_MANY, 2 * wanted)

    @property
    def latest_was_early(self) -> bool:
        return bool(self._exits) and self._exits[-1] > self._exited_late_at

    def _pause(self, post: Post, now: float, rand: float, *, is_first_free: bool) -> float:
        backoff, until = self._rows.get(post, (None, now))
        is_first = backoff is None or now >= until
        if backoff is None or is_first:
            backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        free = is_first and is_first_free
        pause = 0.0 if free else backoff.pause() * (1.0 - _JITTER * rand)
        self.not_before[post] = now + pause
        self._rows[post] = backoff, now + pause + QUIET_SECONDS
        return pause
