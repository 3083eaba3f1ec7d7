"""Claims row by row where a claim of many has failed, so that one row stops no others.

A row that cannot be claimed, or cannot be read, moves to troubleshooting; after a timeout,
if it times out again while other statements succeed. One that cannot be moved either is skipped
for a minute. A lock timeout or a deadlock is no reason for either: the row is tried again by the
next claim. Keys are read without data.
"""

import logging
from collections.abc import Callable

from cmdbus.worker.claims.claim import Claim, ClaimRequest, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejected_rows import RejectedRows
from cmdbus.worker.claims.rejections import Cause, cause_of, may_be_of_one_row, was_executed

logger = logging.getLogger(__name__)

#: Rows claimed in one pass, each in a round trip of its own.
_MAX_ROWS = 50
#: Lock timeouts after which a pass leaves its remaining rows to the next one.
_MAX_WAITS = 3


class Narrowing:
    """Used by one thread at a time: the leader, or the thread that stops the worker."""

    def __init__(self, statements: ClaimStatements) -> None:
        self._statements = statements
        self._rejected = RejectedRows(statements)

    def claim(
        self, connection: Connection, request: ClaimRequest, take_on: Callable[[list[Claim]], None]
    ) -> int:
        """Passes each claim on immediately; returns how many rows are claimed or moved away."""
        count, payload, waits = 0, 0, 0
        keys = self._statements.claimable(
            connection, request, min(request.free, _MAX_ROWS), self._rejected.skipped
        )
        if not keys:
            self._rejected.succeeded()
        for key in keys:
            try:
                claim = self._statements.claim_row(connection, key)
            except Exception as error:
                if cause_of(error) is Cause.CONTENTION and waits < _MAX_WAITS:
                    waits += 1
                    continue
                if not may_be_of_one_row(error):
                    raise
                if was_executed(error):
                    key = key._replace(token=key.token + 1, claimer=self._statements.incarnation)
                count += self._rejected.set_aside(connection, key, "cannot be claimed", error)
            else:
                self._rejected.succeeded()
                if claim is not None:
                    take_on([claim])
                    count += 1
                    payload += len(claim.data)
            if payload >= request.bytes:
                break
        return count
