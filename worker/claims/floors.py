"""Where claims begin, so that they do not walk over rows again that they cannot take: rows that
are gone, rows that others have claimed, and types that this process has no handler for. Pure.

Under a transaction that holds back vacuum the claim crawls over dead rows: 48,000 commands a
second fall to 2,400 after 150,000 commands. Behind 200,000 commands of an unknown type a claim
takes 37 ms instead of 0.2. So a claim begins above what earlier ones have looked through.

A floor is a hint: ids are drawn before they are committed, released commands keep theirs, and
leases end. Therefore a claim that finds nothing above its floors reads from zero in the same
statement, and once a second one begins there. If that is expensive there are pauses in between,
and an empty claim that falls into one is followed by another at its end (`look_again_at`). So a
wrong floor costs seconds, never a command.
"""

from collections.abc import Mapping, Sequence

from cmdbus.worker.claims.claim import ClaimResult

#: Seconds between two claims that begin at zero, while anything is below a floor.
SWEEP_SECONDS = 1.0
#: Pages: a claim from zero that has read fewer may be repeated immediately. 2,400 rows of 100
#: bytes have as many.
CHEAP_PAGES = 100
#: Seconds of pause for each page that was read, and at most. A page takes 4 to 5 microseconds:
#: claims from zero take up to 4 % of the time, until the pauses reach their maximum.
PAUSE_PER_PAGE, MAX_PAUSE_SECONDS = 0.000125, 5.0
#: Pages that picking and locking a row reads at most, which a claim needs anyway.
_PAGES_PER_CLAIM = 3
#: Ids below the latest one that are read again: their rows may be committed later.
#: At 20,000 sends a second that is as much as 50 ms later.
OVERLAP = 1000

#: Domain and priority.
Queue = tuple[str, int]


def pause_after(pages: int) -> float:
    """Seconds until a walk over all rows that read this number of pages may be repeated."""
    return 0.0 if pages < CHEAP_PAGES else min(MAX_PAUSE_SECONDS, PAUSE_PER_PAGE * pages)


class Floors:
    """By domain and priority; used by the thread that claims."""

    def __init__(self) -> None:
        self._floors: dict[Queue, int] = {}
        self._swept_at = float("-inf")
        self._pause = 0.0
        #: The latest claim was empty and has not read below the floors.
        self._missed = False

    def for_claim(self, now: float) -> Mapping[Queue, int]:
        """Empty if it is time to begin at zero."""
        if now >= self._swept_at + max(SWEEP_SECONDS, self._pause):
            return {}
        return dict(self._floors)

    def below(self, now: float) -> bool:
        """Whether a claim that finds nothing above the floors may read below them."""
        return now >= self._swept_at + self._pause

    @property
    def look_again_at(self) -> float:
        """The time by which an empty claim must be followed by another; else infinite."""
        return self._swept_at + self._pause if self._missed else float("inf")

    def looked(
        self,
        asked: Mapping[Queue, int],
        below: bool,
        queues: Sequence[Queue],
        result: ClaimResult,
        now: float,
    ) -> None:
        """Takes the result of a claim that began above `asked`, and perhaps read `below` that, at
        these domains and priorities in this order."""
        above = any(
            claim.id > asked.get((claim.domain, claim.priority), 0) for claim in result.claims
        )
        swept = not asked or (below and not above)
        if swept:
            self._swept_at = now
            self._pause = pause_after(result.pages - _PAGES_PER_CLAIM * len(result.claims))
        self._missed = not swept and not result.claims
        lowest: dict[Queue, int] = {}
        for claim in result.claims:
            key = claim[:2]
            if claim[2] < lowest.get(key, claim[2] + 1):
                lowest[key] = claim[2]
        # Also downwards: a claim may have found what was below.
        self._floors.update({key: id_ - 1 for key, id_ in lowest.items()})
        stop = len(queues) if result.stopped_at is None else queues.index(result.stopped_at)
        self._floors.update(dict.fromkeys(queues[:stop], max(0, result.seen_to - OVERLAP)))

    def looked_by_age(self, asked: Mapping[Queue, int], result: ClaimResult, now: float) -> None:
        """Takes the result of a claim that began above `asked` in all queues at once."""
        self.looked(asked, False, [], result, now)
        self._floors.update(result.floors)
