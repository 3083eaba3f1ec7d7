"""Rows with which no statement succeeds, set aside so that they stop no others.

A timeout may be the server's: after one, a row is left out until another statement has
succeeded, and is set aside only if it times out once more after that. A row that cannot be moved
either is left out for a minute: whatever refuses it may have been removed by then."""

import logging
from collections.abc import Set

from cmdbus.clock import time
from cmdbus.command_log import log_about
from cmdbus.worker.claims.claim import ClaimKey, Connection, Fence, fence_of
from cmdbus.worker.claims.claim_statements import ClaimStatements, Table
from cmdbus.worker.claims.log_fields import log_fields
from cmdbus.worker.claims.outcomes import MAX_MESSAGE, ascii_text
from cmdbus.worker.claims.rejections import Cause, cause_of, may_be_of_one_row, reason

logger = logging.getLogger(__name__)

#: Seconds until a row that could not even be moved is tried again.
SKIP_SECONDS = 60.0
#: Seconds after which one that was not met again counts as gone.
_FORGET_SECONDS = 600.0


class RejectedRows:
    """Used by one thread at a time."""

    def __init__(self, statements: ClaimStatements) -> None:
        self._statements = statements
        #: Rows that could not even be moved, with the monotonic time until which they are left
        #: out; they stay here, as that is logged once.
        self._skipped: dict[Fence, float] = {}
        #: Rows that have timed out once, left out until another statement has succeeded.
        self._late: set[Fence] = set()
        #: Those that are tried once more, with the monotonic time from which on.
        self._retried: dict[Fence, float] = {}

    @property
    def skipped(self) -> Set[int]:
        """Ids of rows that could not even be moved, for a while; and of those that have timed out,
        until another statement succeeds."""
        now = time.monotonic()
        skipped = {id for (id, *_), until in self._skipped.items() if now < until}
        return skipped | {id for (id, *_) in self._late}

    def succeeded(self) -> bool:
        """Called after a statement for other rows, or for none: those that have timed out are tried
        once more. Returns whether there are any."""
        any_late = bool(self._late)
        if self._skipped or self._retried or any_late:
            now = time.monotonic()
            self._skipped = _recent(self._skipped, now)
            self._retried = _recent(self._retried, now) | dict.fromkeys(self._late, now)
            self._late.clear()
        return any_late

    def set_aside(
        self,
        connection: Connection,
        key: ClaimKey,
        what: str,
        error: Exception,
        table: Table = "ready",
    ) -> bool:
        """Moves a row to troubleshooting because of `error`. False if the row has changed since its
        key was read, or is skipped."""
        fence = fence_of(key)
        self._late.discard(fence)
        again = self._retried.pop(fence, None) is not None
        if cause_of(error) is Cause.TIMEOUT and not again:
            self._late.add(fence)
            return False
        why = ascii_text(reason(error), MAX_MESSAGE)
        try:
            moved = self._statements.set_aside(connection, key, "NOT_CLAIMABLE", why, table)
        except Exception as second:
            if not may_be_of_one_row(second):
                raise
            if cause_of(second) is Cause.TIMEOUT:
                self._late.add(fence)
                return False
            if fence not in self._skipped:
                message = "row %s %s: %s; nor moved to troubleshooting: %s; skipped"
                self._log(connection, key, message, what, why, reason(second))
            self._skipped[fence] = time.monotonic() + SKIP_SECONDS
            return False
        self._skipped.pop(fence, None)
        if moved:
            message = "row %s %s: moved to the troubleshooting queue: %s"
            self._log(connection, key, message, what, why)
        return moved

    def _log(self, connection: Connection, key: ClaimKey, message: str, *args: object) -> None:
        about = log_fields(self._statements, connection, key)
        log_about(logger, logging.ERROR, about, message, key.id, *args)


def _recent(rows: dict[Fence, float], now: float) -> dict[Fence, float]:
    return {fence: at for fence, at in rows.items() if at > now - _FORGET_SECONDS}
