"""Waiting for the end of a command or a batch: when it is read again, and what is raised."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from cmdbus import instrument_hooks
from cmdbus.backoff import Backoff
from cmdbus.checks import check_id, check_seconds
from cmdbus.clock import time
from cmdbus.errors import BatchNotFoundError, CommandNotFoundError
from cmdbus.producer.connections import MIN_CONNECT_SECONDS
from cmdbus.producer.records import BatchRecord, CommandRecord, Status
from cmdbus.producer.requests import check_command

T = TypeVar("T", CommandRecord, BatchRecord)

#: Seconds between two reads.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.005, 0.2


class Wait(Generic[T]):
    #: What is read, and by which statement.
    kind: type[T]
    statement: ClassVar[str]
    #: As instruments see it, and the value that is its id.
    _operation: ClassVar[str]
    _id: ClassVar[str]

    def __init__(self, values: dict[str, Any], timeout: float) -> None:
        self.values, self._timeout = values, timeout
        self._deadline = time.monotonic() + check_seconds("timeout", timeout)
        self._backoff = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)

    def observed(self) -> AbstractContextManager[object]:
        """For the instruments of the process."""
        domain, id_ = self.values.get("domain"), self.values[self._id]
        return instrument_hooks.waiting(self._operation, domain, id_)

    @property
    def within(self) -> float:
        """Seconds that a read may wait for a connection."""
        return max(self._deadline - time.monotonic(), MIN_CONNECT_SECONDS)

    def pause_after(self, records: list[T]) -> float | None:
        """Seconds until the next read, after one that returned `records`; None if that was the
        last."""
        if not records:
            raise self._unknown()
        if self._is_over(records[0]):
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(self._state(records[0]))
        return min(self._backoff.pause(), left)

    def _unknown(self) -> Exception:
        raise NotImplementedError

    def _is_over(self, record: T) -> bool:
        raise NotImplementedError

    def _state(self, record: T) -> str:
        raise NotImplementedError


class CommandWait(Wait[CommandRecord]):
    kind, statement = CommandRecord, "read_command"
    _operation, _id = "wait", "command_id"

    def __init__(self, domain: str, command_id: UUID | str, timeout: float) -> None:
        super().__init__(check_command(domain, command_id), timeout)

    def _unknown(self) -> Exception:
        return CommandNotFoundError(self.values["domain"], self.values["command_id"])

    def _is_over(self, record: CommandRecord) -> bool:
        return record.status.terminal or record.status is Status.IN_TROUBLESHOOTING_QUEUE

    def _state(self, record: CommandRecord) -> str:
        return (
            f"command {record.command_id} of domain {record.domain!r} is {record.status} "
            f"after {self._timeout:g} s"
        )


class BatchWait(Wait[BatchRecord]):
    kind, statement = BatchRecord, "read_batch"
    _operation, _id = "wait_batch", "batch_id"

    def __init__(self, batch_id: UUID | str, timeout: float) -> None:
        super().__init__({"batch_id": check_id("batch_id", batch_id)}, timeout)

    def _unknown(self) -> Exception:
        return BatchNotFoundError(self.values["batch_id"])

    def _is_over(self, record: BatchRecord) -> bool:
        return record.status.terminal

    def _state(self, record: BatchRecord) -> str:
        return (
            f"batch {record.batch_id} is {record.status} after {self._timeout:g} s: "
            f"{record.remaining} of {record.total} commands remain, {record.in_troubleshooting} of "
            f"them in troubleshooting"
        )
