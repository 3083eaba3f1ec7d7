"""A command as its handler gets it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command as it was sent. `command_id` is the idempotency key to pass on to other systems."""

    domain: str
    type: str
    command_id: UUID
    data: Any
    priority: int
    correlation_id: UUID
    reply_to: str | None
    created_at: datetime


class _Unsealed:
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
    made.__class__ = Command
    return made  # type: ignore[no-any-return]  # it is one now
