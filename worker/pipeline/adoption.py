"""Adopts claims whose reply was lost.

A round trip whose session died may have claimed, or may still: its session is in doubt. The next
leader ends the session, waits until it is gone, and adopts the rows that the table shows as this
worker's claims and that are not in flight here.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Container
from functools import partial
from itertools import accumulate

import psycopg

from cmdbus.clock import time
from cmdbus.worker.claims.claim import Claim, ClaimKey, Connection, Fence, Session, fence_of
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.halving import in_halves
from cmdbus.worker.claims.rejected_rows import RejectedRows
from cmdbus.worker.claims.rejections import Cause, cause_of, may_be_of_one_row, reason
from cmdbus.worker.claims.sessions import end_sessions
from cmdbus.worker.pipeline.in_flight import InFlight

logger = logging.getLogger(__name__)

#: Seconds to wait until a session in doubt is gone, once; and until it is asked for again.
_GONE_WITHIN = 2.0
_ASK_AGAIN_SECONDS = 10.0


class Adoption:
    """Used by one thread at a time: the leader, or the thread that stops the worker."""

    def __init__(
        self,
        statements: ClaimStatements,
        in_flight: InFlight,
        max_bytes: int,
        log: Callable[[Callable[[], object]], object] = lambda message: message(),
    ) -> None:
        """`max_bytes` of payloads are adopted, or a single larger one. `log` gets messages
        for the log."""
        self._statements = statements
        self._in_flight = in_flight
        self._max_bytes = max_bytes
        self._log = log
        self._rejected = RejectedRows(statements)
        #: Housekeeping adds to it, too.
        self.sessions_in_doubt: set[Session] = set()
        #: Those that the server has ended with an error. It rolled their round trips back, unless
        #: the error is a pooler's.
        self._shut_down: set[Session] = set()
        #: Those that did not end in time, and the monotonic time at which they are asked for again.
        self._asked: set[Session] = set()
        self._ask_at = 0.0

    @property
    def is_due(self) -> bool:
        """A session that does not end must not hold up each claim."""
        if self.sessions_in_doubt <= self._asked:
            return bool(self._asked) and time.monotonic() >= self._ask_at
        return True

    def mark_in_doubt(self, session: Session | None, error: BaseException | None = None) -> None:
        """The session's last round trip may have claimed."""
        if session is not None:
            self.sessions_in_doubt.add(session)
            if isinstance(error, psycopg.errors.AdminShutdown):
                self._shut_down.add(session)

    @property
    def unresolved_count(self) -> int:
        """The number of sessions in doubt that may have left a claim."""
        return len(self.sessions_in_doubt - self._shut_down)

    def end_sessions(self, connection: Connection) -> tuple[set[Session], set[Fence]]:
        """Returns the sessions that are gone, so that they can no longer claim, and the claims
        that were in flight then."""
        sessions = set(self.sessions_in_doubt)
        self._shut_down &= sessions
        within = 0.0 if sessions <= self._asked else _GONE_WITHIN
        gone = end_sessions(self._statements, connection, sessions, within=within)
        self._asked = set() if gone else sessions
        self._ask_at = time.monotonic() + _ASK_AGAIN_SECONDS
        # Before the table is read: a claim that is settled in between is in neither.
        return sessions if gone else set(), self._in_flight.known()

    def adopt(self, connection: Connection, known: Container[Fence]) -> list[Claim]:
        """Returns orphans with their payloads; marks those that exceed the limit as released."""
        orphans = self.orphans(connection, known)
        adopted = in_halves(
            lambda some: self._statements.with_payloads(connection, some, self._max_bytes),
            orphans,
            lambda claim, error: self._set_aside(connection, self._statements.key(claim), error),
        )
        # Each half had the limit to itself.
        sizes = accumulate(len(claim.data) for claim in adopted)
        adopted = adopted[: max(1, bisect_right(list(sizes), self._max_bytes))]
        fences = {fence_of(claim) for claim in adopted}
        self._in_flight.mark_released([claim for claim in orphans if fence_of(claim) not in fences])
        if orphans:
            message = "%s commands were claimed by a round trip whose reply was lost"
            self._log(partial(logger.info, message, len(orphans)))
        return adopted

    def mark_orphans_released(self, connection: ThreadConnection) -> None:
        """Marks all orphans of sessions in doubt as released."""
        if self.sessions_in_doubt:
            gone, known = self.end_sessions(connection.connection())
            self._in_flight.mark_released(self.orphans(connection.connection(), known))
            self.sessions_in_doubt -= gone

    def orphans(self, connection: Connection, known: Container[Fence]) -> list[Claim]:
        """This worker's claims in the table that are not `known`, without payloads."""
        try:
            claims = self._statements.claimed(connection)
        except Exception as error:
            if not may_be_of_one_row(error):
                raise
            if cause_of(error) is Cause.TIMEOUT:
                # All rows are read, and there are too many.
                message = (
                    "cannot look for claims whose reply was lost (%s): they can be claimed when "
                    "their leases end"
                )
                self._log(partial(logger.warning, message, reason(error)))
                return []
            keys = self._statements.keys_of(connection, self._statements.incarnation)
            claims = in_halves(
                lambda some: self._statements.claimed(connection, [key.command_id for key in some]),
                [key for key in keys if fence_of(key) not in known],
                lambda key, error: self._set_aside(connection, key, error),
            )
        return [claim for claim in claims if fence_of(claim) not in known]

    def _set_aside(self, connection: Connection, key: ClaimKey, error: Exception) -> bool:
        return self._rejected.set_aside(connection, key, "cannot be claimed", error)
