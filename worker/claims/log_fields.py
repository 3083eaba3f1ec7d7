"""The fields of a command for a line of log where only a key is at hand."""

from contextlib import suppress

import psycopg

from cmdbus.board.views import ClaimView
from cmdbus.command_log import fields_of
from cmdbus.database.executor import Executor
from cmdbus.worker.claims.claim import Claim, ClaimRef, Connection


def log_fields(statements: Executor, connection: Connection, key: ClaimRef) -> dict[str, object]:
    """Reads them; as the line is about an error, it does without them if that fails, too."""
    if isinstance(key, Claim):
        return key.log_fields
    domain = None if isinstance(key, ClaimView) else key.domain
    with suppress(psycopg.Error):
        values = {"command_id": key.command_id, "domain": domain}
        row = statements.row(connection, "describe_command", **values)
        if row is not None:
            return fields_of(key.command_id, *row)
    known: dict[str, object] = {"command_id": str(key.command_id)}
    return known if domain is None else {**known, "domain": domain}
