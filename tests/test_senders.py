"""Typed senders: their arguments are the fields of a model."""

from dataclasses import dataclass
from decimal import Decimal
from typing import TypedDict

import psycopg
import pydantic
import pytest
from handlers import found

from cmdbus import CommandBus, SendRequest


@dataclass
class Debit:
    account_id: int
    amount: Decimal = Decimal(0)


class Note(TypedDict):
    text: str


class Card(pydantic.BaseModel):
    number: int


def test_a_sender_sends_the_fields_of_its_model_with_its_options(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    debit = bus.sender("payments", "Debit", Debit)
    plain = found(bus, debit.send(1, amount=Decimal("1.5")))
    urgent = debit.options(priority="high", key="t1").options(key="t2")
    keyed = found(bus, urgent.send(account_id=2))
    assert (plain.data, plain.type, plain.key) == (
        {"account_id": 1, "amount": "1.5"},
        "Debit",
        None,
    )
    assert (keyed.priority, keyed.key) == (0, "t2")
    with connection.transaction(force_rollback=True):
        gone = debit.options(connection=connection).send(account_id=3)
    assert bus.get("payments", gone) is None
    assert found(bus, bus.sender("payments", "Note", Note).send(text="x")).data == {"text": "x"}
    assert found(bus, bus.sender("payments", "Card", Card).send(number=4)).data == {"number": 4}


def test_a_sender_makes_requests_for_bulks_and_batches(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    debit = bus.sender("payments", "Debit", Debit).options(delay=5)
    request = debit.request(account_id=1)
    assert request == SendRequest("payments", "Debit", Debit(1), delay=5)
    [sent] = bus.send_many([request])
    batch = bus.create_batch("payments", [request], data=Debit(7), on_complete=request)
    [in_batch] = bus.batch_commands(batch)
    assert found(bus, sent).data == in_batch.data == {"account_id": 1, "amount": "0"}
    record = bus.get_batch(batch)
    assert record is not None and record.data == {"account_id": 7, "amount": "0"}
    with pytest.raises(ValueError, match="a request has no connection: give it to send_many"):
        debit.options(connection=connection).request(account_id=1)


def test_a_sender_refuses_what_is_no_model_and_what_is_no_option(bus: CommandBus) -> None:
    with pytest.raises(ValueError, match="sender of payments/Debit needs a dataclass"):
        bus.sender("payments", "Debit", lambda amount: amount)
    with pytest.raises(ValueError, match="sender of payments/Debit: CommandBus is not read from"):
        bus.sender("payments", "Debit", CommandBus)
    with pytest.raises(ValueError, match="type must be a letter"):
        bus.sender("payments", "", Debit)
    debit = bus.sender("payments", "Debit", Debit)
    with pytest.raises(TypeError, match="a sender has no option 'dealy': did you mean 'delay'"):
        debit.options(dealy=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="account_id"):
        debit.send()  # type: ignore[call-arg]
