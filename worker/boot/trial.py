"""Sends, claims and settles one command before any worker starts, and rolls it back: an obstacle to
running commands shows up here, with its own error."""

from uuid import uuid4

from cmdbus.clock import time
from cmdbus.data import Undecodable, decode
from cmdbus.producer.bus import CommandBus
from cmdbus.readiness import Check, Finding
from cmdbus.worker.claims.claim import Claim, ClaimRequest, Connection, Finished
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.outcomes import completed
from cmdbus.worker.claims.rejections import Cause, cause_of, reason

_NAME = "claim"
_TYPE = "Check"
_DATA = {"text": "value", "numbers": [1, 2.5, None]}


def try_claim(connection: Connection, dsn: str, schema: str) -> Check:
    try:
        with connection.transaction(force_rollback=True):
            failed = _run_one(connection, CommandBus(dsn, schema=schema), Claims(schema, 5.0))
    except Exception as error:
        if connection.closed:
            raise  # The database is away, which says nothing about the schema.
        if cause_of(error) in (Cause.CONTENTION, Cause.TIMEOUT):
            return _obstructed(reason(error))
        failed = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if not failed:
        return Check(_NAME, Finding.OK, "a command was sent, claimed and settled (rolled back)")
    return Check(
        _NAME,
        Finding.FATAL,
        f"a command cannot be sent, claimed and settled here: {failed}",
        "check triggers and constraints on the schema's tables, and at settings of the role and "
        "the database",
    )


def _obstructed(why: str) -> Check:
    """Another session holds locks."""
    return Check(
        _NAME,
        Finding.AWAY,
        f"a command cannot be sent, claimed and settled here for now: {why}",
        "find the session that has locked the schema's tables in pg_locks",
    )


def _run_one(connection: Connection, bus: CommandBus, claims: Claims) -> str:
    """The failure; empty if there is none."""
    domain = f"cmdbus-check-{uuid4().hex}"
    sent = bus.send(domain, _TYPE, _DATA, connection=connection)
    _, claimed = claims.settle_and_claim(connection, [], _request(domain))
    if [claim.command_id for claim in claimed] != [sent]:
        return f"{len(claimed)} commands were claimed instead of the one that was sent"
    data = decode(claimed[0].data)
    if isinstance(data, Undecodable) or data != _DATA:
        return "its data is not what was sent"
    if claims.settle(connection, [_finished(claimed[0])]):
        return "its claim was lost"
    record = bus.get(domain, sent, connection=connection)
    return "" if record and record.status == "COMPLETED" else "it is not in the history"


def _request(domain: str) -> ClaimRequest:
    return ClaimRequest(1, 0, [domain], [f"{domain} {_TYPE}"], [], {})


def _finished(claim: Claim) -> Finished:
    return Finished(claim, completed(None), 1, time.monotonic())
