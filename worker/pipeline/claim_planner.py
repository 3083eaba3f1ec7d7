"""What the next claim asks for: of which domains and types, beginning at which ids, how many
commands for free threads, and how many ahead of them."""

from collections import defaultdict
from collections.abc import Sequence

from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import ClaimPart, ClaimRequest, ClaimResult
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.floors import Floors
from cmdbus.worker.claims.turns import Turns
from cmdbus.worker.pipeline.age_share import AgeShare
from cmdbus.worker.pipeline.handled_types import HandledTypes
from cmdbus.worker.pipeline.limited_types import LimitedTypes
from cmdbus.worker.pipeline.prefetch_policy import PrefetchPolicy


class ClaimPlanner:
    """Used by the thread that leads."""

    def __init__(
        self,
        statements: ClaimStatements,
        domains: Sequence[str],
        handled_types: HandledTypes,
        breakers: Breakers,
        age_share: int = 0,
    ) -> None:
        """`age_share`: percent."""
        self._handled_types = handled_types
        self._priorities = statements.priorities
        self._breakers = breakers
        #: The types that breakers keep from being claimed.
        self._withheld = breakers.states.withheld_types
        #: The command types of each domain.
        self._types = defaultdict[str, list[str]](list)
        for name in statements.types:
            self._types[name.split(" ")[0]].append(name)
        self.limited_types = LimitedTypes(statements)
        self.prefetch = PrefetchPolicy()
        self._turns = Turns(domains)
        self._floors = Floors()
        #: The types that are claimed ahead, and their floors, which begin again with other types.
        self._quick, self._quick_floors = set[str](), Floors()
        #: None without a share.
        self._age_share = AgeShare(age_share) if age_share else None
        self._oldest_floors = Floors()
        #: The latest request took the oldest, and left out the lanes.
        self._left_out_lanes = False

    def request(self, now: float, *, free: int, room: int, bytes_: int) -> ClaimRequest:
        """`free`: the number of threads that have nothing to run. The board can show `room` claims
        more. `bytes_`: what payloads may be claimed, negative if there are more than that."""
        if self.types_changed:
            self._begin_anew()
        floors = self._floors.for_claim(now)
        domains = self._turns.for_claim(now, all_domains=not floors)
        types = [name for domain in domains for name in self._types[domain]]
        if self._withheld:
            types = [name for name in types if name not in self._withheld]
        all_quick = {name for name in types if self._handled_types.is_quick(name)}
        limited, types = self.limited_types.split(types)
        quick = [name for name in types if name in all_quick]
        if bytes_ <= 0:
            room = 0  # until a thread has started some of it
        free = min(max(1, free), room)
        ahead = min(self.prefetch.prefetch(bytes_), room - free) if all_quick else 0
        if len(all_quick) == len(types) + len(limited):
            free, ahead = free + ahead, 0
        if quick != [name for name in types if name in self._quick]:
            self._quick_floors, self._quick = Floors(), self._quick.difference(types).union(quick)
        request = ClaimRequest(
            free=free,
            prefetch=ahead,
            domains=domains,
            types=types,
            quick_types=quick,
            floors=floors,
            bytes=bytes_,
            below=self._floors.below(now) and self._turns.reads_all(domains),
            quick_floors=self._quick_floors.for_claim(now),
            priorities=self._priorities,
        )
        if self._age_share is not None and types and not self._left_out_lanes:
            oldest = self._age_share.of(free, ahead)
            if oldest:
                self._left_out_lanes = bool(limited)
                floors = self._oldest_floors.for_claim(now)
                return request._replace(oldest=oldest, oldest_floors=floors)
        self._left_out_lanes = False
        if limited:
            return self.limited_types.request(limited, all_quick, request, now)
        return request

    def probe_request(self, types: Sequence[str], free: int) -> ClaimRequest:
        """For commands of these types alone, which a breaker keeps from other claims."""
        limited, others = self.limited_types.split(types)
        lanes = self.limited_types.lanes(limited, free, self._priorities) if limited else None
        domains = list(dict.fromkeys(name.split(" ")[0] for name in types))
        request = ClaimRequest(free, 0, domains, others, [], floors={}, lanes=lanes)
        return request._replace(priorities=self._priorities)

    @property
    def types_changed(self) -> bool:
        """Whether breakers have opened or closed since the latest request."""
        return self._withheld != self._breakers.states.withheld_types

    def _begin_anew(self) -> None:
        """Commands of other types may be below the floors."""
        self._withheld = self._breakers.states.withheld_types
        self._floors, self._quick_floors, self._oldest_floors = Floors(), Floors(), Floors()
        self.limited_types.begin_anew()

    def looked(
        self, request: ClaimRequest, results: Sequence[ClaimResult], count: int, now: float
    ) -> bool:
        """Takes the results of a round trip, which claimed `count` commands; whether it may have
        left something that it could have taken."""
        has_more = count >= request.free
        lanes_have_more = self._left_out_lanes
        for result in results:
            lanes_have_more = self.limited_types.looked(request, result, now) or lanes_have_more
            if result.part is ClaimPart.PREFETCH:
                self._quick_floors.looked(request.quick_floors, False, request.queues, result, now)
            elif result.part is ClaimPart.FREE:
                has_more = self._turns.claimed(request, result, now)
                self._floors.looked(request.floors, request.below, request.queues, result, now)
            elif result.part is ClaimPart.OLDEST:
                self._oldest_floors.looked_by_age(request.oldest_floors, result, now)
        if self._age_share is not None and has_more:
            self._count_for_age_share(self._age_share, results)
        return has_more or lanes_have_more

    def _count_for_age_share(self, share: AgeShare, results: Sequence[ClaimResult]) -> None:
        """Without those of lanes, which have an order of their own."""
        claims = [claim for result in results for claim in result.claims]
        limited, _ = self.limited_types.split([f"{each.domain} {each.type}" for each in claims])
        oldest = (len(each.claims) for each in results if each.part is ClaimPart.OLDEST)
        share.claimed(len(claims) - len(limited), sum(oldest))

    @property
    def look_again_at(self) -> float:
        """The monotonic time by which an empty claim must be followed by another; else infinite."""
        return min(self._floors.look_again_at, self.limited_types.look_again_at)
