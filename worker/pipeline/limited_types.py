"""Which types of a process have limits, and what its claims take of their lanes.

Limits live in the database. Each claim returns how often they have changed; when that number is
another one, the leader reads which of its types have limits now.
"""

from collections.abc import Collection, Sequence

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.worker.claims.claim import (
    ClaimPart,
    ClaimRequest,
    ClaimResult,
    Connection,
    LaneRequest,
)
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.floors import Floors

#: Seconds until limits are read again, while a change of them is not committed.
_UNCOMMITTED_SECONDS = 0.05
#: Seconds until the next claim after one that found only what other claims had locked.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.1


class LimitedTypes:
    """Used by the thread that leads."""

    def __init__(self, statements: ClaimStatements) -> None:
        self._statements = statements
        #: "domain type".
        self._names: frozenset[str] = frozenset()
        self._shared: Sequence[str] = ()
        #: The number of changes that was read, and the latest that a claim has returned; None while
        #: a change is being made, and before anything was read. 0: there was never a limit.
        self._read: int | None = None
        self._latest: int | None = 0
        self._doubted = False
        #: When they may be read again.
        self._readable_at = 0.0
        self._floors = Floors()
        #: The latest claim of types without limits found nothing.
        self._others_were_empty = False
        #: Alternates: the lanes get the odd command of a request.
        self._favors_lanes = False
        #: The latest request had no room for lanes.
        self._left_out = False
        #: The monotonic time at which a rate lets a command start.
        self._opens_at = float("inf")
        self._locked_pauses = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)

    @property
    def _is_old(self) -> bool:
        # In quarantine there are none: a suspect has kept its place.
        is_old = self._read != self._latest or self._doubted
        return is_old and not self._statements.in_quarantine

    @property
    def must_be_read(self) -> bool:
        return self._is_old and time.monotonic() >= self._readable_at

    def doubt(self) -> None:
        """After a wake-up for which nothing was found: a sender whose snapshot is old may have put
        commands into a lane of a type that no longer has a limit."""
        self._doubted = bool(self._latest)

    def read(self, connection: Connection) -> None:
        number, names, shared = self._statements.limited_types(connection)
        if self._names != frozenset(names):
            self._floors = Floors()
        if added := [name for name in names if name not in self._names]:
            self._statements.take_places(connection, added)
        self._names, self._shared = frozenset(names), shared
        if not names:
            self._opens_at = float("inf")
        self._read, self._doubted = number, False
        if number is not None:
            self._latest = number
        self._readable_at = time.monotonic() + (_UNCOMMITTED_SECONDS if number is None else 0)

    @property
    def any(self) -> bool:
        return bool(self._names)

    def split(self, types: Sequence[str]) -> tuple[list[str], list[str]]:
        """Those of these types that have a limit, and the others."""
        if not self._names:
            return [], list(types)
        names = self._names
        return [name for name in types if name in names], [
            name for name in types if name not in names
        ]

    def request(
        self, limited: Sequence[str], quick: Collection[str], request: ClaimRequest, now: float
    ) -> ClaimRequest:
        """Adds a claim in the lanes of the limited types to the request. They get half of its
        commands or, every second time while the other types have none, all."""
        quick_lanes = [name for name in limited if name in quick]
        self._favors_lanes = not self._favors_lanes
        free = (request.free + self._favors_lanes) // 2
        ahead = (request.prefetch + 1) // 2 if quick_lanes else 0
        if not request.types or (self._others_were_empty and self._favors_lanes):
            free = request.free
        self._left_out = free == 0 < request.free
        self._opens_at = float("inf")
        if not request.quick_types and quick_lanes:
            ahead = request.prefetch
        lanes = LaneRequest(
            types=limited,
            quick_types=quick_lanes,
            shared=self._shared,
            free=free,
            prefetch=ahead,
            floors=self._floors.for_claim(now),
            below=self._floors.below(now),
            priorities=request.priorities,
        )
        return request._replace(prefetch=request.prefetch - ahead, lanes=lanes)

    def lanes(self, limited: Sequence[str], free: int, priorities: tuple[int, int]) -> LaneRequest:
        """For up to `free` commands of these types, none of them ahead."""
        lanes = LaneRequest(limited, [], self._shared, free, prefetch=0, floors={}, below=True)
        return lanes._replace(priorities=priorities)

    def begin_anew(self) -> None:
        """With other types."""
        self._floors = Floors()

    def looked(self, request: ClaimRequest, result: ClaimResult, now: float) -> bool:
        """Takes a result of a claim; whether the lanes may have more."""
        if result.limit_changes is not None:
            self._latest = result.limit_changes
        if request.lanes is None:
            return False
        if result.part is ClaimPart.STRAYS:
            asked = request.lanes
            self._floors.looked(asked.floors, asked.below, asked.queues, result, now)
            return result.stopped_at is not None
        if result.part is ClaimPart.LANES:
            if result.claims or result.has_more:
                self._locked_pauses.reset()
            elif result.opens_in is not None:
                opens_in = result.opens_in
                if opens_in <= 0:
                    opens_in = self._locked_pauses.pause()
                self._opens_at = min(self._opens_at, now + opens_in)
            return result.has_more
        if result.part is ClaimPart.FREE:
            self._others_were_empty = not result.claims
            return self._left_out
        return False

    @property
    def look_again_at(self) -> float:
        """The monotonic time by which an empty claim must be followed by another; else infinite."""
        read_at = self._readable_at if self._is_old else float("inf")
        return min(self._opens_at, self._floors.look_again_at, read_at)
