"""Warns of commands that wait because no worker handles their type, as after a misspelling: such a
command never fails, so nothing else would show it."""

import logging
from collections.abc import Mapping, Sequence

from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.producer.domains import UNHANDLED_AFTER_SECONDS
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements

logger = logging.getLogger(__name__)

#: Seconds until a type is reported again, and the number of types reported in that time: a role
#: that may send can name any number of them.
AGAIN_SECONDS, MAX_TYPES = 3600.0, 10
#: The count reads all waiting commands: time between two of them, in multiples of its duration.
_PAUSE = 500


class Unhandled:
    def __init__(self, statements: ClaimStatements, domains: Sequence[str]) -> None:
        self._statements = statements
        self._domains = list(domains)
        #: The monotonic time of each type's report.
        self._reported: dict[tuple[str, str], float] = {}
        self._not_before = float("-inf")

    def report(self, connection: Connection) -> None:
        """Logs a warning for each type that has none yet; does nothing soon after a slow count."""
        began = time.monotonic()
        if began < self._not_before:
            return
        try:
            found = self._statements.rows(
                connection,
                "find_unhandled",
                domains=self._domains,
                types=self._statements.types,
                seconds=UNHANDLED_AFTER_SECONDS,
                count=2 * MAX_TYPES,
            )
        finally:  # It may have been canceled, as there is too much to count.
            now = time.monotonic()
            self._not_before = now + _PAUSE * (now - began)
        counts = {(domain, type_): count for domain, type_, count in found}
        for key in due(counts, self._reported, now):
            self._reported[key] = now
            logger.warning("%s", sentence(*key, counts[key]))
        self._reported = {key: at for key, at in self._reported.items() if now < at + AGAIN_SECONDS}


def due(
    found: Mapping[tuple[str, str], int], reported: Mapping[tuple[str, str], float], now: float
) -> list[tuple[str, str]]:
    """The types to report, in the order of `found`. Pure."""
    recent = {key for key, at in reported.items() if now < at + AGAIN_SECONDS}
    return [key for key in found if key not in recent][: max(0, MAX_TYPES - len(recent))]


def sentence(domain: str, type_: str, count: int) -> str:
    """Names are ASCII by the schema's constraint, so a terminal can show them. Pure."""
    s, them = ("s", "it") if count == 1 else ("", "them")
    return (
        f"{count_of(count)} of {domain}/{type_} wait{s}, and no worker of this "
        f"node handles that type: add a handler, correct the type where it is sent, or cancel "
        f"{them} (cmdbus cancel {domain} --all --type {type_})"
    )
