"""The handler as workers run it, in a transaction that is rolled back after each test."""

from collections.abc import Iterator
from decimal import Decimal
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, select
from sqlalchemy.orm import Session

from cmdbus import CommandBus
from cmdbus.testing import CommandTester, Executed
from fastapi_app.handlers import registry
from fastapi_app.models import Account, Base, Entry, MakeTransfer, Transfer


@pytest.fixture
def session(cmdbus_dsn: str) -> Iterator[Session]:
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(cmdbus_dsn), poolclass=NullPool
    )
    with engine.connect() as connection, Session(connection) as session:
        Base.metadata.create_all(connection)
        session.add_all([Account(id=1, balance=Decimal(100)), Account(id=2, balance=Decimal(0))])
        session.flush()
        yield session


def transfer(
    amount: Decimal, session: Session, bus: CommandBus, tester: CommandTester
) -> tuple[Executed, list[int]]:
    """What becomes of a transfer from 1 to 2, and both balances after it."""
    session.add(Transfer(id=(transfer_id := uuid4()), source=1, target=2, amount=amount))
    sender = bus.sender("bank", "MakeTransfer", MakeTransfer)
    sender = sender.options(command_id=transfer_id, connection=session)
    sender.send(source=1, target=2, amount=amount)
    [executed] = tester.run_commands(registry, connection=session, raises=False)
    balances = session.scalars(select(Account.balance).order_by(Account.id))
    return executed, [int(balance) for balance in balances]


def test_a_transfer_changes_both_balances(
    session: Session, bus: CommandBus, command_tester: CommandTester
) -> None:
    executed, balances = transfer(Decimal(30), session, bus, command_tester)
    assert (executed.outcome, balances) == ("COMPLETED", [70, 30])
    assert [*session.scalars(select(Entry.amount).order_by(Entry.amount))] == [-30, 30]


def test_a_transfer_of_more_than_the_balance_changes_nothing(
    session: Session, bus: CommandBus, command_tester: CommandTester
) -> None:
    executed, balances = transfer(Decimal(101), session, bus, command_tester)
    assert (executed.error_code, balances) == ("INSUFFICIENT_FUNDS", [100, 0])
    assert session.scalar(select(Entry)) is None
