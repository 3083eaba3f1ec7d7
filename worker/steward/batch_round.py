"""Sees to batches on behalf of processes that have died: ends those that are over, goes on with
cancellations, and adds the tally of large ones to their counters, so that it stays short."""

import logging
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.producer.steering import canceled_chunks
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import may_be_of_one_row, reason

logger = logging.getLogger(__name__)

#: Lines in the tally of a batch from which they are added to its counters.
MAX_LINES = 100
#: Batches seen to in one round.
_MAX_BATCHES = 100
#: Seconds between two rounds: the pause grows while there is nothing to do. The search reads all of
#: the tally: the pause is at least a multiple of its duration.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, _PAUSE = 1.0, 30.0, 50
#: Seconds after which a round leaves the rest to the next one.
_ROUND_SECONDS = 3.0


class BatchRound:
    def __init__(self, statements: ClaimStatements) -> None:
        self._statements = statements
        self._backoff = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        #: Monotonic time of the next round.
        self._due = 0.0

    def hurry(self) -> None:
        """A process has died, which may have settled the last command of a batch."""
        self._due = 0.0
        self._backoff.reset()

    def run(self, connection: Connection) -> float:
        began = time.monotonic()
        if began < self._due:
            return self._due - began
        self._due = began + _MIN_PAUSE_SECONDS
        found = self._statements.rows(
            connection, "find_batches", lines=MAX_LINES, count=_MAX_BATCHES
        )
        searched = time.monotonic() - began
        if self._see_to(connection, found, began + _ROUND_SECONDS):
            self._backoff.reset()
        pause = max(self._backoff.pause(), _PAUSE * searched)
        self._due = time.monotonic() + pause
        return pause

    def _see_to(
        self, connection: Connection, found: Sequence[tuple[UUID, bool]], until: float
    ) -> bool:
        """Whether there was anything to do."""
        is_busy = False
        for batch_id, is_canceling in found:
            if time.monotonic() >= until:
                return True
            try:
                # Nothing, while the last commands of a canceled batch run or wait for an operator.
                found_work = not is_canceling or self._cancel(connection, batch_id, until) > 0
                self._statements.value(connection, "fold_batch", batch_id=batch_id)
                is_busy |= found_work
            except Exception as error:
                if not may_be_of_one_row(error):
                    raise
                logger.warning("batch %s cannot go on: %s; trying again", batch_id, reason(error))
        return is_busy

    def _cancel(self, connection: Connection, batch_id: UUID, until: float) -> int:
        """Returns how many commands."""
        total = 0
        cancel = partial(self._statements.row, connection, "cancel_in_batch")
        for canceled in canceled_chunks(batch_id, cancel):
            total += canceled
            if time.monotonic() >= until:
                break
        return total
