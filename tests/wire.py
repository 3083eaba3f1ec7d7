"""A proxy that counts the statements and the round trips of a session."""

from collections import Counter

from proxy import Proxy


class Wire(Proxy):
    """Counts what one client sends: Executes and simple Queries are statements, Syncs and
    simple Queries end round trips."""

    def __init__(self, dsn: str) -> None:
        self.counts: Counter[str] = Counter()
        self._rest = b""
        self._started = False
        super().__init__(dsn, self._count)

    @property
    def statements(self) -> int:
        return self.counts["E"] + self.counts["Q"]

    @property
    def round_trips(self) -> int:
        return self.counts["S"] + self.counts["Q"]

    def _count(self, data: bytes) -> bytes:
        self._rest += data
        while True:
            # Only the first message, which opens the session, has no type.
            head = 1 if self._started else 0
            if len(self._rest) < head + 4:
                return data
            end = head + int.from_bytes(self._rest[head : head + 4], "big")
            if len(self._rest) < end:
                return data
            if self._started:
                self.counts[chr(self._rest[0])] += 1
            self._started = True
            self._rest = self._rest[end:]
