"""Handlers run inside the transaction of a test that SQLAlchemy has, and a rollback leaves nothing:
the pattern of a session that joins an external transaction."""

from collections.abc import Iterator

import psycopg
import pytest
from orm import Account, Entry, balances, make_tables
from queries import rows
from sqlalchemy import NullPool, create_engine, select
from sqlalchemy.orm import Session

from cmdbus import Command, CommandBus, Context, HandlerRegistry
from cmdbus.testing import CommandTester


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    """Its commits are savepoints, in a transaction that is rolled back."""
    make_tables(dsn)
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=NullPool
    )
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        outer.rollback()
    assert balances(dsn) == [100, 0]
    assert rows(dsn, "SELECT FROM entry UNION ALL SELECT FROM cmdbus.command") == []


def registry_of(own: Session) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handler("d", "Given")
    def given(command: Command, context: Context) -> None:
        account = context.session.get_one(Account, 1)
        account.balance -= command.data
        account.entries.append(Entry(amount=-command.data))

    @registry.handler("d", "Own")
    def with_the_sessions_of_the_application(command: Command, context: Context) -> None:
        own.get_one(Account, 1).balance -= command.data
        own.commit()

    @registry.handler("d", "Fails")
    def fails(command: Command, context: Context) -> None:
        context.session.add(Entry(account_id=1, amount=7))
        context.session.flush()
        raise OSError("no")

    return registry


def test_what_a_handler_writes_is_seen_by_the_tests_session(session: Session, dsn: str) -> None:
    account = session.get_one(Account, 1)
    account.balance = 50  # It is written before the handlers run.
    with CommandBus(dsn) as bus:
        bus.send("d", "Given", 5, connection=session)
        bus.send("d", "Own", 3, connection=session)
        bus.send("d", "Fails", connection=session)
        bus.send("d", "Given", 1, connection=session)
    done = CommandTester().run_commands(registry_of(session), session, raises=False)
    assert [each.outcome for each in done] == ["COMPLETED", "COMPLETED", "RETRY", "COMPLETED"]
    assert account.balance == 41
    assert [*session.scalars(select(Entry.amount).order_by(Entry.id))] == [-5, -1]
    session.commit()


def test_another_driver_is_refused_by_a_sentence(dsn: str) -> None:
    import psycopg2

    registry = HandlerRegistry()
    registry.register("d", "T", lambda command, context: None)
    connection = psycopg2.connect(dsn)
    try:
        with pytest.raises(ValueError, match="connection must be psycopg 3's, or an SQLAlchemy"):
            CommandTester().run_commands(registry, connection)
    finally:
        connection.close()
