"""Values of processes that a CommandBus takes and returns. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID


class ProcessStatus(StrEnum):
    #: No worker has run its first step.
    PENDING = "PENDING"
    #: Between two steps, which is never seen, because one transaction ends a step and begins the
    #: next one.
    IN_PROGRESS = "IN_PROGRESS"
    WAITING_FOR_REPLY = "WAITING_FOR_REPLY"
    #: What it awaits, or a command of its own, needs an operator.
    WAITING_FOR_TSQ = "WAITING_FOR_TSQ"
    #: Undoes its completed steps.
    COMPENSATING = "COMPENSATING"
    COMPLETED = "COMPLETED"
    #: A step has failed, and the steps before it are undone.
    COMPENSATED = "COMPENSATED"
    #: A compensation has failed.
    FAILED = "FAILED"
    #: An operator has canceled it, and its completed steps are undone.
    CANCELED = "CANCELED"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset(
    {
        ProcessStatus.COMPLETED,
        ProcessStatus.COMPENSATED,
        ProcessStatus.FAILED,
        ProcessStatus.CANCELED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One process as it is now; the columns of the view `process`, times in UTC."""

    statuses: ClassVar = ProcessStatus

    process_id: UUID
    domain: str
    type: str
    status: ProcessStatus
    #: The latest step, or the one that is being undone.
    step: str | None
    state: Any
    #: Why it is compensated: of the step that failed, or of the operator.
    error: str | None
    batch_id: UUID | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStep:
    """A command that a process has sent, and what became of it."""

    number: int
    step: str
    #: The number of the step that this one undoes.
    undoes: int | None
    domain: str
    type: str
    command_id: UUID
    sent_at: datetime
    received_at: datetime | None
    deadline_at: datetime | None
    #: SUCCESS, FAILED or CANCELED; None while it is awaited.
    outcome: str | None
    #: Why it was not completed; while it is awaited, the latest failure of its command.
    error: str | None
    #: What became of its compensation: SENT, SUCCESS, FAILED, CANCELED, or SKIPPED without one.
    undone: str | None
    #: Of the command or the batch, such as IN_TROUBLESHOOTING_QUEUE; None if its history is gone.
    command_status: str | None
    #: Of the command; None if its history is gone, and for a batch.
    attempts: int | None
