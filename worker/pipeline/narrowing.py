"""Claims row by row where a claim of many has failed, so that one row stops no others.

A row that cannot be claimed, or cannot be read, moves to troubleshooting; after a timeout,
if it times out again while other statements succeed. One that cannot be moved either is skipped
for a minute. A lock timeout or a deadlock is no reason for either: the row is tried again by the
next claim. Keys are read without data.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Container
from functools import partial
from itertools import accumulate

from cmdbus.worker.claims.claim import Claim, ClaimKey, ClaimRequest, Connection, Key, key_of
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.halving import in_halves
from cmdbus.worker.claims.rejected_rows import RejectedRows
from cmdbus.worker.claims.rejections import Cause, cause_of, may_be_of_one_row, reason, was_executed

logger = logging.getLogger(__name__)

#: Rows claimed in one pass, each in a round trip of its own.
_MAX_ROWS = 50
#: Lock timeouts after which a pass leaves its remaining rows to the next one.
_MAX_WAITS = 3


class Narrowing:
    """Used by one thread at a time: the leader, or the thread that stops the worker."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._rejected = RejectedRows(claims)

    def claim(
        self, connection: Connection, request: ClaimRequest, take_on: Callable[[list[Claim]], None]
    ) -> int:
        """Passes each claim on immediately; returns how many rows are claimed or moved away."""
        count, payload, waits = 0, 0, 0
        keys = self._claims.claimable(
            connection, request, min(request.free, _MAX_ROWS), self._rejected.skipped
        )
        if not keys:
            self._rejected.succeeded()
        for key in keys:
            try:
                claim = self._claims.claim_row(connection, key)
            except Exception as error:
                if cause_of(error) is Cause.CONTENTION and waits < _MAX_WAITS:
                    waits += 1
                    continue
                if not may_be_of_one_row(error):
                    raise
                if was_executed(error):
                    key = key._replace(token=key.token + 1, claimer=self._claims.incarnation)
                count += self._set_aside(connection, key, error)
            else:
                self._rejected.succeeded()
                if claim is not None:
                    take_on([claim])
                    count += 1
                    payload += len(claim.data)
            if payload >= request.bytes:
                break
        return count

    def adopt(
        self, connection: Connection, known: Container[Key], most: int
    ) -> tuple[list[Claim], list[Claim]]:
        """The orphans in two parts: with their payloads, of at most `most` bytes but for a
        single larger one; and those that are to be released."""
        orphans = self.orphans(connection, known)
        adopted = in_halves(
            lambda claims: self._claims.with_payloads(connection, claims, most),
            orphans,
            lambda claim, error: self._set_aside(connection, self._claims.key(claim), error),
        )
        # Each half had the limit to itself.
        sizes = accumulate(len(claim.data) for claim in adopted)
        adopted = adopted[: max(1, bisect_right(list(sizes), most))]
        keys = {key_of(claim) for claim in adopted}
        return adopted, [claim for claim in orphans if key_of(claim) not in keys]

    def orphans(self, connection: Connection, known: Container[Key]) -> list[Claim]:
        """This worker's claims in the table that are not `known`, without payloads."""
        try:
            claims = self._claims.claimed(connection)
        except Exception as error:
            if not may_be_of_one_row(error):
                raise
            if cause_of(error) is Cause.TIMEOUT:
                # All rows are read, and there are too many.
                logger.warning(
                    "cannot look for claims whose reply was lost (%s): they can be claimed when "
                    "their leases end",
                    reason(error),
                )
                return []
            claims = self._read_apart(connection, known)
        return [claim for claim in claims if key_of(claim) not in known]

    def _read_apart(self, connection: Connection, known: Container[Key]) -> list[Claim]:
        keys = self._claims.keys_of(connection, self._claims.incarnation)
        return in_halves(
            lambda some: self._claims.claimed(connection, [key.command_id for key in some]),
            [key for key in keys if key_of(key) not in known],
            partial(self._set_aside, connection),
        )

    def _set_aside(self, connection: Connection, key: ClaimKey, error: Exception) -> bool:
        return self._rejected.set_aside(connection, key, "cannot be claimed", error)
