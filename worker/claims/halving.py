"""Statements for many rows of which one may be rejected, or that may take too long: they are
executed again for each half, so that one row stops no others. Not after a lock timeout or a
deadlock, as the halves would wait again."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from cmdbus.worker.claims.claim import Claim, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import may_be_of_one_row, reason

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_halves(
    work: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    rejected: Callable[[Item, Exception], object],
) -> list[Result]:
    """All that `work` returns; `rejected` is called for each item with which it fails alone."""
    if not items:
        return []
    try:
        return work(items)
    except Exception as error:
        if not may_be_of_one_row(error):
            raise
        if len(items) == 1:
            rejected(items[0], error)
            return []
    half = len(items) // 2
    return in_halves(work, items[:half], rejected) + in_halves(work, items[half:], rejected)


def release(
    statements: ClaimStatements,
    connection: Connection,
    held: Sequence[Claim],
    work: Callable[[Sequence[Claim]], list[Claim]],
) -> tuple[list[Claim], list[Claim]]:
    """Releases claims by `work`; returns those released, and those that are still held because
    other sessions have locked their rows. One that cannot be released is in neither."""
    rejected: list[Claim] = []

    def complain(claim: Claim, error: Exception) -> None:
        rejected.append(claim)
        warn_of_release(claim, error)

    released = in_halves(work, held, complain)
    ended = {*released, *rejected}
    skipped = [claim for claim in held if claim not in ended]
    return released, statements.still_held(connection, skipped) if skipped else []


def warn_of_release(claim: Claim, error: Exception) -> None:
    message = "cannot release %s (%s): it can be claimed when its lease ends"
    logger.error(message, claim.label, reason(error))
