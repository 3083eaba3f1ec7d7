"""Which errors of the database are about rows, and how the rows that fail are found."""

from collections.abc import Sequence

import psycopg
import pytest
from psycopg.pq import DiagnosticField

from cmdbus.worker.claims.halving import in_halves
from cmdbus.worker.claims.rejections import Cause, cause_of, lacks_schema

REJECTIONS = {
    Cause.ROWS: (
        psycopg.errors.CheckViolation,
        psycopg.errors.UniqueViolation,
        psycopg.errors.DatetimeFieldOverflow,
        psycopg.errors.UntranslatableCharacter,
        psycopg.errors.RaiseException,
        psycopg.errors.DataCorrupted,
        psycopg.DataError,
    ),
    Cause.CONTENTION: (
        psycopg.errors.LockNotAvailable,
        psycopg.errors.DeadlockDetected,
        psycopg.errors.SerializationFailure,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedFunction,
    ),
    Cause.TIMEOUT: (
        psycopg.errors.QueryCanceled,
        psycopg.errors.OutOfMemory,
        psycopg.errors.ConfigurationLimitExceeded,
    ),
    Cause.ELSEWHERE: (
        psycopg.errors.AdminShutdown,
        psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.DiskFull,
        psycopg.errors.DuplicatePreparedStatement,
        psycopg.errors.InvalidSqlStatementName,
        psycopg.errors.FeatureNotSupported,
        psycopg.OperationalError,
        psycopg.InterfaceError,
        TypeError,
    ),
}


@pytest.mark.parametrize(
    ("error", "cause"), [(e, cause) for cause, errors in REJECTIONS.items() for e in errors]
)
def test_an_error_is_one_of_its_rows_unless_it_says_otherwise(
    error: type[Exception], cause: Cause
) -> None:
    assert cause_of(error("why")) is cause


@pytest.mark.parametrize("function", ["GetNewTransactionId", "GetNewMultiXactId"])
def test_a_server_that_gives_no_transaction_ids_says_nothing_about_a_row(function: str) -> None:
    """Other errors of that SQLSTATE are about a row that is too long, for example."""
    state, source = DiagnosticField.SQLSTATE, DiagnosticField.SOURCE_FUNCTION

    def error(raised_by: str) -> psycopg.Error:
        info: dict[int, bytes | None] = {state: b"54000", source: raised_by.encode()}
        return psycopg.errors.ProgramLimitExceeded("why", info=info)

    assert cause_of(error(function)) is Cause.ELSEWHERE
    assert cause_of(error("index_form_tuple")) is Cause.ROWS


@pytest.mark.parametrize(
    ("functions", "cause", "blocked"),
    [
        ([], Cause.CONTENTION, True),
        (["cmdbus.wake_for_ready()", "cmdbus.settle(text[])"], Cause.CONTENTION, True),
        (["public.audit()", "cmdbus.settle(text[])"], Cause.ROWS, False),
        (["public.audit()"], Cause.CONTENTION, False),
    ],
    ids=["none", "the bus's", "a trigger's on its tables", "a trigger's on the handler's"],
)
def test_what_is_missing_is_waited_for_unless_a_function_of_another_schema_misses_it(
    functions: list[str], cause: Cause, blocked: bool
) -> None:
    lines = [f"PL/pgSQL function {function} line 3 at IF" for function in functions]
    statement = 'SQL statement "INSERT INTO "cmdbus".event (domain) VALUES (pg_catalog.lower($1))"'
    info: dict[int, bytes | None] = {
        DiagnosticField.SQLSTATE: b"42P01",
        DiagnosticField.CONTEXT: f"\n{statement}\n".join(lines).encode(),
    }
    error = psycopg.errors.UndefinedTable("why", info=info)
    assert cause_of(error) is cause
    assert lacks_schema(error, "cmdbus") is blocked


def test_text_that_the_driver_cannot_send_or_read_is_an_error_of_its_row() -> None:
    assert cause_of(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why")) is Cause.ROWS


def test_a_statement_is_executed_for_halves_until_one_row_is_what_fails() -> None:
    sizes: list[int] = []
    rejected: list[int] = []

    def work(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        if {3, 6} & set(items):
            raise psycopg.errors.CheckViolation("three or six")
        return list(items)

    def lost(items: Sequence[int]) -> list[int]:
        raise psycopg.OperationalError("the connection is lost")

    found = in_halves(work, list(range(8)), lambda item, error: rejected.append(item))
    assert (found, rejected) == ([0, 1, 2, 4, 5, 7], [3, 6])
    assert sizes == [8, 4, 2, 2, 1, 1, 4, 2, 2, 1, 1]
    with pytest.raises(psycopg.OperationalError):
        in_halves(lost, [1, 2], lambda item, error: rejected.append(item))


def test_a_lock_timeout_is_no_rows_fault_and_tried_for_no_halves() -> None:
    tries: list[int] = []

    def locked(items: Sequence[int]) -> list[int]:
        tries.append(len(items))
        raise psycopg.errors.LockNotAvailable("the table is locked")

    def rejected(item: int, error: Exception) -> None:
        raise AssertionError(f"{item} is not what failed")

    with pytest.raises(psycopg.errors.LockNotAvailable):
        in_halves(locked, [1, 2], rejected)
    assert tries == [2]
