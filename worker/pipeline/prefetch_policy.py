"""How far ahead of its threads a process may claim quick types. No clock inside."""

#: Seconds for which commands are claimed ahead, or the time of a round trip if that is longer.
_PREFETCH_SECONDS = 0.02
#: The same for the first claim after a wait: about the time for waking another process.
_FIRST_SECONDS = 0.002
#: The board shows 512 claims, which include those that threads have asked for.
MAX_PREFETCH = 400
#: Seconds, or commands, over which the pace is measured: of two round trips of which one follows
#: immediately upon the other, the first says nothing about the time that its commands take.
_PACE_SECONDS, _PACE_COMMANDS = 0.005, 64


class PrefetchPolicy:
    """Used by the leader."""

    def __init__(self) -> None:
        #: The latest round trip: its claims, its seconds, and the time at which it ended.
        self._claimed, self._took, self._ended_at = 0, 0.0, 0.0
        #: Commands started per second between round trips; commands and seconds of the next
        #: measurement.
        self._rate, self._started, self._seconds = 0.0, 0, 0.0
        #: Payload of a command, on average, in the latest round trip that claimed any.
        self._payload = 0.0

    def claimed(self, claimed: int, began: float, ended: float, payload: int = 0) -> None:
        if claimed:
            self._payload = payload / claimed
        if self._claimed:
            self._started += self._claimed
            self._seconds += began - self._ended_at
            if self._seconds >= _PACE_SECONDS or self._started >= _PACE_COMMANDS:
                self._rate = self._started / max(self._seconds, 0.0001)
                self._started, self._seconds = 0, 0.0
        self._claimed, self._took, self._ended_at = claimed, ended - began, ended

    def prefetch(self, payload: int) -> int:
        """`payload`: the bytes that may be claimed, negative if more than that are. A claim takes
        no more, but until it ends it locks all rows that it was asked for."""
        busy = max(_PREFETCH_SECONDS, self._took)
        started = int(self._rate * (busy if self._claimed else _FIRST_SECONDS))
        return min(MAX_PREFETCH, started, int(max(0, payload) / max(self._payload, 1.0)))
