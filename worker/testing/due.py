"""What a runner claims: the commands that are due, by the statements of workers.

Commands without a limit are claimed one by one in the order of their priorities and, within one,
of sending, across all domains. Those of types that have limits come after them, through their
lanes, and those of types whose breaker is open as its probes.
"""

from collections.abc import Iterator
from datetime import datetime

from cmdbus.registry import HandlerRegistry
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Claim, ClaimKey, ClaimRequest, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.pipeline.claim_planner import ClaimPlanner
from cmdbus.worker.pipeline.handled_types import HandledTypes
from cmdbus.worker.pipeline.in_flight import InFlight
from cmdbus.worker.pipeline.narrowing import Narrowing
from cmdbus.worker.pipeline.probing import Probing
from cmdbus.worker.steward.batch_round import BatchRound
from cmdbus.worker.steward.schedule_round import ScheduleRound
from cmdbus.worker.waiting.timers import Timers

#: Commands whose keys are read at once.
_MAX_KEYS = 10_000
_ALL_BYTES = 2**62


class DueClaims:
    def __init__(
        self,
        session: Connection,
        statements: ClaimStatements,
        registry: HandlerRegistry,
        handled_types: HandledTypes,
        in_flight: InFlight,
        breakers: Breakers,
    ) -> None:
        self._session, self._statements, self._breakers = session, statements, breakers
        domains = registry.domains
        self._planner = ClaimPlanner(statements, domains, handled_types, breakers)
        self._limited_types = self._planner.limited_types
        self._probing = Probing(
            statements, breakers, self._planner, Narrowing(statements), handled_types, in_flight
        )
        self._timers = Timers(statements, domains, statements.types)
        self._schedules = ScheduleRound(statements, self._timers)

    def claims(self) -> Iterator[Claim]:
        """Those that are due now, each of which must be settled before the next one is taken. What
        is sent meanwhile is left."""
        self._advance()
        began: datetime = self._statements.value(self._session, "read_now")
        later: list[Claim] = []
        try:
            for key in self._keys():
                claim = self._statements.claim_row(self._session, key)
                if claim is not None:
                    yield claim
            while claims := self._limited() or self._probes():
                for claim in claims:
                    if claim.created_at <= began:
                        yield claim
                    else:
                        later.append(claim)
        finally:
            if later:
                self._statements.release(self._session, later)

    def _advance(self) -> None:
        """What stewards do: commands become due and expire, schedules tick, batches are canceled
        and end."""
        work = self._statements.row(self._session, "find_stewards_work")
        assert work is not None
        times_have_come, has_batches = work
        if times_have_come:
            while self._timers.promote_and_read(self._session, leases=False) == 0:
                pass
            self._schedules.run(self._session)
        if has_batches:
            BatchRound(self._statements).run(self._session)
        self._limited_types.read(self._session)
        if self._breakers.states.names:
            self._breakers.attend(self._session)

    def _keys(self) -> list[ClaimKey]:
        types = self._open_types()
        _, types = self._limited_types.split(types)
        domains = list(dict.fromkeys(name.split(" ")[0] for name in types))
        request = ClaimRequest(_MAX_KEYS, 0, domains, types, [], floors={})
        keys = self._statements.claimable(self._session, request, _MAX_KEYS, ())
        return sorted(keys, key=lambda key: (key.priority, key.id))

    def _open_types(self) -> list[str]:
        withheld = self._breakers.states.withheld_types
        return [name for name in self._statements.types if name not in withheld]

    def _limited(self) -> list[Claim]:
        limited, _ = self._limited_types.split(self._open_types())
        if not limited:
            return []
        request = self._planner.probe_request(limited, free=1)._replace(bytes=_ALL_BYTES)
        _, claims = self._statements.settle_and_claim(self._session, [], request)
        return claims

    def _probes(self) -> list[Claim]:
        found: list[Claim] = []
        if self._breakers.states.open:
            self._probing.claim(self._session, 1, found.extend)
        return found
