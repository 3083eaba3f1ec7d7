"""Warns of commands that wait because no worker handles their type, as after a misspelling: such a
command never fails, so nothing else would show it."""

import logging
from collections.abc import Collection, Mapping, Sequence

from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.producer.domains import UNHANDLED_AFTER_SECONDS
from cmdbus.selection import listed, priorities_text
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
                priorities=list(self._statements.priorities),
                seconds=UNHANDLED_AFTER_SECONDS,
                count=2 * MAX_TYPES,
            )
        finally:  # It may have been canceled, as there is too much to count.
            now = time.monotonic()
            self._not_before = now + _PAUSE * (now - began)
        waiting = {(domain, type_): reasons for domain, type_, *reasons in found}
        for key in due(waiting, self._reported, now):
            self._reported[key] = now
            logger.warning("%s", sentence(*key, *waiting[key]))
        self._reported = {key: at for key, at in self._reported.items() if now < at + AGAIN_SECONDS}


def due(
    found: Collection[tuple[str, str]], reported: Mapping[tuple[str, str], float], now: float
) -> list[tuple[str, str]]:
    """The types to report, in the order of `found`. Pure."""
    recent = {key for key, at in reported.items() if now < at + AGAIN_SECONDS}
    return [key for key in found if key not in recent][: max(0, MAX_TYPES - len(recent))]


def sentence(
    domain: str,
    type_: str,
    count: int,
    missing_tags: Sequence[str] | None = None,
    priorities: Sequence[int] | None = None,
) -> str:
    """Names are ASCII by the schema's constraint, so a terminal can show them. Pure."""
    s, them = ("s", "it") if count == 1 else ("", "them")
    if priorities:
        why = f"no living node claims {priorities_text(priorities)} of that type"
        fix = "start a fleet that does"
    elif missing_tags:
        why = f"no living node has {listed(missing_tags)}, which that type needs"
        fix = f"start a fleet with {' '.join(f'--tag {tag}' for tag in missing_tags)}"
    else:
        why = "no worker of this node handles that type"
        fix = "add a handler, correct the type where it is sent"
    return (
        f"{count_of(count)} of {domain}/{type_} wait{s}, and {why}: {fix}, or cancel "
        f"{them} (cmdbus cancel {domain} --all --type {type_})"
    )
