"""The settlement of a single outcome."""

import psycopg

from cmdbus.database import schema as schemas
from cmdbus.errors import SchemaError
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import MAX_MESSAGE, ascii_text, troubled
from cmdbus.worker.claims.rejections import Cause, cause_of, lacks_partition, reason


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
