"""A reply to a command. Pure."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a command ended. `result` is that of the handler; for FAILED and CANCELED it has `code`,
    `message` and `details`."""

    command_id: UUID
    type: str
    #: SUCCESS, FAILED or CANCELED.
    outcome: str
    result: Any

    @property
    def is_success(self) -> bool:
        return self.outcome == "SUCCESS"
