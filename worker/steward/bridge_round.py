"""Moves messages of PGMQ's queues into commands, and commands into messages.

Every node tries each bridge, and one at a time moves: a move is a statement that locks the bridge.
After a move the next one follows at once; while there is nothing to move, the pause grows. What
keeps a bridge from moving is noted with it, and keeps no other one and no other round waiting.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any
from uuid import UUID

import psycopg

from cmdbus.arrays import ids, numbers
from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.failpoints import AFTER_MOVE, BEFORE_MOVE, failpoint
from cmdbus.priorities import HIGHEST, LOWEST
from cmdbus.queue_problems import queue_error
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import Cause, cause_of, may_be_of_one_row, reason
from cmdbus.worker.waiting.timers import Timers

logger = logging.getLogger(__name__)

#: Bytes of messages or commands that one move takes.
_MAX_BYTES = 4 * 2**20
#: Seconds below which a move is quick, and above which it is slow.
_QUICK, _SLOW = 0.25, 1.0
#: Seconds after which a round leaves the rest to the next one.
_ROUND_SECONDS = 0.2
#: Bounds of the pause after a move that found nothing, or another node that moves, in seconds.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 1.0
#: Seconds for which a busy bridge reads on after what it moved last: something before that may be
#: there again by then.
_ON_SECONDS = 1.0
_NO_FLOORS = (0,) * (LOWEST - HIGHEST + 1)
#: Bridges above which the pauses grow with their number: a node looks no more often than this many
#: times in each second at those that have nothing to move (a look takes it 1 ms).
_MAX_LOOKS = 100
#: Seconds until a bridge that cannot move is tried again.
_FAILED_SECONDS = 5.0


@dataclass(slots=True)
class _Bridge:
    """As this node sees it."""

    name: str
    queue: str
    direction: str
    domain: str
    #: The domain that gets the replies.
    reply_to: str | None
    batch_size: int
    #: What the next move takes at most: less, after one that took too long.
    count: int = field(init=False)
    #: Commands that it moves are claimed by this number.
    claimer: int = field(default_factory=lambda: secrets.randbelow(2**63 - 1) + 1)
    #: A move of one has taken too long: the next one has more time.
    is_slow: bool = False
    #: The next move takes messages above it, or commands above that of their priority; and the
    #: monotonic time from which on it is 0.
    floor: int = 0
    floors: Sequence[int] = _NO_FLOORS
    first_at: float = 0.0
    #: Monotonic time of the next move.
    due: float = 0.0
    pauses: Backoff = field(default_factory=lambda: Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS))
    #: The latest warning, which is not repeated.
    warned: str = ""

    def __post_init__(self) -> None:
        self.count = self.batch_size

    def is_like(self, other: "_Bridge") -> bool:
        return (self.queue, self.direction, self.domain, self.reply_to, self.batch_size) == (
            *(other.queue, other.direction, other.domain, other.reply_to),
            other.batch_size,
        )

    def expect(self) -> None:
        """Replies that it is to move may come."""
        if not self.warned:
            self.pauses.reset()
            self.due = min(self.due, time.monotonic() + _MIN_PAUSE_SECONDS)


class BridgeRound:
    """Costs nothing while the timers, which are read anyway, know of no bridge."""

    def __init__(
        self,
        statements: ClaimStatements,
        timers: Timers,
        allow_one_row: Callable[[], float],
        hurry: Callable[[], None],
    ) -> None:
        """`allow_one_row`: see DueCommands. `hurry` is called where batches may be over that could
        not be ended."""
        self._statements, self._timers = statements, timers
        self._allow_one_row, self._hurry = allow_one_row, hurry
        #: What the timers said of bridges when these were listed.
        self._listed = inf
        self._bridges: dict[str, _Bridge] = {}

    def run(self, connection: Connection) -> float:
        if self._listed != self._timers.bridges:
            self._list(connection)
        if not self._bridges:
            return inf
        until = time.monotonic() + _ROUND_SECONDS
        while (next_ := min(self._bridges.values(), key=attrgetter("due"))).due <= time.monotonic():
            self._attend(connection, next_)
            if time.monotonic() >= until:
                # Each of many bridges may wait as long as lock_timeout says.
                return 0.0
        return max(0.0, next_.due - time.monotonic())

    def _list(self, connection: Connection) -> None:
        listed, found = self._timers.bridges, dict[str, _Bridge]()
        for row in self._statements.rows(connection, "list_bridges"):
            new = _Bridge(*row)
            old = self._bridges.get(new.name)
            found[new.name] = old if old is not None and old.is_like(new) else new
        self._listed, self._bridges = listed, found

    def _attend(self, connection: Connection, bridge: _Bridge) -> None:
        began = time.monotonic()
        try:
            moved = self._move(connection, bridge)
        except Exception as error:
            if not _is_of_bridge(connection, error):
                raise
            self._failed(connection, bridge, error)
            return
        bridge.warned = ""
        if not moved:
            pause = bridge.pauses.pause() * max(1.0, len(self._bridges) / _MAX_LOOKS)
            bridge.due = time.monotonic() + pause
            return
        bridge.due, bridge.is_slow = time.monotonic(), False
        if bridge.due - began > _SLOW:
            bridge.count = max(1, bridge.count // 2)
        elif bridge.due - began < _QUICK:
            bridge.count = min(bridge.batch_size, 2 * bridge.count)
        bridge.pauses.reset()
        for each in self._bridges.values():
            if each.domain == bridge.reply_to:
                each.expect()

    def _move(self, connection: Connection, bridge: _Bridge) -> bool:
        """Whether there may be more at once."""
        failpoint(BEFORE_MOVE)
        with ExitStack() as within:
            if bridge.is_slow:
                within.enter_context(connection.transaction())
                limit = f"{self._allow_one_row():g}s"
                self._statements.value(connection, "limit_statements", limit=limit)
            moved, refused, held, batch_ids = self._call(connection, bridge)
        failpoint(AFTER_MOVE)
        if batch_ids:
            self._end_batches(connection, batch_ids)
        if held:
            logger.error("bridge %s: %s", bridge.name, held)
        if refused:
            what = count_of(refused, "message" if bridge.direction == "in" else "command")
            logger.warning(
                "bridge %s: %s moved to the troubleshooting queue, code BRIDGE_REFUSED",
                bridge.name,
                what,
            )
        return moved + refused > 0 or bool(held)

    def _call(
        self, connection: Connection, bridge: _Bridge
    ) -> tuple[int, int, str | None, Sequence[UUID] | None]:
        """How many were moved and refused, none if another node moves; see move_in and move_out
        for the others. If nothing is above the floors, it begins anew."""
        values: dict[str, Any] = {"name": bridge.name, "count": bridge.count, "bytes": _MAX_BYTES}
        own = {"lease": self._statements.lease, "node": self._statements.node}
        own["claimer"] = bridge.claimer
        while True:
            now = time.monotonic()
            is_first = now >= bridge.first_at or not (bridge.floor or any(bridge.floors))
            if is_first:
                bridge.floor, bridge.floors = 0, _NO_FLOORS
                bridge.first_at = now + _ON_SECONDS
            held, batch_ids = None, None
            if bridge.direction == "in":
                row = self._statements.row(connection, "move_in", **values, floor=bridge.floor)
                assert row is not None
                moved, refused, held, bridge.floor = row
            else:
                floors = numbers(bridge.floors)
                row = self._statements.row(connection, "move_out", **values, **own, floors=floors)
                assert row is not None
                moved, refused, batch_ids, next_floors = row
                bridge.floors = next_floors or _NO_FLOORS
            if moved or refused or held or is_first:
                return moved, refused, held, batch_ids

    def _end_batches(self, connection: Connection, batch_ids: Sequence[UUID]) -> None:
        """As a worker does once its settlements are committed."""
        try:
            self._statements.value(connection, "start_batches", batch_ids=ids(batch_ids))
            self._statements.value(connection, "end_batches", batch_ids=ids(batch_ids))
        except Exception as error:
            if not may_be_of_one_row(error):
                raise
            self._hurry()

    def _failed(self, connection: Connection, bridge: _Bridge, error: Exception) -> None:
        if cause_of(error) is Cause.TIMEOUT and not bridge.is_slow:
            bridge.count, bridge.is_slow = max(1, bridge.count // 2), bridge.count == 1
            return
        bridge.due = time.monotonic() + _FAILED_SECONDS
        why = reason(error)
        try:
            why = self._explained(connection, bridge, error)
            self._statements.value(connection, "note_bridge_error", name=bridge.name, error=why)
        except psycopg.Error:
            if connection.closed:
                raise
        if why != bridge.warned:
            logger.warning(
                "bridge %s: %s; trying again every %g s", bridge.name, why, _FAILED_SECONDS
            )
        bridge.warned = why

    def _explained(self, connection: Connection, bridge: _Bridge, error: Exception) -> str:
        values = {"queue": bridge.queue, "direction": bridge.direction}
        row = self._statements.row(connection, "explain_queue", **values)
        assert row is not None
        problem, role, database = row
        if problem is None:
            return reason(error)
        return str(queue_error(problem, bridge.queue, bridge.direction, role, database))


def _is_of_bridge(connection: Connection, error: Exception) -> bool:
    """Not of the session, nor of a server that takes no writes any longer."""
    if connection.closed or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return False
    return isinstance(error, psycopg.Error) and error.sqlstate is not None
