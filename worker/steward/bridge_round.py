"""Moves messages of PGMQ's queues into commands, and commands into messages.

Every node tries each bridge, and one at a time moves: a move is a statement that locks the bridge.
After a move the next one follows at once. While there is nothing to move, the listening session
hears of commands and, where PGMQ notifies of them, of messages; beside that the bridge looks, with
a pause that grows. What keeps a bridge from moving is noted with it, and keeps no other one and no
other round waiting.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from cmdbus.arrays import ids, numbers
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.failpoints import AFTER_MOVE, BEFORE_MOVE, failpoint
from cmdbus.queue_problems import queue_error
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import Cause, cause_of, may_be_of_one_row, reason
from cmdbus.worker.steward.known_bridge import BridgeTerms, KnownBridge
from cmdbus.worker.waiting.bridge_wakes import BridgeWakes
from cmdbus.worker.waiting.timers import Timers

logger = logging.getLogger(__name__)

#: Bytes of messages or commands that one move takes.
_MAX_BYTES = 4 * 2**20
#: Seconds after which a round leaves the rest to the next one.
_ROUND_SECONDS = 0.2
#: Bridges above which the pauses grow with their number: a node looks no more often than this many
#: times in each second at those that have nothing to move (a look takes it 1 ms).
_MAX_LOOKS = 100
#: Seconds until a bridge that cannot move is tried again.
_FAILED_SECONDS = 5.0
#: Characters of what keeps it from that: a trigger may say anything.
_MAX_ERROR = 1000


class _Moved(NamedTuple):
    """What move_in or move_out has returned."""

    #: Both 0 if another node moves.
    moved: int
    refused: int
    #: Why a message stays in its queue: it can be stored nowhere.
    unmovable: str | None = None
    #: The batches of which commands were moved.
    batch_ids: Sequence[UUID] | None = None
    #: Messages or commands wait, and another node moves them.
    is_elsewhere: bool = False

    def __bool__(self) -> bool:
        return bool(self.moved or self.refused or self.unmovable)


class BridgeRound:
    """Costs nothing while the timers, which are read anyway, know of no bridge."""

    def __init__(
        self,
        statements: ClaimStatements,
        timers: Timers,
        allow_one_row: Callable[[], float],
        hurry: Callable[[], None],
        wakes: BridgeWakes,
    ) -> None:
        """`allow_one_row`: see DueCommands. `hurry` is called where batches may be over that could
        not be ended."""
        self._statements, self._timers = statements, timers
        self._allow_one_row, self._hurry, self._wakes = allow_one_row, hurry, wakes
        #: `bridges` of the timers when they were listed.
        self._listed = inf
        self._bridges: dict[str, KnownBridge] = {}

    def run(self, connection: Connection) -> float:
        if self._listed != self._timers.bridges:
            self._list(connection)
        if not self._bridges:
            return inf
        if heard := self._wakes.take():
            for each in self._bridges.values():
                each.hear(heard)
        until = time.monotonic() + _ROUND_SECONDS
        while (next_ := min(self._bridges.values(), key=attrgetter("due"))).due <= time.monotonic():
            self._attend(connection, next_)
            if time.monotonic() >= until:
                # Each of many bridges may wait as long as lock_timeout says.
                return 0.0
        return max(0.0, next_.due - time.monotonic())

    @property
    def idle_domains(self) -> set[str]:
        """Domains of bridges outwards that have had nothing to move within the last moment."""
        now = time.monotonic()
        return {
            each.terms.domain
            for each in self._bridges.values()
            if each.terms.direction == "out" and each.is_idle(now)
        }

    def _list(self, connection: Connection) -> None:
        listed, found = self._timers.bridges, dict[str, KnownBridge]()
        for row in self._statements.rows(connection, "list_bridges"):
            terms = BridgeTerms._make(row)
            known = self._bridges.get(terms.name)
            if known is None or known.terms != terms:
                known = KnownBridge(terms)
            found[terms.name] = known
        self._listed, self._bridges = listed, found
        terms_of_all = [each.terms for each in found.values()]
        inwards = [(each.queue, each.spelled) for each in terms_of_all if each.direction == "in"]
        outwards = [each.domain for each in terms_of_all if each.direction == "out"]
        self._wakes.watch(inwards, outwards)

    def _attend(self, connection: Connection, bridge: KnownBridge) -> None:
        began = time.monotonic()
        try:
            moved = self._move(connection, bridge)
        except Exception as error:
            if not _is_of_bridge(connection, error):
                raise
            self._failed(connection, bridge, error)
            return
        if not moved:
            bridge.has_moved_nothing(max(1.0, len(self._bridges) / _MAX_LOOKS))
            return
        bridge.has_moved(began)
        for each in self._bridges.values():
            if each.terms.domain == bridge.terms.reply_to:
                each.expect()

    def _move(self, connection: Connection, bridge: KnownBridge) -> bool:
        """Whether there may be more at once."""
        failpoint(BEFORE_MOVE)
        with ExitStack() as within:
            if bridge.is_slow:
                within.enter_context(connection.transaction())
                limit = f"{self._allow_one_row():g}s"
                self._statements.value(connection, "limit_statements", limit=limit)
            moved = self._call(connection, bridge)
        failpoint(AFTER_MOVE)
        bridge.note_look(found=bool(moved) or moved.is_elsewhere)
        if moved.batch_ids:
            self._end_batches(connection, moved.batch_ids)
        name, direction = bridge.terms.name, bridge.terms.direction
        if moved.unmovable:
            logger.error("bridge %s: %s", name, moved.unmovable)
        if moved.refused:
            what = count_of(moved.refused, "message" if direction == "in" else "command")
            message = "bridge %s: %s moved to the troubleshooting queue, code BRIDGE_REFUSED"
            logger.warning(message, name, what)
        return bool(moved)

    def _call(self, connection: Connection, bridge: KnownBridge) -> _Moved:
        """If nothing is above the floors, begins at the first message or command."""
        move = self._move_in if bridge.terms.direction == "in" else self._move_out
        while True:
            is_first = bridge.begin()
            moved = move(connection, bridge)
            if moved or is_first:
                return moved

    def _move_in(self, connection: Connection, bridge: KnownBridge) -> _Moved:
        values = {"name": bridge.terms.name, "count": bridge.count, "bytes": _MAX_BYTES}
        row = self._statements.row(connection, "move_in", **values, floor=bridge.floor)
        assert row is not None
        moved, refused, unmovable, bridge.floor = row
        return _Moved(moved, refused, unmovable)

    def _move_out(self, connection: Connection, bridge: KnownBridge) -> _Moved:
        values: dict[str, Any] = {
            **{"name": bridge.terms.name, "count": bridge.count, "bytes": _MAX_BYTES},
            **{"lease": self._statements.lease, "node": self._statements.node},
            **{"claimer": bridge.claimer, "floors": numbers(bridge.floors)},
        }
        row = self._statements.row(connection, "move_out", **values)
        assert row is not None
        moved, refused, batch_ids, floors = row
        bridge.go_on(floors)
        return _Moved(moved or 0, refused, batch_ids=batch_ids, is_elsewhere=moved is None)

    def _end_batches(self, connection: Connection, batch_ids: Sequence[UUID]) -> None:
        """As a worker does once its settlements are committed."""
        try:
            self._statements.value(connection, "start_batches", batch_ids=ids(batch_ids))
            self._statements.value(connection, "end_batches", batch_ids=ids(batch_ids))
        except Exception as error:
            if not may_be_of_one_row(error):
                raise
            self._hurry()

    def _failed(self, connection: Connection, bridge: KnownBridge, error: Exception) -> None:
        if cause_of(error) is Cause.TIMEOUT and bridge.has_timed_out():
            return
        bridge.due = time.monotonic() + _FAILED_SECONDS
        why = reason(error)[:_MAX_ERROR]
        try:
            why = self._explained(connection, bridge, error)[:_MAX_ERROR]
            self._statements.value(
                connection, "note_bridge_error", name=bridge.terms.name, error=why
            )
        except psycopg.Error:
            if connection.closed:
                raise
        if why != bridge.warned:
            logger.warning(
                "bridge %s: %s; trying again every %g s", bridge.terms.name, why, _FAILED_SECONDS
            )
        bridge.warned = why

    def _explained(self, connection: Connection, bridge: KnownBridge, error: Exception) -> str:
        values = {"queue": bridge.terms.queue, "direction": bridge.terms.direction}
        row = self._statements.row(connection, "explain_queue", **values)
        assert row is not None
        problem, role, database = row
        if problem is None:
            return reason(error)
        return str(queue_error(problem, **values, role=role, database=database))


def _is_of_bridge(connection: Connection, error: Exception) -> bool:
    """Not of the session, nor of a server that takes no writes any longer."""
    if connection.closed or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return False
    return isinstance(error, psycopg.Error) and error.sqlstate is not None
