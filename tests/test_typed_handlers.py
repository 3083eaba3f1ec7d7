"""Handlers with `Command[Debit]`: what they get, what they refuse, and what is wrong with them."""

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

import pydantic
import pytest
from handlers import SOON, handling, running

from cmdbus import (
    Breaker,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    Status,
    handler,
)
from cmdbus.errors import AppError
from cmdbus.worker import Worker
from cmdbus.worker.boot.app import load

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass
class Debit:
    amount: Decimal
    due: datetime

    def __post_init__(self) -> None:
        if self.amount == 13:
            raise PermanentCommandError("UNLUCKY", "13")


class Note(TypedDict):
    text: str


class Card(pydantic.BaseModel):
    number: int


DEBIT = Debit(Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC))


def ended(bus: CommandBus, data: object) -> Any:
    return bus.wait("payments", bus.send("payments", "Debit", data), 10)


def test_a_handler_gets_its_payload_and_its_result_has_the_same_forms(
    dsn: str, bus: CommandBus
) -> None:
    seen: list[Command[Debit]] = []

    def debit(command: Command[Debit], context: Context) -> Debit:
        seen.append(command)
        return command.payload

    with running(dsn, handling(debit)):
        record = ended(bus, DEBIT)
        reply = bus.call("payments", "Debit", DEBIT, timeout=10)
    sent = {"amount": "1.50", "due": "2026-01-02T00:00:00+00:00"}
    assert (record.data, record.result, reply) == (sent, sent, sent)
    assert [command.payload for command in seen] == [DEBIT, DEBIT]
    assert seen[0].data == sent


@pytest.mark.parametrize(("kind", "value"), [(Note, {"text": "x"}), (Card, Card(number=4))])
def test_payloads_are_typed_dicts_and_models_of_pydantic_too(
    dsn: str, bus: CommandBus, kind: Any, value: Any
) -> None:
    seen: list[object] = []

    def debit(command, context):  # type: ignore[no-untyped-def]
        seen.append(command.payload)

    debit.__annotations__["command"] = Command[kind]
    with running(dsn, handling(debit)):
        assert ended(bus, value).status is Status.COMPLETED
        assert ended(bus, {}).error_code == "PAYLOAD_INVALID"
    assert seen == [value]


def test_without_a_type_the_payload_is_the_data(dsn: str, bus: CommandBus) -> None:
    seen: list[object] = []
    with running(dsn, handling(lambda command, context: seen.append(command.payload))):
        ended(bus, {"x": 1})
    assert seen == [{"x": 1}]


def test_what_does_not_fit_waits_for_an_operator_uncharged_and_is_no_failure_of_a_breaker(
    dsn: str, bus: CommandBus
) -> None:
    seen: list[Debit] = []
    registry = HandlerRegistry()
    registry.breaker(Breaker("bank", failures=1, counts=(Exception,)))

    @registry.handler("payments", "Debit", retry=SOON, breaker="bank")
    def debit(command: Command[Debit], context: Context) -> None:
        seen.append(command.payload)

    with running(dsn, registry):
        record = ended(bus, {"amount": "a secret", "due": "2026-01-02T00:00:00"})
        assert [each.state for each in bus.breakers.list()] == ["CLOSED"]
        unlucky = ended(bus, {"amount": "13", "due": "2026-01-02T00:00:00"})
    assert record.status is Status.IN_TROUBLESHOOTING_QUEUE
    assert (record.error_code, record.attempts, seen) == ("PAYLOAD_INVALID", 0, [])
    assert record.error_message == (
        "data.amount must be a decimal number as text, and is another text"
    )
    # What a model raises to say what becomes of the command has its usual meaning.
    assert (unlucky.error_code, unlucky.attempts) == ("UNLUCKY", 1)
    assert [event.kind for event in bus.audit("payments", record.command_id)][:2] == [
        "SENT",
        "RECEIVED",
    ]


