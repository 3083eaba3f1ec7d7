"""The states of a registry's breakers, as a process has read them last.

The states are in the database. A change of one raises a number on the board; while that is not the
number that was read, the leader, housekeeping, and a thread before a guarded call read the states
again. As a notification may be lost, the leader and such a thread also do so a second after the
latest reading. While the database is away, what was read last holds.
"""

import random
from collections.abc import Collection, Sequence
from threading import Lock
from typing import NamedTuple

from cmdbus.board.board import Board
from cmdbus.breakers import BreakerDeclaration, BreakerState, deferral
from cmdbus.clock import time
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements

#: Seconds from one reading to the next, if there are claims or calls.
_MAX_AGE_SECONDS = 1.0


class BreakerReading(NamedTuple):
    """The state of a breaker as it was read; times are monotonic."""

    state: BreakerState
    #: Seconds.
    cooldown: float
    #: From when on probes are let through; infinite while an operator keeps it open.
    retry_at: float
    changed_at: float
    #: Of the first failure on record.
    failed_at: float | None
    #: Further failures that open it.
    room: int

    @classmethod
    def of(cls, row: Sequence[object], now: float) -> "BreakerReading":
        """From a row of read_breaker_states, without its name."""
        state, cooldown, retry_in, changed_ago, failed_ago, room = row
        assert isinstance(cooldown, float) and isinstance(changed_ago, float)
        return cls(
            BreakerState(str(state)),
            cooldown,
            now + retry_in if isinstance(retry_in, float) else float("inf"),
            now - changed_ago,
            now - failed_ago if isinstance(failed_ago, float) else None,
            int(str(room)),
        )

    def deferral(self, now: float) -> float:
        retry_in = None if self.retry_at == float("inf") else self.retry_at - now
        return deferral(self.cooldown, retry_in, now - self.changed_at, random.random())


class BreakerStates:
    """Shared by all threads; what they read is replaced as a whole."""

    def __init__(
        self,
        statements: ClaimStatements,
        declared: Sequence[BreakerDeclaration],
        handled: Collection[str],
        board: Board,
    ) -> None:
        """`handled`: the types that this process runs, as "domain type"."""
        self._statements, self._board = statements, board
        self.names = [each.name for each in declared]
        #: Those of them that are bound to each breaker.
        self.types = {
            each.name: types
            for each in declared
            if (types := [name for name in each.covers if name in handled])
        }
        #: Those that are not CLOSED.
        self.open: dict[str, BreakerReading] = {}
        #: The types that are bound to these: they are not claimed.
        self.withheld_types: frozenset[str] = frozenset()
        #: Those that have failures on record, and the time of the first one.
        self.failing: dict[str, float] = {}
        #: Failures that each still lets through.
        self.room: dict[str, int] = {}
        #: The number of changes on the board for which the states were read, and when.
        self._read_changes = -1
        self._read_at = float("-inf")
        #: Readings that have begun, and the latest of which the states are; the lock is for them.
        self._begun = self._stored = 0
        self._storing = Lock()

    @property
    def is_stale(self) -> bool:
        return bool(self.names) and self._board.breaker_changes != self._read_changes

    @property
    def is_old(self) -> bool:
        """Whether a claim or a call must not rely on them."""
        return self.is_stale or (
            bool(self.names) and time.monotonic() >= self._read_at + _MAX_AGE_SECONDS
        )

    def may_probe(self, name: str) -> bool:
        reading = self.open.get(name)
        return reading is not None and time.monotonic() >= reading.retry_at

    def read(self, connection: Connection) -> None:
        with self._storing:
            self._begun += 1
            reading = self._begun
        # Before the states: one that changes meanwhile is read again.
        changes = self._board.breaker_changes
        rows = self._statements.rows(connection, "read_breaker_states", names=self.names)
        now = time.monotonic()
        with self._storing:
            if reading > self._stored:  # Else another thread has read later ones.
                self._stored = reading
                self._store({name: BreakerReading.of(row, now) for name, *row in rows})
                self._read_changes, self._read_at = changes, now

    def _store(self, readings: dict[str, BreakerReading]) -> None:
        open_ = {n: each for n, each in readings.items() if each.state is not BreakerState.CLOSED}
        withheld = (name for each in open_ for name in self.types.get(each, ()))
        self.withheld_types = frozenset(withheld)
        self.open = open_
        self.room = {n: each.room for n, each in readings.items()}
        self.failing = {
            n: each.failed_at for n, each in readings.items() if each.failed_at is not None
        }
