"""Releases claims; a row that cannot be released stops no others."""

import logging
from collections.abc import Callable, Sequence

from cmdbus.command_log import log_about
from cmdbus.worker.claims.claim import Claim, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.halving import in_halves
from cmdbus.worker.claims.rejections import reason

logger = logging.getLogger(__name__)


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
    message = "cannot release a command (%s): it can be claimed when its lease ends"
    log_about(logger, logging.ERROR, claim.log_fields, message, reason(error))
