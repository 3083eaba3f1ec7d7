"""A bridge as one node knows it: what it moves, and when and how much it moves next. No
statements."""

import secrets
from collections.abc import Collection, Sequence
from math import inf
from typing import NamedTuple

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.priorities import HIGHEST, LOWEST
from cmdbus.worker.waiting.bridge_wakes import channels_of

#: Seconds below which a move is quick, and above which it is slow.
_QUICK, _SLOW = 0.25, 1.0
#: Bounds of the pause after a move that found nothing, or another node that moves, in seconds.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 1.0
#: Seconds for which a busy bridge reads on after what it moved last: something before that may be
#: there again by then.
_ON_SECONDS = 1.0
#: Seconds for which a bridge has something to move before its senders are asked for no more
#: notifications.
_BUSY_SECONDS = 1.0
_NO_FLOORS = (0,) * (LOWEST - HIGHEST + 1)


class BridgeTerms(NamedTuple):
    """A row of list_bridges."""

    name: str
    #: In lower case, and as the operator spelled it.
    queue: str
    spelled: str
    direction: str
    domain: str
    #: The domain that gets the replies.
    reply_to: str | None
    batch_size: int


class KnownBridge:
    def __init__(self, terms: BridgeTerms) -> None:
        self.terms = terms
        #: Commands that it moves are claimed by this number.
        self.claimer = secrets.randbelow(2**63 - 1) + 1
        #: Bound of the next move: less after one that took too long.
        self.count = terms.batch_size
        #: A move of one has taken too long: the next one has more time.
        self.is_slow = False
        #: The next move inwards takes messages above this one, or any if it is 0.
        self.floor = 0
        #: The next move outwards takes commands above the one of their priority.
        self.floors: Sequence[int] = _NO_FLOORS
        #: Monotonic time from which on a move begins at the first message or command.
        self.first_at = 0.0
        #: Monotonic time of the next move.
        self.due = 0.0
        self._pauses = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        #: Monotonic time since which there was something to move; None: there was nothing.
        self._busy_since: float | None = -inf
        #: The latest warning, which is not repeated.
        self.warned = ""

    def begin(self) -> bool:
        """Sets the floors of the next move; whether it begins at the first message or command."""
        now = time.monotonic()
        is_first = now >= self.first_at or not (self.floor or any(self.floors))
        if is_first:
            self.floor, self.floors = 0, _NO_FLOORS
            self.first_at = now + _ON_SECONDS
        return is_first

    def go_on(self, floors: Sequence[int] | None) -> None:
        """Outwards, above these floors."""
        self.floors = floors or _NO_FLOORS

    def hear(self, heard: Collection[str]) -> None:
        """`heard`: channels and domains, see BridgeWakes. What has failed keeps its pause."""
        terms = self.terms
        is_in = terms.direction == "in"
        names = channels_of(terms.queue, terms.spelled) if is_in else {terms.domain}
        if not names.isdisjoint(heard) and not self.warned:
            self.due = 0.0

    def note_look(self, *, found: bool) -> None:
        """`found`: there was something to move, perhaps by another node."""
        if not found:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = time.monotonic()

    def is_idle(self, now: float) -> bool:
        """Whether there was nothing to move within the last moment, and nothing is wrong."""
        is_busy = self._busy_since is not None and now - self._busy_since >= _BUSY_SECONDS
        return not is_busy and not self.warned

    def expect(self) -> None:
        """Replies that it is to move may come."""
        if not self.warned:
            self._pauses.reset()
            self.due = min(self.due, time.monotonic() + _MIN_PAUSE_SECONDS)

    def has_moved(self, began: float) -> None:
        """Something, by a move that began at this time: the next one follows."""
        self.warned, self.is_slow = "", False
        self.due = time.monotonic()
        if self.due - began > _SLOW:
            self.count = max(1, self.count // 2)
        elif self.due - began < _QUICK:
            self.count = min(self.terms.batch_size, 2 * self.count)
        self._pauses.reset()

    def has_moved_nothing(self, slowdown: float) -> None:
        """The pause before the next move is so many times as long."""
        self.warned = ""
        self.due = time.monotonic() + self._pauses.pause() * slowdown

    def has_timed_out(self) -> bool:
        """Whether less, or more time, may help."""
        if self.is_slow:
            return False
        self.count, self.is_slow = max(1, self.count // 2), self.count == 1
        return True
