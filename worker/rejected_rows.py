"""Rows with which no statement succeeds, set aside so that they stop no others."""

import logging
from collections.abc import Set
from typing import Literal

from cmdbus.outcomes import MAX_MESSAGE, ascii_text
from cmdbus.worker.claim import ClaimKey, Connection
from cmdbus.worker.claims import Claims
from cmdbus.worker.rejections import may_be_of_one_row, reason

logger = logging.getLogger(__name__)


class RejectedRows:
    """Used by one thread at a time."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._skipped: set[int] = set()

    @property
    def skipped(self) -> Set[int]:
        """Ids of rows that cannot even be moved, for as long as this process lives."""
        return self._skipped

    def set_aside(
        self,
        connection: Connection,
        key: ClaimKey,
        what: str,
        error: Exception,
        table: Literal["ready", "scheduled"] = "ready",
    ) -> bool:
        """Moves a row to troubleshooting, because of `error`. False if the row has changed
        since its key was read, or is skipped from now on."""
        why = ascii_text(reason(error), MAX_MESSAGE)
        where = f"command {key.command_id} (domain {key.domain}, row {key.id}) {what}"
        try:
            moved = self._claims.set_aside(connection, key, "NOT_CLAIMABLE", why, table)
        except Exception as second:
            if not may_be_of_one_row(second):
                raise
            self._skipped.add(key.id)
            again = reason(second)
            logger.error("%s: %s; nor moved to troubleshooting: %s; skipped", where, why, again)
            return False
        if moved:
            logger.error("%s: moved to the troubleshooting queue: %s", where, why)
        return moved
