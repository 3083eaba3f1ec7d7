"""A reply to a command. Pure."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

_OUTCOMES = ("SUCCESS", "FAILED", "CANCELED")


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


def reply_fields(data: Any) -> dict[str, Any] | None:
    """The fields of a Reply from the data of a command of type Reply; None if another program has
    sent something else as one."""
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        return {
            "command_id": UUID(data["command_id"]),
            "type": str(data["type"]),
            "outcome": _OUTCOMES[_OUTCOMES.index(data["outcome"])],
            "result": data["result"],
        }
    return None
