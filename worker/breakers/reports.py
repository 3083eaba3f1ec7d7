"""How calls have ended, until that is written to the database."""

import json
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from cmdbus.breakers import MAX_FAILURES, Verdict


class Report(NamedTuple):
    """The end of one call."""

    breaker: str
    verdict: Verdict
    #: Monotonic time.
    at: float
    #: The id of its probe, if it is one.
    probe_id: int | None = None


class Reports:
    """Used by all threads; every operation on the deque is atomic."""

    def __init__(self) -> None:
        self._waiting: deque[Report] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def all(self) -> list[Report]:
        return [*self._waiting.copy()]

    def add(self, report: Report) -> None:
        self._waiting.append(report)

    def put_back(self, reports: Iterable[Report]) -> None:
        self._waiting.extendleft(reversed([*reports]))

    def take(self) -> list[Report]:
        """All of them, in order."""
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._waiting.popleft())
        return taken


def as_json(reports: Iterable[Report], now: float) -> str:
    """As report_calls of the schema takes them: of each breaker its latest success, and the
    failures after that."""
    by_breaker = defaultdict[str, list[Report]](list)
    for report in reports:
        by_breaker[report.breaker].append(report)
    return json.dumps([_collapsed(name, group, now) for name, group in by_breaker.items()])


def _collapsed(name: str, reports: list[Report], now: float) -> dict[str, object]:
    successes = [each.at for each in reports if each.verdict is Verdict.SUCCESS]
    latest = max(successes, default=float("-inf"))
    failures = [each.at for each in reports if each.verdict is Verdict.FAILURE and each.at > latest]
    probes = [each for each in reports if each.probe_id is not None]
    return {
        "name": name,
        "succeeded_ago": now - latest if successes else None,
        "failed_ago": [now - at for at in sorted(failures)[-MAX_FAILURES:]],
        "probes": [each.probe_id for each in probes],
        "verdicts": [each.verdict.value for each in probes],
    }
