"""`context.session`: an SQLAlchemy session in the handler's transaction."""

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from eventually import eventually
from forks import result_of_child
from handlers import ONCE, handling, pool_of, run, running
from orm import Account, Entry, amounts, balances, debit_one, make_tables
from psycopg.rows import dict_row
from queries import rows
from sqlalchemy import event, exc, func, insert, select, text, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import DetachedInstanceError

from cmdbus import (
    Command,
    CommandBus,
    CommandRecord,
    Context,
    InvalidOperationError,
)

Use = Callable[[Session], object]


@pytest.fixture
def application(dsn: str) -> str:
    make_tables(dsn)
    return dsn


def run_one(dsn: str, bus: CommandBus, function: Callable[..., object]) -> CommandRecord:
    [record] = run(dsn, bus, function)
    return record


def refusal(use: Callable[[], object]) -> str:
    try:
        use()
    except InvalidOperationError as error:
        return str(error)
    return "nothing was refused"


def test_what_a_session_writes_commits_with_the_command(application: str, bus: CommandBus) -> None:
    """Also what the handler has only added when it returns, and beside raw statements; what a
    command that fails has written is gone."""

    def debit(command: Command, context: Context) -> int:
        session = context.session
        account = session.get_one(Account, 1)
        account.balance -= 30
        account.entries.append(Entry(command_id=command.command_id, amount=-30))
        assert session is context.session
        assert session.scalar(select(func.count()).select_from(Entry)) == 1  # flushed before
        context.connection.execute("UPDATE account SET balance = balance + 30 WHERE id = 2")
        session.add(Entry(account_id=2, amount=30))
        if balances(application) != [100, 0]:
            raise AssertionError("seen before the commit")
        return account.entries[0].id

    with running(application, handling(debit, retry=ONCE)):
        first = bus.wait("payments", bus.send("payments", "Debit"), 10)
    assert (first.status, first.result) == ("COMPLETED", 1)
    assert (balances(application), amounts(application)) == ([70, 30], [-30, 30])

    def fail(command: Command, context: Context) -> None:
        debit_one(context.session)
        context.session.flush()
        raise LookupError("no such thing")

    assert run_one(application, bus, fail).error_code == "LookupError"
    assert balances(application) == [70, 30]


ENDINGS: dict[str, Use] = {
    "session.commit": lambda session: session.commit(),
    "session.rollback": lambda session: session.rollback(),
    "session.close": lambda session: session.close(),
    "session.reset": lambda session: session.reset(),
    "session.invalidate": lambda session: session.invalidate(),
    "session.prepare": lambda session: session.prepare(),
    "session.begin": lambda session: session.begin(),
    "session.connection().commit": lambda session: session.connection().commit(),
    "session.connection().rollback": lambda session: session.connection().rollback(),
    "session.connection().close": lambda session: session.connection().close(),
    "connection.close": lambda session: session.connection().connection.driver_connection.close(),  # type: ignore[union-attr]
}


def test_nothing_of_a_session_ends_the_transaction(application: str, bus: CommandBus) -> None:
    refused: dict[str, str] = {}

    def handle(command: Command, context: Context) -> None:
        with context.session as session:
            debit_one(session)
        for name, use in ENDINGS.items():
            refused[name] = refusal(lambda use=use: use(session))  # type: ignore[misc]
        debit_one(session)

    assert run_one(application, bus, handle).status == "COMPLETED"
    assert balances(application) == [98, 0]
    for name, sentence in refused.items():
        assert sentence.startswith(f"context.{name}() would end the command's transaction: "), name


def test_a_part_that_fails_in_a_savepoint_is_undone_and_the_rest_commits(
    application: str, bus: CommandBus
) -> None:
    def handle(command: Command, context: Context) -> None:
        session = context.session
        debit_one(session)
        for _ in range(7):  # more often than the driver needs to prepare a statement
            with pytest.raises(exc.IntegrityError), session.begin_nested():
                session.add(Account(id=2, balance=1))
        with session.begin_nested():
            session.add(Account(id=3, balance=3))
        nested = session.begin_nested()
        session.add(Account(id=4, balance=4))
        nested.rollback()
        debit_one(session)

    assert run_one(application, bus, handle).status == "COMPLETED"
    assert balances(application) == [98, 0, 3]


OPEN_SAVEPOINTS: dict[str, Use] = {
    "one": lambda session: session.begin_nested(),
    "one in another": lambda session: [session.begin_nested(), session.begin_nested()],
    "the connection's": lambda session: session.connection().begin_nested(),
}


@pytest.mark.parametrize("begin", OPEN_SAVEPOINTS.values(), ids=OPEN_SAVEPOINTS)
def test_what_is_written_in_a_savepoint_that_is_left_open_commits_too(
    application: str, bus: CommandBus, begin: Use
) -> None:
    def handle(command: Command, context: Context) -> None:
        debit_one(context.session)
        begin(context.session)
        debit_one(context.session)

    assert run_one(application, bus, handle).status == "COMPLETED"
    assert balances(application) == [98, 0]


def test_a_savepoint_of_a_session_is_one_for_raw_statements_too(
    application: str, bus: CommandBus
) -> None:
    """From its beginning, also before the session has executed anything in it."""

    def handle(command: Command, context: Context) -> None:
        with pytest.raises(LookupError), context.session.begin_nested():
            context.connection.execute("UPDATE account SET balance = 5")
            raise LookupError("no such thing")
        with context.session.begin_nested(), context.connection.transaction():
            debit_one(context.session)
            context.session.flush()

    assert run_one(application, bus, handle).status == "COMPLETED"
    assert balances(application) == [99, 0]


