"""The session of a worker's thread in autocommit mode: for handlers without a transaction, and for
what follows a settlement."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import psycopg
import pytest
from handlers import effects, running
from queries import scalar
from test_handler_surroundings import surrounding

from cmdbus import Command, CommandBus, Context, InvalidOperationError
from cmdbus.surroundings import execution_of
from cmdbus.worker.claims.outcomes import Outcome

Use = Callable[[], object]
SETTINGS = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"


def in_autocommit(command: Command, context: Context) -> None:
    connection = execution_of(context).autocommit()
    connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 1)")
    connection.execute("SET application_name = 'mine'")
    connection.execute("CREATE TEMP TABLE mine ()")
    with connection.transaction():
        connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 2)")
    connection.autocommit = False
    connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 3)")
    raise LookupError("with an open transaction")


def test_a_handler_in_autocommit_mode_commits_by_itself_and_leaves_the_session_clean(
    dsn: str, bus: CommandBus
) -> None:
    def look(command: Command, context: Context) -> list[object]:
        if command.data is None:
            in_autocommit(command, context)
        temporary = scalar(context.connection, "SELECT to_regclass('pg_temp.mine') IS NULL")
        name = scalar(context.connection, "SHOW application_name")
        return [temporary, name, context.connection.info.backend_pid]

    with running(dsn, surrounding(lambda *_: nullcontext(), look), concurrency=1):
        before = bus.wait("payments", bus.send("payments", "Debit", "look"), 10)
        failed = bus.wait("payments", bus.send("payments", "Debit"), 10)
        after = bus.wait("payments", bus.send("payments", "Debit", "look"), 10)
    assert failed.error_code == "LookupError"
    assert effects(dsn) == 2
    assert before.result == after.result
    assert after.result[0] is True


def test_a_command_has_its_transaction_or_autocommit_mode(dsn: str, bus: CommandBus) -> None:
    def one_then_the_other(command: Command, context: Context) -> list[str]:
        uses: list[Use] = [lambda: context.connection, execution_of(context).autocommit]
        if command.data:
            uses.reverse()
        uses[0]()
        with pytest.raises(InvalidOperationError) as refused:
            uses[1]()
        return [str(refused.value)]

    with running(dsn, surrounding(lambda *_: nullcontext(), one_then_the_other)):
        records = [bus.wait("payments", bus.send("payments", "Debit", data), 10) for data in (0, 1)]
    assert "autocommit mode was asked for after" in str(records[0].result)
    assert "used by a handler in autocommit mode" in str(records[1].result)


def test_a_handler_has_its_transaction_once_autocommit_mode_has_ended(
    dsn: str, bus: CommandBus
) -> None:
    def one_after_the_other(command: Command, context: Context) -> list[object]:
        execution = execution_of(context)
        execution.end_autocommit()  # It has not begun.
        connection = execution.autocommit()
        connection.execute("SET application_name = 'mine'")
        connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 1)")
        pid = connection.info.backend_pid
        execution.end_autocommit()
        with pytest.raises(InvalidOperationError):
            connection.execute("SELECT 1")
        context.connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 2)")
        assert pid == context.connection.info.backend_pid
        assert scalar(context.connection, "SHOW application_name") != "mine"
        raise LookupError("undoes the second effect")

    with running(dsn, surrounding(lambda *_: nullcontext(), one_after_the_other)):
        failed = bus.wait("payments", bus.send("payments", "Debit"), 10)
    assert failed.error_code == "LookupError"
    assert effects(dsn) == 1


def test_what_follows_has_the_same_session_in_autocommit_mode(dsn: str, bus: CommandBus) -> None:
    """With limits of its own; the transaction is over for everyone."""
    seen: list[object] = []
    called = threading.Event()

    @contextmanager
    def surroundings(command: Command, context: Context) -> Iterator[None]:
        pid = context.connection.info.backend_pid

        def look(outcome: Outcome, error: BaseException | None) -> None:
            connection = execution_of(context).autocommit()
            connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 1)")
            seen.append(connection.info.backend_pid == pid)
            seen.extend(connection.execute(SETTINGS).fetchone() or ())
            seen.append(effects(dsn))
            uses: list[Use] = [lambda: context.connection, execution_of(context).second_connection]
            for use in uses:
                with suppress(InvalidOperationError):
                    seen.append(use())
            seen.append(connection)
            called.set()

        execution_of(context).after_settlement(look)
        yield

    with running(dsn, surrounding(surroundings, timeout=77.0), concurrency=1):
        bus.send("payments", "Debit")
        assert called.wait(10)
        bus.wait("payments", bus.send("payments", "Noop"), 10)
    *others, connection = seen[:5]
    assert others == [True, "67s", "0", 1]
    assert isinstance(connection, psycopg.Connection)
    with pytest.raises(InvalidOperationError, match="after the handler returned"):
        connection.execute("SELECT 1")