def test_a_command_made_by_hand_has_its_data_as_payload_or_what_it_is_given() -> None:
    values: dict[str, Any] = {
        "domain": "payments",
        "type": "Debit",
        "command_id": UUID(int=1),
        "data": "x",
        "priority": 5,
        "correlation_id": UUID(int=1),
        "reply_to": None,
        "created_at": datetime.now(UTC),
    }
    assert Command(**values).payload == "x"
    typed: Command[Debit] = Command(**values, payload=DEBIT)
    assert typed.payload is DEBIT
    with pytest.raises(dataclasses.FrozenInstanceError):
        typed.payload = DEBIT  # type: ignore[misc]


# A user's module, in which models come after their handlers.
later = HandlerRegistry()


@later.handler("payments", "Later")
def handle_later(command: "Command[list[Later]]", context: Context) -> object:
    return command.payload


@dataclass
class Later:
    amount: int


def test_a_type_may_be_defined_after_its_handler(dsn: str, bus: CommandBus) -> None:
    with running(dsn, later):
        sent = bus.send("payments", "Later", [Later(1)])
        assert bus.wait("payments", sent, 10).result == [{"amount": 1}]


def test_a_type_that_is_missing_when_the_registry_is_loaded_is_an_error_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit")
    def debit(command: "Command[list[Fraction]]", context: Context) -> None: ...

    sentence = (
        r"the handler of payments/Debit, .*debit: name 'Fraction' is not defined; define or import "
        r"it at the top level of its module, outside of `if TYPE_CHECKING`"
    )
    with pytest.raises(ValueError, match=sentence):
        Worker("dbname=x", registry)
    monkeypatch.setitem(globals(), "lost", registry)
    with pytest.raises(AppError, match=sentence):
        load(f"{__name__}:lost")


def test_a_plain_command_that_only_type_checkers_import_is_no_error() -> None:
    def debit(command: "Unknown", context: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    registry = handling(debit)
    registry.declarations()
    found = registry.find("payments", "Debit")
    assert found is not None and found.run is debit


class Service:
    @handler("payments", "Debit")
    def debit(self, command: Command[Debit], context: Context) -> None: ...


def with_more(more: str, command: Command[Debit], context: Context) -> None: ...


class Callee:
    def __call__(self, command: "Command[Debit]", context: Context) -> None: ...


def test_methods_partials_and_objects_have_types_too() -> None:
    registry = HandlerRegistry()
    registry.register_instance(Service())
    registry.register("payments", "Partial", functools.partial(with_more, "more"))
    registry.register("payments", "Object", Callee())
    for each in registry:
        assert each.run is not each.function


def takes_the_payload(command: Debit, context: Context) -> None: ...
def takes_them_in_turn(context: Context, command: Command) -> None: ...
def takes_a_set(command: Command[set[int]], context: Context) -> None: ...
def takes_no_model(command: Command[Worker], context: Context) -> None: ...
def takes_any(command: Command[Any], context: object) -> None: ...
def takes_an_object(command: object, context: object) -> None: ...
def takes_anything(command: Any, context: Any) -> None: ...
def takes_all(*both: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            takes_the_payload,
            r"its first parameter is annotated as Debit: write Command, or Command",
        ),
        (takes_them_in_turn, "its first parameter is annotated as Context"),
        (takes_a_set, r"takes_a_set: set\[int\] is not read from JSON, which has no sets"),
        (takes_no_model, "takes_no_model: Worker is not read from JSON: use a dataclass"),
    ],
)
def test_handlers_with_wrong_annotations_are_refused_when_they_are_registered(
    function: Callable[..., Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"the handler of payments/Debit, .*{sentence}"):
        handling(function)


@pytest.mark.parametrize("function", [takes_any, takes_an_object, takes_anything, takes_all])
def test_a_handler_without_a_type_is_called_itself(function: Callable[..., Any]) -> None:
    found = handling(function).find("payments", "Debit")
    assert found is not None and found.run is function


_PROGRAM = """
import sys
from dataclasses import dataclass
from cmdbus import Command, HandlerRegistry, SendRequest
from cmdbus.data import encode
from cmdbus.worker import Worker

@dataclass
class Debit:
    amount: int

def debit(command: Command[Debit], context: object) -> None: ...

registry = HandlerRegistry()
registry.register("payments", "Debit", debit)
Worker("dbname=x", registry)
print(encode(Debit(5)), "pydantic" in sys.modules)
"""


def test_a_program_without_models_of_pydantic_never_loads_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout == '{"amount":5} False\n'
