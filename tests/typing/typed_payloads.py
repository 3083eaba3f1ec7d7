"""What type checkers must find in programs with typed payloads. Nothing runs this. Each wrong line
says which error it is: the checkers also report one that is none."""

# Of what follows from an error.
# pyright: reportUntypedFunctionDecorator=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypedDict, assert_type
from uuid import UUID

from pydantic import BaseModel

from cmdbus import (
    AsyncCommandBus,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    SendRequest,
    handler,
)


@dataclass
class Debit:
    account_id: int
    amount: Decimal = Decimal(0)


class Note(TypedDict):
    text: str


class Card(BaseModel):
    number: int


registry = HandlerRegistry()


@registry.handler("payments", "Debit")
def debit(command: Command[Debit], context: Context) -> None:
    assert_type(command.payload, Debit)
    print(command.payload.amuont)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@registry.handler("payments", "Plain")
def plain(command: Command, context: Context) -> None:
    assert_type(command.payload, Any)


@registry.handler("payments", "None")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def without_context(command: Command[Debit]) -> None: ...


@registry.handler("payments", "Payload")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def takes_the_payload(command: Debit, context: Context) -> None: ...


@registry.schedule(every="15m")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def takes_them_in_turn(context: Context, command: Command) -> None: ...


class Service:
    @handler("payments", "Method")
    def method(self, command: Command[Note], context: Context) -> str:
        return command.payload["text"]

    @handler("payments", "Wrong")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    def wrong(self, command: Command[Note], context: int) -> None: ...


def send(bus: CommandBus) -> None:
    sender = bus.sender("payments", "Debit", Debit)
    assert_type(sender.send(account_id=1, amount=Decimal(5)), UUID)
    assert_type(sender.options(delay=30, key="t1").send(1), UUID)
    assert_type(sender.request(1), SendRequest)
    sender.send(amount=Decimal(5))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sender.send(account_id="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sender.options(dealy=30)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sender.options(key=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    bus.sender("payments", "Note", Note).send(text="x")
    bus.sender("payments", "Note", Note).send(text=1)  # type: ignore[arg-type]
    bus.sender("payments", "Card", Card).send(number=4)
    bus.sender("payments", "Card", Card).send(numbr=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def send_on_asyncio(bus: AsyncCommandBus) -> None:
    sender = bus.sender("payments", "Debit", Debit)
    assert_type(await sender.send(account_id=1, amount=Decimal(5)), UUID)
    await sender.options(delay=30).send(amunt=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sender.send(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
