"""The tables, and the payloads of the commands. The web server and the workers share them."""

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[Decimal]
    charge_id: Mapped[UUID]  # the command that charges it
    payments: Mapped[list["Payment"]] = relationship(back_populates="order")


class Payment(Base):
    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_number: Mapped[str] = mapped_column(ForeignKey("orders.number"))
    receipt: Mapped[str]
    order: Mapped[Order] = relationship(back_populates="payments")


@dataclass
class Charge:
    order: str
    amount: Decimal
