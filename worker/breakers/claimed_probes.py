"""Claims that were made as probes."""

from collections.abc import Collection, Sequence

from cmdbus.worker.claims.claim import Claim, Fence, fence_of


class ClaimedProbes:
    """Of each, the id of its probe. Used by all threads: each operation on the dict is atomic."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, Fence], int] = {}

    def add(self, breaker: str, claims: Sequence[Claim], probe_ids: Sequence[int]) -> None:
        for claim, probe_id in zip(claims, probe_ids, strict=True):
            self._ids[breaker, fence_of(claim)] = probe_id

    def has(self, breaker: str, claim: Claim) -> bool:
        return (breaker, fence_of(claim)) in self._ids

    def take(self, breaker: str, claim: Claim) -> int | None:
        """For its call, or because that is not made; None if it is none, or was taken."""
        return self._ids.pop((breaker, fence_of(claim)), None)

    def forget_all_but(self, known: Collection[Fence]) -> None:
        """Those of claims that were released, which have given their places back."""
        for key in list(self._ids):
            if key[1] not in known:
                self._ids.pop(key, None)
