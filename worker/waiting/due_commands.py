"""Promotes due commands, from scheduled to ready, and ends those that have expired, in chunks.

a chunk succeeds    the next one is twice as large, up to the limits
a chunk fails       the next one is half as large
one row fails       it moves to troubleshooting or, if even that fails, is skipped for a minute
one row times out   it is left out until another statement succeeds, then tried once more
a lock times out    the rows stay as they are, until the next reading
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from cmdbus.arrays import numbers
from cmdbus.clock import time
from cmdbus.worker.claims.claim import ClaimKey, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements, Table
from cmdbus.worker.claims.rejected_rows import RejectedRows
from cmdbus.worker.claims.rejections import Cause, cause_of, reason

logger = logging.getLogger(__name__)

#: Rows of the largest chunk, and their bytes as stored: what a slow disk writes in a second.
_MAX_ROWS, _MAX_BYTES = 1000, 8 * 2**20
#: Seconds below which a chunk is quick, and above which it is slow.
_QUICK, _SLOW = 0.25, 1.0


class Move(NamedTuple):
    """What happens to commands at a certain time, such as their expiry."""

    statement: str
    #: The statement that reads the key of the first row, and its table.
    find_first: str
    #: Messages about a row that no statement moves, and about a chunk.
    problem: str
    warning: str


PROMOTE = Move(
    "promote",
    "find_first_due",
    "is due and cannot be promoted",
    "cannot promote due commands",
)
EXPIRE = Move(
    "expire",
    "find_first_expired",
    "has expired and cannot be canceled",
    "cannot cancel expired commands",
)


class DueCommands:
    """Used by one thread."""

    def __init__(
        self, statements: ClaimStatements, move: Move, timeout: Callable[[], float]
    ) -> None:
        """`timeout` is called before one row is moved by itself, and returns the seconds that it
        may take, or 0 for the session's own statement timeout."""
        self._statements = statements
        self._move = move
        self._timeout = timeout
        self._rows = _MAX_ROWS
        self._rejected = RejectedRows(statements)
        #: The latest warning, which is not repeated until a chunk succeeds.
        self._last_warning = ""

    def step(self, connection: Connection) -> bool:
        """One chunk; whether another one may follow immediately."""
        rows, size = self._rows, _MAX_BYTES * self._rows // _MAX_ROWS
        first = self._first(connection) if rows == 1 else None
        seconds = self._timeout() if rows == 1 else 0.0
        began = time.monotonic()
        try:
            moved = self._move_rows(connection, rows, size, seconds)
        except Exception as error:
            if cause_of(error) is Cause.ELSEWHERE:
                raise
            if cause_of(error) is Cause.CONTENTION:
                self._warn_once(f"{reason(error)}: trying again")
                return False
            return self._narrow(connection, first, error)
        again = self._rejected.succeeded()
        took = time.monotonic() - began
        if took < _QUICK:
            self._rows = min(rows * 2, _MAX_ROWS)
        elif took > _SLOW:
            self._rows = max(rows // 2, 1)
        self._last_warning = ""
        return moved > 0 or again

    def _narrow(
        self,
        connection: Connection,
        first: tuple[ClaimKey, Table] | None,
        error: Exception,
    ) -> bool:
        if self._rows > 1:
            self._warn_once(f"{reason(error)}: trying fewer")
            self._rows //= 2
            return True
        # Another node may have moved the row meanwhile: then the first one is another.
        if first is not None and first == self._first(connection):
            key, table = first
            self._rejected.set_aside(connection, key, self._move.problem, error, table)
        return True

    def _move_rows(self, connection: Connection, rows: int, size: int, seconds: float) -> int:
        """Up to `rows` rows and `size` bytes as stored; returns the number of commands."""
        skipped = numbers(self._rejected.skipped)
        values = {"count": rows, "bytes": size, "skipped": skipped}
        move = partial(self._statements.value, connection, self._move.statement, **values)
        if not seconds:
            return int(move())
        with connection.transaction():
            self._statements.value(connection, "limit_statements", limit=f"{seconds:g}s")
            return int(move())

    def _first(self, connection: Connection) -> tuple[ClaimKey, Table] | None:
        """The row that is moved next, and its table."""
        skipped = numbers(self._rejected.skipped)
        row = self._statements.row(connection, self._move.find_first, skipped=skipped)
        return None if row is None else (ClaimKey._make(row[:-1]), row[-1])

    def _warn_once(self, why: str) -> None:
        if why != self._last_warning:
            logger.warning("%s: %s", self._move.warning, why)
        self._last_warning = why
