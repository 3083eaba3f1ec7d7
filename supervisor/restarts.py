"""When a dead process may have a successor. Pure: the time and the dice are passed in.

The first restart is at once. Only early deaths make the next ones wait, twice as long
each time, until its number has been quiet for a minute; and only those, too many over
all numbers while no worker is ready, make the supervisor give up. Being ready is not being
quiet: a process that dies later than early neither adds to the pause nor takes it back.
"""

from collections import deque
from collections.abc import Hashable

from cmdbus.board.records import ClaimState, Phase, Role
from cmdbus.board.views import SeatView
from cmdbus.exits import Exit

#: A process that lived less, and settled nothing, died early.
EARLY_SECONDS = 10.0
#: Counted from when the successor might have started.
QUIET_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: By the dice, a pause is so much of itself shorter.
_JITTER = 0.2
#: Early deaths within WINDOW_SECONDS that are too many: for a fleet of `wanted`, twice as many.
WINDOW_SECONDS = 60.0
_TOO_MANY = 6


class Restarts:
    def __init__(self) -> None:
        #: By number: early deaths in a row, and until when nothing is quiet.
        self._early: dict[Hashable, tuple[int, float]] = {}
        self._not_before: dict[Hashable, float] = {}
        self._deaths: deque[float] = deque()

    def died_early(self, number: Hashable, now: float, rand: float) -> float:
        """Seconds until its successor may start; `dice` in [0, 1) spreads them."""
        self._deaths.append(now)
        return self._pause(number, now, rand, self._in_a_row(number, now))

    def not_started(self, number: Hashable, now: float, rand: float) -> float:
        """There was no process to be had: nobody died, but trying at once would not help."""
        return self._pause(number, now, rand, max(2, self._in_a_row(number, now)))

    def not_before(self, number: Hashable) -> float:
        return self._not_before.get(number, 0.0)

    def too_many(self, wanted: int, now: float) -> bool:
        while self._deaths and self._deaths[0] <= now - WINDOW_SECONDS:
            self._deaths.popleft()
        return len(self._deaths) >= max(_TOO_MANY, 2 * wanted)

    def _in_a_row(self, number: Hashable, now: float) -> int:
        count, until = self._early.get(number, (0, now))
        return count + 1 if now < until else 1

    def _pause(self, number: Hashable, now: float, rand: float, count: int) -> float:
        pause = _length(count) * (1.0 - _JITTER * rand)
        self._not_before[number] = now + pause
        self._early[number] = count, now + pause + QUIET_SECONDS
        return pause


def died_early(role: Role, seat: SeatView, *, lived: float, settled: bool) -> bool:
    """Whether a process that exited without an order is an early death. It is not if any
    command was in progress: that one is attributed, and ends with an operator."""
    if seat.ready is None or role is not Role.WORKER:
        return seat.ready is None
    return not is_busy(seat) and lived < EARLY_SECONDS and not settled


def is_expected(role: Role, seat: SeatView, code: int, *, ordered: bool) -> bool:
    """Whether a process that exited with `code` has stopped as it should: by order or, in
    quarantine, because no suspect is left. In the middle of a command it is a crash; after its
    timeout, whose outcome is settled, the command's thread keeps no process from exiting."""
    if ordered:
        return code in (Exit.DONE, Exit.UNFINISHED, Exit.TERMINATED)
    return code in (Exit.DONE, Exit.UNFINISHED) and role is Role.QUARANTINE and not is_busy(seat)


def is_busy(seat: SeatView) -> bool:
    """Whether a command has started whose outcome is not settled."""
    started = any(key.state is not ClaimState.CLAIMED for key in seat.claims)
    # A timed-out slot shows its command until its thread returns, also once it is settled.
    running = [slot for slot in seat.slots if slot.command and slot.phase is not Phase.STUCK]
    return started or bool(running)


def _length(count: int) -> float:
    """Of the pause after so many in a row. Doubled one by one: a power would overflow in a
    number that dies for hours."""
    pause = 0.0 if count < 2 else _FIRST_PAUSE
    for _ in range(2, count):
        if pause >= _LONGEST_PAUSE:
            break
        pause *= 2
    return min(pause, _LONGEST_PAUSE)
