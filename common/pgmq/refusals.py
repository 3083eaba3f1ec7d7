"""What the server has refused of a PgmqClient, in words that say what to do."""

import psycopg

from cmdbus.database.executor import Executor
from cmdbus.database.pool import Connection
from cmdbus.database.sentences import primary_message
from cmdbus.errors import (
    CmdbusError,
    MissingRightError,
    OutcomeUnknownError,
    QueueNotFoundError,
    SchemaError,
)
from cmdbus.pgmq.operations import ARCHIVE, METRICS, QUEUES, Operation
from cmdbus.producer.statement_errors import role_of
from cmdbus.queue_problems import grant_of_notifications, pgmq_missing, quoted

EXPLAINED = (
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InsufficientPrivilege,
)
_EXECUTOR = Executor("cmdbus")


def explained(
    error: psycopg.Error, operation: Operation, queue: str | None, session: Connection
) -> CmdbusError:
    """The error of the bus for one of EXPLAINED."""
    message = primary_message(error)
    match error:
        case psycopg.errors.InvalidSchemaName():
            return pgmq_missing(session.info.dbname)
        case psycopg.errors.UndefinedFunction():
            return SchemaError(
                f"{message}: the PGMQ of database {session.info.dbname!r} is too old for this "
                f"call: ALTER EXTENSION pgmq UPDATE"
            )
        case psycopg.errors.UndefinedTable():
            if queue is None:
                return SchemaError(f"{message}: PGMQ's list of queues names one that is gone")
            return QueueNotFoundError(queue, "archive" if "pgmq.a_" in message else "")
    role = role_of(_EXECUTOR, session)
    is_of_trigger = "notify_insert_throttle" in message
    grants = grant_of_notifications(role) if is_of_trigger else _grants(operation, queue, role)
    return MissingRightError(
        f"role {role!r} lacks a right ({message}) that pgmq.{operation.function} needs: {grants}"
    )


def outcome_unknown(
    error: psycopg.Error, operation: Operation, queue: str | None
) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"pgmq.{operation.function} on the queue {queue!r} may have been carried out: its "
        f"connection died before the answer came ({primary_message(error)}), and PGMQ would not "
        f"recognise a second try"
    )


def _grants(operation: Operation, queue: str | None, role: str) -> str:
    to = f"TO {quoted(role)}"
    schema = f"GRANT USAGE ON SCHEMA pgmq {to}"
    if queue is None:
        tables = "pgmq.meta" if operation is QUEUES else "ALL TABLES IN SCHEMA pgmq"
        grants = [schema, f"GRANT SELECT ON {tables} {to}"]
        if operation is not QUEUES:
            grants.append(f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA pgmq {to}")
        return "; ".join(grants)
    table = quoted(f"q_{queue}".lower())
    grants = [schema, f"GRANT {operation.rights.upper()} ON pgmq.{table} {to}"]
    if operation is ARCHIVE:
        archive = quoted(f"a_{queue}".lower())
        grants.append(f"GRANT SELECT, INSERT ON pgmq.{archive} {to}")
    if operation is METRICS:
        sequence = quoted(f"q_{queue}_msg_id_seq".lower())
        grants.append(f"GRANT SELECT ON pgmq.{sequence} {to}")
    return "; ".join(grants)
