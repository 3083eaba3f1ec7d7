"""Sends, claims and settles one command before any worker starts, and rolls it back: an obstacle to
running commands shows up here, with its own error."""

from uuid import uuid4

from cmdbus.clock import time
from cmdbus.data import Undecodable, decode
from cmdbus.producer.bus import CommandBus
from cmdbus.readiness import Check, Finding
from cmdbus.worker.claims.claim import ClaimRequest, Connection, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import completed
from cmdbus.worker.claims.rejections import Cause, cause_of, lacks_storage, reason

_NAME = "claim"
_TYPE = "Check"
_DATA = {"text": "value", "numbers": [1, 2.5, None]}


def try_claim(connection: Connection, dsn: str, schema: str) -> Check:
    finding, what = Finding.FATAL, "a command cannot be sent, claimed and settled here"
    fix = (
        "check triggers and constraints on the schema's tables, and at settings of the role and "
        "the database"
    )
    try:
        with connection.transaction(force_rollback=True):
            failed = _run_one(
                connection, CommandBus(dsn, schema=schema), ClaimStatements(schema, 5.0)
            )
    except Exception as error:
        if connection.closed:
            raise  # The database is away, which says nothing about the schema.
        failed = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if cause_of(error) in (Cause.CONTENTION, Cause.TIMEOUT):
            finding, what, failed = Finding.AWAY, f"{what} at the moment", reason(error)
            fix = "find the session that has locked the schema's tables in pg_locks"
        elif lacks_storage(error):
            finding, what, failed = Finding.AWAY, f"{what} at the moment", reason(error)
            fix = "make room on the server's disk, or see the server's log"
    if not failed:
        return Check(_NAME, Finding.OK, "a command was sent, claimed and settled (rolled back)")
    return Check(_NAME, finding, f"{what}: {failed}", fix)


def _run_one(connection: Connection, bus: CommandBus, statements: ClaimStatements) -> str:
    """The failure; empty if there is none."""
    # Today's is missing if no fleet has run for two weeks; a worker makes it when it starts.
    statements.row(connection, "make_partitions", days_ahead=0)
    domain = f"cmdbus-check-{uuid4().hex}"
    sent = bus.send(domain, _TYPE, _DATA, connection=connection)
    request = ClaimRequest(1, 0, [domain], [f"{domain} {_TYPE}"], [], {})
    _, claimed = statements.settle_and_claim(connection, [], request)
    if [claim.command_id for claim in claimed] != [sent]:
        return f"{len(claimed)} commands were claimed instead of the one that was sent"
    data = decode(claimed[0].data)
    if isinstance(data, Undecodable) or data != _DATA:
        return "its data is not what was sent"
    if statements.settle(connection, [Finished(claimed[0], completed(None), 1, time.monotonic())]):
        return "its claim was lost"
    record = bus.get(domain, sent, connection=connection)
    return "" if record and record.status == "COMPLETED" else "it is not in the history"