def test_a_commit_of_the_sessions_transaction_is_refused(application: str, bus: CommandBus) -> None:
    def handle(command: Command, context: Context) -> None:
        debit_one(context.session)
        context.session.get_transaction().commit()  # type: ignore[union-attr]

    record = run_one(application, bus, handle)
    assert "commit() would end the command's transaction" in str(record.error_message)
    assert balances(application) == [100, 0]


def test_listeners_bulk_statements_and_other_ways_of_sqlalchemy_work(
    application: str, bus: CommandBus
) -> None:
    flushed: list[int] = []

    def handle(command: Command, context: Context) -> list[object]:
        session = context.session
        context.connection.row_factory = dict_row  # must not confuse SQLAlchemy

        @event.listens_for(session, "before_flush")
        def count(*_: object) -> None:
            flushed.append(len(session.new))

        session.execute(insert(Entry), [{"account_id": 1, "amount": n} for n in range(1500)])
        session.bulk_insert_mappings(Entry.__mapper__, [{"account_id": 2, "amount": -1}])
        session.execute(update(Account).where(Account.id == 2).values(balance=7))
        session.add_all([Account(id=3, balance=1), Account(id=4, balance=2)])
        many = session.connection().execute(text("SELECT count(*) FROM entry")).scalar_one()
        streamed = session.scalars(select(Entry.amount).order_by(Entry.amount)).yield_per(100)
        sent = bus.send("payments", "Noop", connection=session)
        assert bus.get("payments", sent) is None  # nothing is committed yet
        [row] = context.connection.execute("SELECT count(*) AS n FROM account").fetchall()
        return [many, sum(streamed), session.get_one(Account, 2).balance, row["n"], str(sent)]

    record = run_one(application, bus, handle)
    assert record.result[:4] == [1501, sum(range(1500)) - 1, 7, 4]
    assert bus.get("payments", record.result[4]) is not None
    assert flushed[0] == 2


def test_a_session_is_of_no_use_after_its_handler(application: str, bus: CommandBus) -> None:
    kept: list[Any] = []

    def handle(command: Command, context: Context) -> str:
        session = context.session
        kept.extend((context, session, session.connection(), session.get_one(Account, 1)))
        balance = select(Account.balance)
        return result_of_child(lambda: refusal(lambda: session.scalar(balance)))

    record = run_one(application, bus, handle)
    assert record.result.startswith("context.connection was used in a forked process")
    context, session, connection, account = kept
    for use in (lambda: context.session, lambda: session.new, lambda: session.scalar(select(1))):
        assert "was used after the handler returned: finish" in refusal(use)
    with pytest.raises(exc.ResourceClosedError):
        connection.execute(select(1))
    with pytest.raises(DetachedInstanceError):
        account.entries  # noqa: B018


def test_a_handler_that_returns_while_a_thread_uses_its_session_fails(
    application: str, bus: CommandBus
) -> None:
    threads: list[threading.Thread] = []

    def handle(command: Command, context: Context) -> None:
        session = context.session
        debit_one(session)
        session.flush()

        def sleep() -> None:
            with suppress(Exception):
                session.execute(text("SELECT pg_sleep(60)"))

        threads.append(threading.Thread(target=sleep))
        threads[0].start()
        # Its lock is held before the query is sent, and only one that runs ends with its session.
        sleeping = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND query = 'SELECT pg_sleep(60)' AND state = 'active'"
        )
        eventually(lambda: rows(application, sleeping) == [(1,)])

    record = run_one(application, bus, handle)
    assert (record.error_code, balances(application)) == ("CONNECTION_IN_USE", [100, 0])
    threads[0].join(10)


def test_the_limits_of_a_transaction_grow_for_its_session_too(
    application: str, bus: CommandBus
) -> None:
    """Also those that were set in a savepoint which is rolled back."""

    def handle(command: Command, context: Context) -> list[int]:
        session = context.session
        show = text("SELECT extract(epoch FROM current_setting('statement_timeout')::interval)")
        with suppress(LookupError), session.begin_nested():
            session.scalar(show)  # SQLAlchemy makes the savepoint at its first statement
            context.extend(100)
            raise LookupError
        seen = session.scalar(show)
        context.extend(100)
        return [round(seen or 0), round(session.scalar(show) or 0)]

    assert run_one(application, bus, handle).result == [125, 225]


def test_a_session_opens_no_session_of_the_database(application: str, bus: CommandBus) -> None:
    """Whatever rows the application's pool makes."""

    def handle(command: Command, context: Context) -> bool:
        own = context.connection.info.backend_pid
        return context.session.scalar(select(func.pg_backend_pid())) == own

    with pool_of(application, row_factory=dict_row) as pool:
        assert [record.result for record in run(pool, bus, handle, times=2)] == [True, True]


def test_without_sqlalchemy_the_sentence_says_what_to_install(
    application: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "cmdbus.worker.integrations.sqlalchemy_session"
    monkeypatch.delattr(module, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    record = run_one(application, bus, lambda command, context: context.session)
    assert "context.session needs SQLAlchemy 2: pip install 'sqlalchemy>=2'" in str(
        record.error_message
    )


def test_a_worker_loads_no_sqlalchemy_by_itself() -> None:
    code = (
        "import sys, cmdbus.worker.boot.worker_entry, cmdbus.supervisor.loop, cmdbus.context;"
        "print([name for name in sys.modules if name.startswith('sqlalchemy')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stdout.strip() == "[]"
