"""The handler as a function, with an HTTP client whose answers the tests choose."""

from collections.abc import Iterator
from decimal import Decimal
from uuid import uuid4

import httpx
import psycopg
import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from cmdbus import BusinessRuleError
from cmdbus.testing import make_command, make_context
from flask_app import handlers
from flask_app.models import Base, Charge, Order


@pytest.fixture
def session(cmdbus_dsn: str) -> Iterator[Session]:
    """In a transaction that is rolled back after the test."""
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(cmdbus_dsn), poolclass=NullPool
    )
    with engine.connect() as connection, Session(connection) as session:
        Base.metadata.create_all(connection)
        session.add(Order(number="A-1", amount=Decimal(5), charge_id=uuid4()))
        yield session


def charge(session: Session, monkeypatch: pytest.MonkeyPatch, answer: httpx.Response) -> str:
    """Of the order, by a provider that answers so."""
    with httpx.Client(
        base_url="http://provider", transport=httpx.MockTransport(lambda _: answer)
    ) as provider:
        monkeypatch.setattr(handlers, "provider", provider, raising=False)
        command = make_command("payments", "Charge", Charge("A-1", Decimal(5)))
        return handlers.charge(command, make_context(command, session=session))


def test_a_charged_order_has_a_receipt(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = httpx.Response(201, json={"receipt": "R-7"})
    assert charge(session, monkeypatch, answer) == "R-7"
    order = session.get_one(Order, "A-1")
    assert [payment.receipt for payment in order.payments] == ["R-7"]


def test_a_declined_charge_is_not_tried_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BusinessRuleError, match="A-1 was declined"):
        charge(session, monkeypatch, httpx.Response(402))
