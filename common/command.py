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
