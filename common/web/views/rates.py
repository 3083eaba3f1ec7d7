"""How much comes and goes now, and how long it waits and runs, from what nodes publish every two
seconds while a page watches. Times are passed in."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import add, sub

from cmdbus.producer.node_records import NodeCounters
from cmdbus.rollups import BUCKETS, NO_TIMES, OVER, Times, times_of

#: Seconds over which executions are counted for times, and for rates.
_TIMES_SECONDS, _RATE_SECONDS = 60.0, 10.0
#: Seconds between two publications of a node that are kept.
_APART_SECONDS = 4.0
_BUCKETS = len(BUCKETS) + 1
#: Commands that became over, how long those that ran had waited, and how long they ran.
_WIDTH = 1 + 2 * _BUCKETS

Numbers = list[int]
ByDomain = dict[str, Numbers]


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one domain; None is unknown. Rates are a second's."""

    arriving: float | None = None
    ending: float | None = None
    waited: Times = NO_TIMES
    ran: Times = NO_TIMES


class LiveRates:
    """Not safe to share between threads."""

    def __init__(self) -> None:
        #: By node: what it has counted since its start, at the times of its publications.
        self._nodes: dict[int, deque[tuple[datetime, ByDomain]]] = {}
        #: The numbers of unfinished commands, by monotonic time.
        self._unfinished: deque[tuple[float, Mapping[str, int]]] = deque()
        self._ending: dict[str, float] = {}
        self._times: ByDomain = {}

    @property
    def is_known(self) -> bool:
        """A node has published twice."""
        return any(len(kept) > 1 for kept in self._nodes.values())

    def observe(
        self, counters: Iterable[NodeCounters], unfinished: Mapping[str, int], now: float
    ) -> None:
        for node, published in _by_node(counters).items():
            _keep(self._nodes.setdefault(node, deque()), *published)
        latest = max((kept[-1][0] for kept in self._nodes.values()), default=None)
        if latest is not None:
            long_ago = latest - timedelta(seconds=150)
            self._nodes = {n: kept for n, kept in self._nodes.items() if kept[-1][0] > long_ago}
        self._unfinished.append((now, unfinished))
        while self._unfinished[0][0] < now - _TIMES_SECONDS:
            self._unfinished.popleft()
        self._sum()

    def of(self, domain: str) -> Rates:
        if not self.is_known:
            return Rates()
        ending = self._ending.get(domain, 0.0)
        numbers = self._times.get(domain)
        waited = ran = NO_TIMES
        if numbers is not None:
            waited, ran = times_of(numbers[1 : 1 + _BUCKETS]), times_of(numbers[1 + _BUCKETS :])
        return Rates(self._arriving(domain, ending), ending, waited, ran)

    def _arriving(self, domain: str, ending: float) -> float | None:
        now, present = self._unfinished[-1]
        before = [each for each in self._unfinished if each[0] <= now - _RATE_SECONDS]
        if not before:
            return None
        then, past = before[-1]
        growth = (present.get(domain, 0) - past.get(domain, 0)) / (now - then)
        return max(0.0, ending + growth)

    def _sum(self) -> None:
        self._ending, self._times = {}, {}
        for kept in self._nodes.values():
            if len(kept) < 2:
                continue
            at, counted = kept[-1]
            recent = [each for each in kept if each[0] >= at - timedelta(seconds=_RATE_SECONDS)]
            then, before = recent[0] if len(recent) > 1 else kept[-2]
            seconds = (at - then).total_seconds()
            for domain, numbers in counted.items():
                over = numbers[0] - before.get(domain, [0])[0]
                self._ending[domain] = self._ending.get(domain, 0.0) + over / seconds
                oldest = kept[0][1].get(domain, [0] * _WIDTH)
                grown = list(map(sub, numbers, oldest))
                own = self._times.get(domain)
                self._times[domain] = grown if own is None else list(map(add, own, grown))


def _by_node(counters: Iterable[NodeCounters]) -> dict[int, tuple[datetime, ByDomain]]:
    found: dict[int, tuple[datetime, ByDomain]] = {}
    for each in counters:
        _, domains = found.setdefault(each.node, (each.published_at, {}))
        over = sum(each.ended.get(outcome, 0) for outcome in OVER)
        numbers = [over, *_filled(each.waited), *_filled(each.ran)]
        own = domains.get(each.domain)
        domains[each.domain] = numbers if own is None else list(map(add, own, numbers))
    return found


def _filled(buckets: list[int]) -> list[int]:
    """Another version may have published others, or none."""
    return buckets if len(buckets) == _BUCKETS else [0] * _BUCKETS


def _keep(kept: deque[tuple[datetime, ByDomain]], at: datetime, counted: ByDomain) -> None:
    if kept and kept[-1][0] == at:
        return
    before = kept[-1][1] if kept else {}
    if kept and at < kept[-1][0]:
        kept.clear()  # The server's clock was set back.
    if any(counted.get(domain, [0])[0] < numbers[0] for domain, numbers in before.items()):
        kept.clear()  # It was started again.
    if len(kept) > 1 and (kept[-1][0] - kept[-2][0]).total_seconds() < _APART_SECONDS:
        kept.pop()
    kept.append((at, counted))
    while len(kept) > 2 and kept[1][0] <= at - timedelta(seconds=_TIMES_SECONDS):
        kept.popleft()
