"""A command as its handler gets it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic
from uuid import UUID

from cmdbus.headers import NO_HEADERS

if TYPE_CHECKING:
    # Type checkers bring it themselves; with the default, a plain Command is a Command[Any].
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

_SAME: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[T_co]):
    """A command as it was sent. `command_id` is the idempotency key to pass on to other systems.

    The `payload` of a handler that takes a Command[Debit] is a Debit; without a type in brackets it
    is `data`, which stays as it came.
    """

    domain: str
    type: str
    command_id: UUID
    data: Any
    priority: int
    correlation_id: UUID
    reply_to: str | None
    created_at: datetime
    payload: T_co = field(default=_SAME, repr=False, compare=False)
    #: The headers of `send(headers=)`; they cannot be changed.
    headers: Mapping[str, str] = NO_HEADERS

    def __post_init__(self) -> None:
        if self.payload is _SAME:
            set_payload(self, self.data)


def set_payload(command: Command, payload: object) -> None:
    """Before the handler is called."""
    object.__setattr__(command, "payload", payload)


class _Unsealed(Generic[T_co]):
    """A command while it is made: to fill one that is frozen takes seven times as long."""

    __slots__ = Command.__slots__


def received(
    domain: str,
    type: str,
    command_id: UUID,
    data: Any,
    priority: int,
    correlation_id: UUID,
    reply_to: str | None,
    created_at: datetime,
    headers: Mapping[str, str],
) -> Command:
    """The same as Command(...), for the hot path."""
    made: Any = _Unsealed()
    made.domain = domain
    made.type = type
    made.command_id = command_id
    made.data = data
    made.priority = priority
    made.correlation_id = correlation_id
    made.reply_to = reply_to
    made.created_at = created_at
    made.payload = data
    made.headers = headers
    made.__class__ = Command
    return made  # type: ignore[no-any-return]  # it is one now
