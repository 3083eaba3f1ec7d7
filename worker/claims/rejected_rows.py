"""Rows with which no statement succeeds, set aside so that they stop no others.

A timeout may be the server's: after one, a row is left out until another statement has
succeeded, and is set aside only if it times out once more after that."""

import logging
from collections.abc import Set
from typing import Literal

from cmdbus.worker.claims.claim import ClaimKey, Connection, Key, key_of
from cmdbus.worker.claims.held import HeldClaims
from cmdbus.worker.claims.outcomes import MAX_MESSAGE, ascii_text
from cmdbus.worker.claims.rejections import Cause, cause_of, may_be_of_one_row, reason

logger = logging.getLogger(__name__)


class RejectedRows:
    """Used by one thread at a time."""

    def __init__(self, claims: HeldClaims) -> None:
        self._claims = claims
        self._skipped: set[int] = set()
        #: Rows that have timed out once: since the latest success of another statement, and
        #: before it.
        self._late: set[Key] = set()
        self._late_before: set[Key] = set()

    @property
    def skipped(self) -> Set[int]:
        """Ids of rows that cannot even be moved, for as long as this process lives; and of those
        that have timed out, until another statement succeeds."""
        return self._skipped | {id for id, *_ in self._late}

    def succeeded(self) -> bool:
        """A statement for other rows, or for none: what has timed out is tried once more.
        Whether there is any."""
        again = bool(self._late)
        self._late_before |= self._late
        self._late.clear()
        return again

    def set_aside(
        self,
        connection: Connection,
        key: ClaimKey,
        what: str,
        error: Exception,
        table: Literal["ready", "scheduled"] = "ready",
    ) -> bool:
        """Moves a row to troubleshooting, because of `error`. False if the row has changed
        since its key was read, or is skipped."""
        name = key_of(key)
        if cause_of(error) is Cause.TIMEOUT and name not in self._late_before:
            self._late.add(name)
            return False
        self._late_before.discard(name)
        why = ascii_text(reason(error), MAX_MESSAGE)
        where = f"command {key.command_id} (domain {key.domain}, row {key.id}) {what}"
        try:
            moved = self._claims.set_aside(connection, key, "NOT_CLAIMABLE", why, table)
        except Exception as second:
            if not may_be_of_one_row(second):
                raise
            if cause_of(second) is Cause.TIMEOUT:
                self._late.add(name)
                return False
            self._skipped.add(key.id)
            again = reason(second)
            logger.error("%s: %s; nor moved to troubleshooting: %s; skipped", where, why, again)
            return False
        if moved:
            logger.error("%s: moved to the troubleshooting queue: %s", where, why)
        return moved
