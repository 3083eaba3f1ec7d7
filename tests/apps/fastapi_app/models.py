"""The tables, and the payload of the commands. The web server and the workers share them."""

from decimal import Decimal
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[Decimal]


class Transfer(Base):
    """One that somebody has asked for. Its id is that of the command that makes it."""

    __tablename__ = "transfers"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    source: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    target: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    amount: Mapped[Decimal]


class Entry(Base):
    """What a transfer has added to an account."""

    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    transfer_id: Mapped[UUID] = mapped_column(ForeignKey("transfers.id"))
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    amount: Mapped[Decimal]


class MakeTransfer(BaseModel):
    source: int
    target: int
    amount: Decimal
