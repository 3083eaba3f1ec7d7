"""The settlement of a single outcome, and the messages about settled ones."""

import logging

import psycopg

from cmdbus.board.counters import OutcomeLabel
from cmdbus.database import schema as schemas
from cmdbus.errors import SchemaError
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import MAX_MESSAGE, OutcomeKind, ascii_text, troubled
from cmdbus.worker.claims.rejections import Cause, cause_of, lacks_partition, reason

logger = logging.getLogger(__name__)


def settle_one(
    statements: ClaimStatements, connection: Connection, finished: Finished
) -> tuple[Finished, list[Claim]]:
    """Settles an outcome by itself or, if it is rejected, moves its command to
    troubleshooting. Returns the outcome that is stored, and its claim if that was lost.

    Raises if the row is locked, if the error is none of the outcome's, or if even the move
    is rejected."""
    try:
        return finished, statements.settle(connection, [finished])
    except Exception as error:
        if cause_of(error) is not Cause.ROWS:
            raise
        rejection = error
    if lacks_partition(rejection):
        make_partitions(statements, connection)
        return finished, statements.settle(connection, [finished])
    why = ascii_text(
        f"its outcome {finished.outcome.kind} was rejected: {reason(rejection)}", MAX_MESSAGE
    )
    code = "OUTCOME_NOT_STORABLE"
    moved = statements.set_aside(connection, statements.key(finished.claim), code, why)
    return finished._replace(outcome=troubled(code, why)), [] if moved else [finished.claim]


def make_partitions(statements: ClaimStatements, connection: Connection) -> None:
    """Adds missing partitions of the history; after an error, the next settlement tries again, and
    the steward, which logs it."""
    try:
        schemas.make_partitions(connection, statements.schema)
    except (psycopg.Error, SchemaError):
        if connection.closed:
            raise


def log_end(finished: Finished) -> None:
    """Called after the settlement: a hung handler may hold the log's lock."""
    claim, outcome, max_attempts, *_ = finished
    name, text = claim.label, " ".join((outcome.message or "").split())
    if outcome.charged and outcome.code is not None:
        logger.warning(
            "%s failed in attempt %s of %s: %s: %s; %s",
            name,
            claim.attempts + 1,
            max_attempts,
            outcome.code,
            text,
            f"again in {outcome.delay:.1f} s" if outcome.delay is not None else "not tried again",
        )
    if outcome.kind is OutcomeKind.TROUBLE:
        logger.error(
            "%s is in the troubleshooting queue, where an operator must decide: %s: %s",
            name,
            outcome.code,
            text,
        )


def log_not_settled(claim: Claim, end: OutcomeLabel | None) -> None:
    """The settlement found no row; `end` is None if the lease was lost."""
    lost = "nothing that it wrote through its connection landed"
    if end is OutcomeLabel.CANCELED:
        logger.info("%s was canceled while it ran: %s", claim.label, lost)
    else:
        message = "%s was lost before it was settled: %s, and it runs again elsewhere"
        logger.warning(message, claim.label, lost)
