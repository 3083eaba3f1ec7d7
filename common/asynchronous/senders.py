"""Typed senders of an AsyncCommandBus."""

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, overload
from uuid import UUID

from cmdbus.producer.senders import CommandSender

P = ParamSpec("P")
# Inside the class of a bus, `type` is an argument.
_Type = type[Any]


class AsyncBus(Protocol):
    # Any: pyright does not compare named arguments with those of a TypedDict. And it infers another
    # coroutine from `async def` than the bus returns.
    def send(self, *args: Any, **options: Any) -> Coroutine[Any, Any, UUID]: ...


class AsyncTypedSender(CommandSender[AsyncBus, P]):
    """Sends commands of one type; made by `AsyncCommandBus.sender`."""

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> UUID:
        """Sends one command with a payload of these fields, and returns its id. Raises what
        `CommandBus.send` raises, and what the model raises for its fields."""
        payload = self._model(*args, **kwargs)
        return await self._bus.send(self._domain, self._type, payload, **self._options)


class AsyncSenders:
    """The part of an AsyncCommandBus that makes them."""

    @overload
    def sender(
        self: AsyncBus, domain: str, type: str, model: Callable[P, object]
    ) -> AsyncTypedSender[P]: ...
    # A TypedDict for pyright, which then does not check the fields.
    @overload
    def sender(self: AsyncBus, domain: str, type: str, model: _Type) -> AsyncTypedSender[...]: ...
    def sender(self: AsyncBus, domain: str, type: str, model: Any) -> AsyncTypedSender[Any]:
        """See CommandBus.sender; `await sender.send(...)`."""
        return AsyncTypedSender(self, domain, type, model)
