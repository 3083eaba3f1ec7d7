"""Asks senders for notifications while a bridge out of a domain has nothing to move.

Uses the flag and the barrier that Arming uses for workers, with a row of its own: workers may be
busy while a bridge waits. A sender that read the flag before it was up notifies no
node: until those of that moment have ended, the bridges look at each check, and once more then.
"""

import secrets
from collections.abc import Collection

from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.writers_barrier import WritersBarrier

#: Seconds for which it is armed, and after which that is renewed.
_LASTS_SECONDS, _RENEWAL_SECONDS = 150.0, 60.0


class BridgeArming:
    def __init__(self, statements: ClaimStatements) -> None:
        self._statements = statements
        #: In place of a node's number.
        self._number = secrets.randbelow(2**63 - 1) + 1
        #: What the flag is up for; None: a statement failed half-way, so it is unsure.
        self._armed: frozenset[str] | None = frozenset()
        #: The listening session then, and the monotonic time of the renewal.
        self._session = 0
        self._renew_at = 0.0
        self._barrier = WritersBarrier(statements)

    def update(
        self, connection: Connection, domains: Collection[str], *, session: int, now: float
    ) -> tuple[float, bool]:
        """Seconds until this is to be called again, and whether bridges must look now. `domains`
        are those in which a bridge waits; for `session` see Arming."""
        wanted = frozenset(domains) if session else frozenset[str]()
        if not wanted:
            self.lower(connection)
            return float("inf"), False
        if self._armed != wanted or self._session != session or now >= self._renew_at:
            self._raise(connection, wanted, session, now)
        renewal = self._renew_at - now
        if not self._barrier.is_up:
            return renewal, False
        if pause := self._barrier.seconds_to_check(now):
            return min(pause, renewal), False
        self._barrier.check(connection, now)
        pause = self._barrier.seconds_to_check(now) if self._barrier.is_up else renewal
        return min(pause, renewal), True

    def lower(self, connection: Connection) -> None:
        if self._armed != frozenset():
            self._armed, self._session = None, 0
            self._barrier.lower()
            self._statements.value(connection, "leave", node=self._number)
            self._armed = frozenset()

    def forget(self) -> None:
        """Called when the session is lost: the server may have forgotten what was published."""
        if self._armed != frozenset():
            self._armed, self._session = None, 0
            self._barrier.lower()

    def _raise(
        self, connection: Connection, wanted: frozenset[str], session: int, now: float
    ) -> None:
        before, self._armed, self._session = self._session, None, 0
        values = {"domains": sorted(wanted), "seconds": _LASTS_SECONDS}
        fresh = self._statements.value(connection, "arm_reader", node=self._number, **values)
        if fresh or session != before:
            self._barrier.raise_(connection, now)
        self._armed, self._session = wanted, session
        self._renew_at = now + _RENEWAL_SECONDS
