"""Where claims begin, so that they do not walk over rows that are gone. Pure.

Under a transaction that holds back vacuum the claim crawls over dead rows: 48,000
commands a second fall to 2,400 after 150,000 commands. So a claim begins above the
lowest id that the one before it found. That is a hint and no truth: ids are drawn
before they are committed, and what is given back keeps its id. Therefore once a second
a claim begins at zero, and one that finds nothing above its floors looks below them: a
wrong floor costs a second, never a command.
"""

from collections.abc import Iterable, Mapping

#: Seconds between two claims that begin at zero, while anything is below a floor.
SWEEP_SECONDS = 1.0

Key = tuple[str, int]


class Floors:
    """By domain and priority; used by who has the lead."""

    def __init__(self) -> None:
        self._floors: dict[Key, int] = {}
        self._swept_at = 0.0

    def for_claim(self, now: float) -> Mapping[Key, int]:
        """None, if it is time to begin at zero."""
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            return {}
        return dict(self._floors)

    def found(self, claimed: Iterable[tuple[Key, int]]) -> None:
        lowest: dict[Key, int] = {}
        for key, id_ in claimed:
            lowest[key] = min(id_, lowest.get(key, id_))
        # Also downwards: a claim may have found what was below.
        self._floors.update({key: id_ - 1 for key, id_ in lowest.items()})
