"""Tables of an application, as it maps them with SQLAlchemy, and their rows."""

from uuid import UUID

from handlers import connect
from queries import rows
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

TABLES = """
CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0));
CREATE TABLE entry (
    id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    account_id int REFERENCES account,
    command_id uuid,
    amount int NOT NULL
);
INSERT INTO account VALUES (1, 100), (2, 0);
"""


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]
    entries: Mapped[list["Entry"]] = relationship(back_populates="account", order_by="Entry.id")


class Entry(Base):
    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("account.id"))
    command_id: Mapped[UUID | None]
    amount: Mapped[int]
    account: Mapped[Account] = relationship(back_populates="entries")


def make_tables(dsn: str) -> None:
    with connect(dsn) as connection:
        connection.execute(TABLES)


def debit_one(session: Session) -> None:
    session.get_one(Account, 1).balance -= 1


def balances(dsn: str) -> list[int]:
    return [balance for (balance,) in rows(dsn, "SELECT balance FROM account ORDER BY id")]


def amounts(dsn: str) -> list[int]:
    return [amount for (amount,) in rows(dsn, "SELECT amount FROM entry ORDER BY id")]
