"""What a statement of the bus was refused for, in words that say what to do."""

import re
import shlex

import psycopg

from cmdbus.database import schema as schemas
from cmdbus.database.executor import Executor
from cmdbus.database.pool import Connection
from cmdbus.database.sentences import primary_message
from cmdbus.errors import MissingRightError, SchemaError

#: The errors of a schema that is missing, or is not this code's.
NOT_INSTALLED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
)
_UNTRANSLATABLE = re.compile(r'sequence ((?:0x[0-9a-f]{2} ?)+) in .*"UTF8" .*"(\w+)"$')
_IDLE = psycopg.pq.TransactionStatus.IDLE


def not_installed(
    schema: str, connection: Connection, error: psycopg.Error
) -> psycopg.Error | SchemaError:
    """The error itself if it names another schema. The caller's transaction has failed, so
    nothing more can be read there."""
    message = primary_message(error)
    if f"{schema}." not in message and f'"{schema}"' not in message:
        return error
    return SchemaError(
        f"{message}: schema {schema!r} is not installed in database "
        f"{connection.info.dbname!r}, or is not this code's: run cmdbus init for this database "
        f"and schema"
    )


def missing_right(
    executor: Executor, connection: Connection, error: psycopg.Error, needs: str
) -> MissingRightError:
    """`needs`: a kind of role, or "owner"."""
    role, schema = role_of(executor, connection), executor.schema
    denied = f"role {role!r} lacks a right ({primary_message(error)})"
    if needs == "owner":
        return MissingRightError(f"{denied}: only the owner of schema {schema} has it")
    option = "" if schema == schemas.DEFAULT else f" --schema {schema}"
    grant = f"cmdbus init{option} --{needs} {shlex.quote(role)}"
    return MissingRightError(
        f"{denied} that roles of the kind {needs} have: use one of them, or, to make this "
        f"role one, as the owner of the schema, run {grant}"
    )


def not_encodable(error: psycopg.Error | UnicodeEncodeError) -> ValueError:
    """The encoding is the database's, which the server names, or that of the caller's client."""
    if isinstance(error, UnicodeEncodeError):
        lacking, encoding = error.object[error.start], error.encoding
    else:
        found = _UNTRANSLATABLE.search(primary_message(error))
        if found is None:
            return ValueError(primary_message(error))
        lacking, encoding = bytes.fromhex(found[1].replace("0x", "")).decode(), found[2]
    return ValueError(
        f"a text has the character {lacking!r} (U+{ord(lacking):04X}), which the encoding "
        f"{encoding} of the database or of the connection lacks: use UTF8 for both"
    )


def role_of(executor: Executor, connection: Connection) -> str:
    """The role whose rights count; in a failed transaction, the one that logged in."""
    if connection.info.transaction_status is _IDLE:
        return str(executor.value(connection, "read_role"))
    return connection.info.user
