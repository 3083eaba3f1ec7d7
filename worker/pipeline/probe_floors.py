"""Where claims of the probes of one breaker begin; see floors.py."""

from collections.abc import Sequence

from cmdbus.worker.claims.claim import ClaimPart, ClaimRequest, ClaimResult
from cmdbus.worker.claims.floors import Floors


class ProbeFloors:
    def __init__(self) -> None:
        self._free, self._strays = Floors(), Floors()

    def put_into(self, request: ClaimRequest, now: float) -> ClaimRequest:
        if request.lanes is not None:
            strays, below = self._strays.for_claim(now), self._strays.below(now)
            request = request._replace(lanes=request.lanes._replace(floors=strays, below=below))
        return request._replace(floors=self._free.for_claim(now), below=self._free.below(now))

    def looked(self, request: ClaimRequest, results: Sequence[ClaimResult], now: float) -> None:
        for result in results:
            if result.part is ClaimPart.FREE:
                self._free.looked(request.floors, request.below, request.queues, result, now)
            elif result.part is ClaimPart.STRAYS and (lanes := request.lanes) is not None:
                self._strays.looked(lanes.floors, lanes.below, lanes.queues, result, now)

    @property
    def look_again_at(self) -> float:
        """The monotonic time by which an empty claim must be followed by another; else infinite."""
        return min(self._free.look_again_at, self._strays.look_again_at)
