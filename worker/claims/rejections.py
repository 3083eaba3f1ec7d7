"""What an error means for the rows and values of its statement. Pure."""

import re
from enum import Enum

import psycopg

from cmdbus.printable import joined


class Cause(Enum):
    #: A row or a value: the same statement without it succeeds.
    ROWS = "rows"
    #: The statement timeout, or a limit of memory or temporary files: with fewer rows, or later,
    #: it may succeed.
    TIMEOUT = "timeout"
    #: A locked row or table, a deadlock, a right that the role lacks, or a table or function that
    #: is missing while it is restored: it says nothing about the rows; later it succeeds.
    CONTENTION = "contention"
    #: The session, the server or this code.
    ELSEWHERE = "elsewhere"


#: SQLSTATEs, or their classes: serialization and deadlock, lock timeout.
_CONTENTION = ("40", "55P03")
#: Schema, function, table.
_MISSING = ("3F000", "42883", "42P01")
#: The schema of a function in the context of an error.
_SCHEMA_OF_FUNCTION = re.compile(r'(\w+|"[^"]+")\.(?:\w+|"[^"]+")\(')
_TIMEOUT = ("57014", "53200", "53400")
#: Disk full, and I/O errors.
_STORAGE = ("53100", "58")
#: Functions of the server that refuse to give a number, with the SQLSTATE of a row too long.
_GIVE_NUMBERS = ("GetNewTransactionId", "GetNewMultiXactId")
_INSUFFICIENT_PRIVILEGE = "42501"
#: Functions of the server that raise it for a row: a policy of the table, a RAISE in a trigger.
_REFUSE_A_ROW = ("ExecWithCheckOptions", "exec_stmt_raise")
#: Connection, plan made invalid by a migration, read-only server, prepared statement missing or
#: there already, resources, shutdown, I/O.
_ELSEWHERE = ("08", "0A", "25", "26", "42P05", "53", "57", "58")


def cause_of(error: BaseException) -> Cause:
    """Any error of the server that is not listed here counts as one of a row, such as those of an
    application's constraints and triggers."""
    if was_executed(error):
        return Cause.ROWS
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state is None:
        return Cause.ELSEWHERE
    if state in _TIMEOUT:
        return Cause.TIMEOUT
    if state.startswith(_CONTENTION) or lacks_a_right(error) or lacks_schema(error):
        return Cause.CONTENTION
    if state.startswith(_ELSEWHERE) or lacks_storage(error):
        return Cause.ELSEWHERE
    return Cause.ROWS


def may_be_of_one_row(error: BaseException) -> bool:
    """Whether the same statement may succeed for some of its rows while it fails for others."""
    return cause_of(error) in (Cause.ROWS, Cause.TIMEOUT)


def lacks_a_right(error: BaseException) -> bool:
    """Whether the session's role lacks a right, which may be granted later."""
    return (
        isinstance(error, psycopg.Error)
        and error.sqlstate == _INSUFFICIENT_PRIVILEGE
        and error.diag.source_function not in _REFUSE_A_ROW
    )


def lacks_schema(error: BaseException, schema: str | None = None) -> bool:
    """Whether the schema, or something in it, is missing while it is restored or renamed. Not if
    a function of another schema misses something, which a trigger has called: without `schema`,
    one other than that of the function which was called first."""
    if not isinstance(error, psycopg.Error) or error.sqlstate not in _MISSING:
        return False
    found = _SCHEMA_OF_FUNCTION.findall(error.diag.context or "")
    others = {each.strip('"') for each in found} - {"pg_catalog", schema}
    return len(others) < (1 if schema else 2)


def lacks_storage(error: BaseException) -> bool:
    """Whether the server's disk is full or fails, or it gives no transaction a number until an
    operator has removed what keeps it from a VACUUM."""
    return isinstance(error, psycopg.Error) and (
        (error.sqlstate or "").startswith(_STORAGE) or error.diag.source_function in _GIVE_NUMBERS
    )


def lacks_partition(error: BaseException) -> bool:
    """Whether the history has no partition for the time of a settlement, because the server's clock
    was set, or no steward has run for weeks. A CHECK's error has the name of a constraint."""
    return (
        isinstance(error, psycopg.errors.CheckViolation)
        and error.diag.table_name == "finished"
        and not error.diag.constraint_name
    )


def was_executed(error: BaseException) -> bool:
    """Whether the driver raised it for a value: one that it could not send or, after the
    server had executed the statement, one that it could not read."""
    return isinstance(error, UnicodeError) or (
        isinstance(error, psycopg.DataError) and error.sqlstate is None
    )


def reason(error: BaseException) -> str:
    """In one line, without the values of rows that the server's DETAIL may show."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return joined(primary or str(error) or type(error).__name__)
