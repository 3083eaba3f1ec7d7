"""Claims commands of types whose breaker is open, as probes, once its cooldown has ended: as many
as are let through on all nodes together."""

import random
from collections.abc import Callable

import psycopg

from cmdbus.backoff import Backoff
from cmdbus.board.counters import Counter
from cmdbus.clock import time
from cmdbus.failpoints import AFTER_CLAIM, failpoint
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Claim, ClaimRequest, ClaimResult, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import may_be_of_one_row
from cmdbus.worker.claims.statement_values import fence_values
from cmdbus.worker.pipeline.claim_planner import ClaimPlanner
from cmdbus.worker.pipeline.handled_types import HandledTypes
from cmdbus.worker.pipeline.in_flight import InFlight
from cmdbus.worker.pipeline.narrowing import Narrowing
from cmdbus.worker.pipeline.probe_floors import ProbeFloors

#: Seconds until the next try after one that got no place, or found no command: the first pause, and
#: the longest one for a short and for a long cooldown. The end of a probe is notified.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, _MAX_LONG_PAUSE_SECONDS = 0.05, 2.0, 10.0
#: Seconds after the end of a cooldown within which processes ask for a place.
_JITTER_SECONDS = 0.03
#: Seconds by which two readings of the end of one cooldown differ at most.
_SAME_SECONDS = 0.5


class _Tries:
    """Tries to claim probes of one breaker; the first follows each of its cooldowns."""

    def __init__(self, retry_at: float, cooldown: float, floors: ProbeFloors) -> None:
        #: The end of the cooldown.
        self.retry_at = retry_at
        self.next_at = retry_at + random.uniform(0, _JITTER_SECONDS)
        longest = min(max(cooldown, _MAX_PAUSE_SECONDS), _MAX_LONG_PAUSE_SECONDS)
        self.pauses = Backoff(_MIN_PAUSE_SECONDS, longest)
        #: Floors of the breaker's types, which outlast a cooldown.
        self.floors = floors
        #: The latest try was made by the latest claim, and found no command above the floors: a
        #: wake-up can change that, or a look below them.
        self.found_none = False

    def put_off(self, now: float) -> None:
        self.next_at = now + self.pauses.pause() * random.uniform(0.5, 1)

    @property
    def look_again_at(self) -> float:
        return self.floors.look_again_at if self.found_none else self.next_at


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
        self._hurries = False
        #: Nothing but the time of a try has.
        self._has_ended_wait = False
        self._tries: dict[str, _Tries] = {}

    def claim(
        self, connection: Connection, free: int, take_on: Callable[[list[Claim]], None]
    ) -> bool:
        """Claims for `free` threads, and for one at least; whether there were any."""
        self._renew_tries()
        hurries, self._hurries = self._hurries, False
        count = 0
        for name, tries in self._tries.items():
            now = time.monotonic()
            tries.found_none = False
            if now < tries.retry_at or (now < tries.next_at and not hurries):
                continue
            tries.put_off(now)
            types, floors = self._breakers.states.types[name], tries.floors
            request = self._planner.probe_request(types, max(1, free - count))
            request = floors.put_into(request, now)
            try:
                claims = self._claim(connection, name, request, floors)
            except psycopg.Error as error:
                if connection.closed:
                    raise
                if may_be_of_one_row(error):
                    # What it claims is no probe, and goes back.
                    self._narrowing.claim(connection, request, take_on)
                else:
                    self._breakers.warn_once(error)
                continue
            if claims:
                failpoint(AFTER_CLAIM)
                take_on(claims)
                count += len(claims)
            tries.found_none = claims == []
        return count > 0

    def wait_ended(self, source: Counter | None, *, others_at: float) -> None:
        """`others_at`: when another claim than that of probes must be made."""
        self._hurries = source is not None
        self._has_ended_wait = source is Counter.WAKEUPS_TIMER and time.monotonic() < others_at

    def has_ended_wait(self) -> bool:
        """Whether only probes are to be claimed now; asked once after each wait."""
        has_ended, self._has_ended_wait = self._has_ended_wait, False
        return has_ended

    def _renew_tries(self) -> None:
        """The breakers of this process's types that are open now."""
        before, self._tries = self._tries, {}
        for name, reading in self._breakers.states.open.items():
            if name in self._breakers.states.types and reading.retry_at < float("inf"):
                known = before.get(name)
                if known is None or abs(known.retry_at - reading.retry_at) > _SAME_SECONDS:
                    floors = ProbeFloors() if known is None else known.floors
                    known = _Tries(reading.retry_at, reading.cooldown, floors)
                self._tries[name] = known

    def _claim(
        self, connection: Connection, name: str, request: ClaimRequest, floors: ProbeFloors
    ) -> list[Claim] | None:
        """None: there is no place, or another session asks for one."""
        results: list[ClaimResult] = []
        with connection.transaction():
            places = self._statements.value(connection, "lock_probes", name=name)
            if not places:
                return None
            request = request._replace(free=min(places, request.free))
            _, claims = self._statements.settle_and_claim(connection, [], request, results.append)
            floors.looked(request, results, time.monotonic())
            if not claims:
                return []
            values = fence_values(claims, self._statements.incarnation)
            seconds = [self._seconds(claim) for claim in claims]
            probe_ids = self._statements.value(
                connection, "note_probes", name=name, seconds=seconds, **values
            )
        self._breakers.probes.forget_all_but(self._in_flight.known())
        self._breakers.probes.add(name, claims, probe_ids)
        return claims

    def _seconds(self, claim: Claim) -> float:
        """For which its place is held at most."""
        handled = self._handled_types.find(claim.domain, claim.type)
        return handled.timeout + self._statements.lease_seconds

    @property
    def look_again_at(self) -> float:
        """The monotonic time by which an empty claim must be followed by another; else infinite."""
        open_ = self._breakers.states.open
        due = (tries.look_again_at for name, tries in self._tries.items() if name in open_)
        return min([self._breakers.look_again_at, *due])
