"""Which types are quick, and how far ahead of its threads a process may claim. No clock inside."""

#: A run that took less is a quick one.
QUICK_SECONDS = 0.05
#: A slow run weighs as much as so many quick ones: a type stays quick while fewer than one in
#: so many is slow. (Where more processes than CPUs are busy, one in 150 runs of nothing at all
#: is slow, because its thread waits for a CPU. When a single one was enough, 40 processes on
#: 2 CPUs settled most of their commands one by one.)
_WEIGHT = 25
_HEAVIEST = 4 * _WEIGHT
#: Claimed ahead is what will be started within this time, or while a step takes if that is
#: longer, and never more than the limit.
_PREFETCH_SECONDS = 0.02
#: By the first claim after a rest: about what it takes to wake somebody else for them.
_FIRST_SECONDS = 0.002
MAX_PREFETCH = 256


class PrefetchPolicy:
    """Written by all threads: each operation is atomic, and a lost update costs nothing."""

    def __init__(self) -> None:
        #: What the latest slow runs of a type still weigh; missing: it never ran.
        self._weights: dict[tuple[str, str], int] = {}
        #: Of the latest step: what it claimed, how long it took, and when it was back.
        self._claimed, self._took, self._stepped_at = 0, 0.0, 0.0
        #: Commands started a second, between the latest two steps.
        self._rate = 0.0
        #: Payload of a command, on average, in the latest step that claimed any.
        self._payload = 0.0

    def ran(self, domain: str, type: str, seconds: float) -> None:
        key = domain, type
        if seconds >= QUICK_SECONDS:
            self._weights[key] = min(_HEAVIEST, self._weights.get(key, _HEAVIEST) + _WEIGHT)
        else:
            self._weights[key] = max(0, self._weights.get(key, 0) - 1)

    def is_quick(self, domain: str, type: str) -> bool:
        return self._weights.get((domain, type), _HEAVIEST) <= _WEIGHT

    def claimed(self, claimed: int, began: float, ended: float, payload: int = 0) -> None:
        if claimed:
            self._payload = payload / claimed
        if self._claimed:
            self._rate = self._claimed / max(began - self._stepped_at, 0.0001)
        self._claimed, self._took, self._stepped_at = claimed, ended - began, ended

    def prefetch(self, payload: int) -> int:
        """`payload`: bytes that there is room for. A claim takes no more than fit, but it locks
        all rows that it is asked for, and until it ends no other claim finds these."""
        busy = max(_PREFETCH_SECONDS, self._took)
        started = int(self._rate * (busy if self._claimed else _FIRST_SECONDS))
        return min(MAX_PREFETCH, started, int(payload / max(self._payload, 1.0)))
