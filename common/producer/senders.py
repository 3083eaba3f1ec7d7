"""Senders of one type of command, whose arguments are the fields of its payload."""

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

from cmdbus.checks import check_name, check_options, shown
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.payloads.pydantic_models import check_dumped
from cmdbus.payloads.readers import reader_of
from cmdbus.producer.requests import SendRequest

P = ParamSpec("P")
B = TypeVar("B")
# Inside the class of a bus, `type` is an argument.
_Type = type[Any]


class SendOptions(TypedDict, total=False):
    """Of `CommandBus.send`."""

    command_id: UUID | str | None
    priority: str | int
    delay: float | timedelta | None
    run_at: datetime | None
    correlation_id: UUID | str | None
    reply_to: str | None
    max_attempts: int | None
    key: str | None
    unique: str | None
    on_conflict: str
    unique_until: str | float | timedelta
    expires: float | timedelta | datetime | None
    headers: Mapping[str, str] | None
    connection: CallersConnection | None


class Bus(Protocol):
    # Any: pyright does not compare named arguments with those of a TypedDict.
    def send(self, *args: Any, **options: Any) -> UUID: ...


class CommandSender(Generic[B, P]):
    """What the senders of both buses have: the command's type, its model and its options."""

    def __init__(self, bus: B, domain: str, type: str, model: Callable[P, object]) -> None:
        self._bus, self._model = bus, model
        self._domain, self._type = check_name("domain", domain), check_name("type", type)
        self._options: SendOptions = {}
        check_model(f"the sender of {domain}/{type}", model)

    def options(self, **options: Unpack[SendOptions]) -> Self:
        """A sender with these options of `CommandBus.send` besides its own."""
        check_options("a sender", options, SendOptions.__annotations__)
        other = copy.copy(self)
        other._options = {**self._options, **options}
        return other

    def request(self, *args: P.args, **kwargs: P.kwargs) -> SendRequest:
        """The same command for `send_many` and `create_batch`; they take the `connection`."""
        options: dict[str, Any] = {**self._options}
        if options.pop("connection", None) is not None:
            raise ValueError(
                "a request has no connection: give it to send_many or create_batch instead"
            )
        return SendRequest(self._domain, self._type, self._model(*args, **kwargs), **options)


class TypedSender(CommandSender[Bus, P]):
    """Sends commands of one type; made by `CommandBus.sender`. Safe to share between threads."""

    def send(self, *args: P.args, **kwargs: P.kwargs) -> UUID:
        """Sends one command with a payload of these fields, and returns its id. Raises what
        `CommandBus.send` raises, and what the model raises for its fields."""
        payload = self._model(*args, **kwargs)
        return self._bus.send(self._domain, self._type, payload, **self._options)


class Senders:
    """The part of a CommandBus that makes them."""

    @overload
    def sender(self: Bus, domain: str, type: str, model: Callable[P, object]) -> TypedSender[P]: ...
    # A TypedDict for pyright, which then does not check the fields.
    @overload
    def sender(self: Bus, domain: str, type: str, model: _Type) -> TypedSender[...]: ...
    def sender(self: Bus, domain: str, type: str, model: Any) -> TypedSender[Any]:
        """A sender of commands of this `domain` and `type`, whose payload is a `model`: a
        dataclass, a TypedDict or a pydantic model. `sender.send(...)` takes the fields of the
        model, and type checkers check them; `sender.options(delay=30).send(...)` takes the options
        of `send` first; `sender.request(...)` makes a SendRequest."""
        return TypedSender(self, domain, type, model)


def check_model(what: str, model: object) -> None:
    if not isinstance(model, type):
        raise ValueError(
            f"{what} needs a dataclass, a TypedDict or a pydantic model, not {shown(model)}"
        )
    # A type that it names may be defined further down.
    with suppress(NameError):
        try:
            reader_of(model)
            check_dumped(model)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
