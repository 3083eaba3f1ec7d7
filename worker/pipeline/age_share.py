"""How many of a worker's claims take the oldest commands, whatever their priority, so that those of
lower priorities do not starve. No clock inside.

A claim asks for as many of the oldest as are due with it. What is left of the share is carried over
to the next one, so that the share is exact in the long run.
"""

#: Commands that may be due. More than the threads of a claim come from claims ahead of threads,
#: which never take the oldest.
_MAX_DUE = 100


class AgeShare:
    """Used by the leader."""

    def __init__(self, percent: int) -> None:
        self._percent = percent
        #: Hundredths of a command that are due.
        self._due = 0

    def of(self, free: int, prefetch: int) -> int:
        """How many of the next claims, `free` of any type and `prefetch` of quick ones, take the
        oldest."""
        return max(0, min(free, (self._due + self._percent * (free + prefetch)) // 100))

    def claimed(self, count: int, oldest: int) -> None:
        """`count` commands, `oldest` of them by their age, while more waited."""
        due = self._due + self._percent * count - 100 * oldest
        self._due = min(due, 100 * _MAX_DUE)
