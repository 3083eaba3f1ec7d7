"""`context.session` where statements fail, and where processes are killed."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from fleet import Fleet, kill, write_app
from handlers import SOON, Gate, connect, handling, run, running
from orm import Account, Entry, amounts, balances, debit_one, make_tables
from queries import rows
from sqlalchemy import event, exc, text
from sqlalchemy.orm import Session

from cmdbus import (
    Command,
    CommandBus,
    Context,
)

Use = Callable[[Session], object]

#: The sessions of this database that wait for a lock.
WAITS = """
    SELECT pid FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND datname = current_database()"""


@pytest.fixture
def application(dsn: str) -> str:
    make_tables(dsn)
    return dsn


def swallowed_error_in_an_open_savepoint(session: Session) -> None:
    session.begin_nested()
    swallowed_error_of_the_database(session)


def swallowed_error_of_the_database(session: Session) -> None:
    session.add(Account(id=2, balance=1))
    with suppress(exc.IntegrityError):
        session.flush()


def swallowed_error_of_a_listener(session: Session) -> None:
    """The server knows nothing of it."""

    @event.listens_for(session, "after_flush")
    def complain(*_: object) -> None:
        raise LookupError("no such thing")

    with suppress(LookupError):
        session.flush()


def rolled_back_by_its_transaction(session: Session) -> None:
    session.flush()
    session.get_transaction().rollback()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "spoil",
    [
        swallowed_error_of_the_database,
        swallowed_error_in_an_open_savepoint,
        swallowed_error_of_a_listener,
        rolled_back_by_its_transaction,
    ],
)
def test_nothing_of_a_session_that_was_rolled_back_is_committed(
    application: str, bus: CommandBus, spoil: Use
) -> None:
    def handle(command: Command, context: Context) -> None:
        debit_one(context.session)
        spoil(context.session)

    [record] = run(application, bus, handle)
    assert record.error_code == "TRANSACTION_ABORTED"
    assert "with context.session.begin_nested()" in str(record.error_message)
    assert balances(application) == [100, 0]


def test_an_error_of_the_last_flush_is_the_handlers(application: str, bus: CommandBus) -> None:
    def handle(command: Command, context: Context) -> None:
        context.session.add(Entry(account_id=3, amount=1))

    [record] = run(application, bus, handle)
    assert record.error_code == "IntegrityError"
    assert (record.status, amounts(application)) == ("IN_TROUBLESHOOTING_QUEUE", [])


@pytest.mark.parametrize("spoil", [lambda session: None, debit_one])
def test_an_outage_is_recognised_behind_the_errors_of_sqlalchemy(
    application: str, bus: CommandBus, spoil: Use
) -> None:
    """In a flush, and where the handler has swallowed that error and meets the next one."""
    seen: list[int] = []

    def handle(command: Command, context: Context) -> None:
        seen.append(context.attempt)
        session = context.session
        debit_one(session)
        if len(seen) == 1:
            pid = session.scalar(text("SELECT pg_backend_pid()"))
            with connect(application) as other:
                other.execute("SELECT pg_terminate_backend(%s)", [pid])
            if spoil is not debit_one:
                session.get_one(Account, 2)
            with suppress(exc.OperationalError):
                debit_one(session)
                session.flush()
            session.get_one(Account, 2)

    with running(application, handling(handle, retry=SOON), concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Debit"), 10)
    assert (record.status, record.attempts, seen) == ("COMPLETED", 1, [1, 1])
    events = bus.audit("payments", record.command_id)
    assert {event.code for event in events} == {None, "DATABASE_AWAY"}
    assert balances(application) == [99, 0]


def test_a_deadlock_charges_the_command_as_with_raw_statements(
    application: str, bus: CommandBus
) -> None:
    def lock_other_way(first: int, second: int) -> None:
        with psycopg.connect(application) as other:
            lock = "SELECT FROM account WHERE id = %s FOR UPDATE"
            other.execute("SET deadlock_timeout = '10s'")
            other.execute(lock, [first])
            gate.open.set()
            other.execute(lock, [second])

    gate = Gate()
    threads: list[threading.Thread] = []

    def handle(command: Command, context: Context) -> None:
        session = context.session
        session.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
        session.get_one(Account, 1, with_for_update=True)
        if context.attempt == 1:
            threads.append(threading.Thread(target=lock_other_way, args=(2, 1)))
            threads[0].start()
            assert gate.open.wait(10)
            eventually(lambda: rows(application, WAITS))  # before the server looks for a deadlock
        session.get_one(Account, 2, with_for_update=True)

    with running(application, handling(handle, retry=SOON)):
        record = bus.wait("payments", bus.send("payments", "Debit"), 10)
    threads[0].join(10)
    assert (record.status, record.attempts) == ("COMPLETED", 2)
    events = bus.audit("payments", record.command_id)
    assert "OperationalError" in {event.code for event in events}


def test_a_statement_that_a_migration_has_invalidated_charges_nothing(
    application: str, bus: CommandBus
) -> None:
    def handle(command: Command, context: Context) -> None:
        for _ in range(6):
            context.session.execute(text("SELECT * FROM account")).all()

    with running(application, handling(handle, retry=SOON), concurrency=1):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        with connect(application) as connection:
            connection.execute("ALTER TABLE account ADD COLUMN name text")
        record = bus.wait("payments", bus.send("payments", "Debit"), 10)
    assert (record.status, record.attempts) == ("COMPLETED", 1)
    assert "PLAN_CHANGED" in {e.code for e in bus.audit("payments", record.command_id)}


#: Sessions in a fleet whose processes are killed: each command changes rows of two tables.
APP = """
import time
from cmdbus import RetryPolicy
from fleet_app import registry as registry
from orm import Account, Entry

@registry.handler("shop", "Transfer", retry=RetryPolicy(max_attempts=9, backoff=(0.05,)))
def transfer(command, context):
    session = context.session
    account = session.get_one(Account, command.data, with_for_update=True)
    account.balance += 1
    session.flush()
    time.sleep(0.002)
    session.add(Entry(account=account, amount=1, command_id=command.command_id))
"""


@pytest.mark.fleet(started=False, procs=1)
def test_rows_equal_completed_commands_when_processes_are_killed(
    fleet: Fleet, application: str, tmp_path: Path
) -> None:
    write_app(tmp_path, APP)
    fleet.start()
    fleet.wait_until_ready()
    ids = [id for number in (1, 2) for id in fleet.send("Transfer", 60, data=number)]
    eventually(lambda: len(amounts(application)) > 20)
    pids = fleet.pids()
    kill(pids.values())
    fleet.await_completions(len(ids), within=30)
    done = [id for (id,) in rows(application, "SELECT command_id FROM entry")]
    assert sorted(done) == sorted(ids)
    assert balances(application) == [160, 60]
