"""Claims commands of types whose breaker is open, as probes, once its cooldown has ended: as many
as are let through on all nodes together."""

import random
from collections.abc import Callable

import psycopg

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.failpoints import AFTER_CLAIM, failpoint
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Claim, ClaimRequest, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import may_be_of_one_row
from cmdbus.worker.claims.statement_values import fence_values
from cmdbus.worker.pipeline.claim_planner import ClaimPlanner
from cmdbus.worker.pipeline.handled_types import HandledTypes
from cmdbus.worker.pipeline.in_flight import InFlight
from cmdbus.worker.pipeline.narrowing import Narrowing

#: Seconds until the next try after one that got no place, or found no command.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 2.0
#: Seconds after the end of a cooldown within which processes ask for a place.
_JITTER_SECONDS = 0.03


class _Tries:
    """Of one breaker, until it is closed."""

    def __init__(self, retry_at: float) -> None:
        #: When probes are let through; another one begins anew.
        self.retry_at = retry_at
        self.next_at = retry_at + random.uniform(0, _JITTER_SECONDS)
        self.pauses = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        #: The latest try was made by the latest claim, and found no command: only a wake-up can
        #: change that.
        self.found_none = False

    def put_off(self, now: float) -> None:
        self.next_at = now + self.pauses.pause() * random.uniform(0.5, 1)


class Probing:
    """Used by the thread that leads."""

    def __init__(
        self,
        statements: ClaimStatements,
        breakers: Breakers,
        planner: ClaimPlanner,
        narrowing: Narrowing,
        handled_types: HandledTypes,
        in_flight: InFlight,
    ) -> None:
        self._statements, self._breakers = statements, breakers
        self._planner, self._narrowing = planner, narrowing
        self._handled_types, self._in_flight = handled_types, in_flight
        #: Something else than this worker's own outcomes has ended the latest wait for work.
        self.hurries = False
        self._tries: dict[str, _Tries] = {}

    def claim(
        self, connection: Connection, free: int, take_on: Callable[[list[Claim]], None]
    ) -> bool:
        """Claims for `free` threads, and for one at least; whether there were any."""
        self._follow()
        hurries, self.hurries = self.hurries, False
        count = 0
        for name, tries in self._tries.items():
            now = time.monotonic()
            tries.found_none = False
            if now < tries.retry_at or (now < tries.next_at and not hurries):
                continue
            tries.put_off(now)
            types = self._breakers.types[name]
            request = self._planner.probe_request(types, max(1, free - count))
            try:
                claims = self._claim(connection, name, request)
            except psycopg.Error as error:
                if not may_be_of_one_row(error):
                    raise
                # What it claims is no probe, and goes back.
                self._narrowing.claim(connection, request, take_on)
                continue
            if claims:
                failpoint(AFTER_CLAIM)
                take_on(claims)
                count += len(claims)
            tries.found_none = claims == []
        return count > 0

    def _follow(self) -> None:
        """The breakers of this process's types that are open now."""
        before, self._tries = self._tries, {}
        for name, seen in self._breakers.open.items():
            if name in self._breakers.types and seen.retry_at < float("inf"):
                known = before.get(name)
                # The same time is read with small differences.
                if known is None or abs(known.retry_at - seen.retry_at) > 0.5:
                    known = _Tries(seen.retry_at)
                self._tries[name] = known

    def _claim(
        self, connection: Connection, name: str, request: ClaimRequest
    ) -> list[Claim] | None:
        """None: there is no place, or another session asks for one."""
        with connection.transaction():
            places = self._statements.value(connection, "lock_probes", name=name)
            if not places:
                return None
            request = request._replace(free=min(places, request.free))
            _, claims = self._statements.settle_and_claim(connection, [], request)
            if not claims:
                return []
            values = fence_values(claims, self._statements.incarnation)
            seconds = [self._seconds(claim) for claim in claims]
            probes = self._statements.value(
                connection, "note_probes", name=name, seconds=seconds, **values
            )
        self._breakers.forget_all_but(self._in_flight.known())
        self._breakers.claimed(name, claims, probes)
        return claims

    def _seconds(self, claim: Claim) -> float:
        """For which its place is held at most."""
        handled = self._handled_types.find(claim.domain, claim.type)
        return handled.timeout + self._statements.lease_seconds

    @property
    def look_again_at(self) -> float:
        """The monotonic time by which an empty claim must be followed by another; else infinite."""
        open_ = self._breakers.open
        due = (
            tries.next_at
            for name, tries in self._tries.items()
            if name in open_ and not tries.found_none
        )
        return min(due, default=float("inf"))
