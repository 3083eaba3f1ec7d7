"""Moves a process on: asks its manager, and writes what becomes of it together with the command
that it sends."""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from cmdbus.checks import check_seconds, shown
from cmdbus.data import MAX_BYTES, Undecodable, decode, encode
from cmdbus.database.pool import Connection
from cmdbus.errors import CommandError, PermanentCommandError, TransientCommandError
from cmdbus.processes.batch_steps import BATCH, create_batch
from cmdbus.processes.managers import load_state, step_of
from cmdbus.producer.ids import new_id
from cmdbus.producer.process_records import ProcessStatus, state_data
from cmdbus.producer.requests import Limits, Outgoing, SendRequest
from cmdbus.producer.store import Store
from cmdbus.reply import Reply

if TYPE_CHECKING:
    from cmdbus.processes.process_manager import ProcessManager

#: Values of advance_process where no command is sent.
_NOTHING: dict[str, object] = {
    **dict.fromkeys(("to_domain", "type", "data", "command_id", "priority", "delay", "run_at")),
    "max_attempts": None,
    "own": False,
}
_LIMITS = Limits.of(None, MAX_BYTES)
_MAX_ERROR, _MAX_TRACEBACK = 2_000, 10_000


class ProcessRow(NamedTuple):
    """A process as read_locked_process reads it."""

    process_id: UUID
    domain: str
    type: str
    status: str
    step: str | None
    #: JSON text.
    state: str
    version: int
    #: Of its latest command.
    number: int
    awaited_domain: str | None
    awaited_id: UUID | None
    #: The number of the step that the awaited command undoes.
    undoing: int | None
    timer_id: UUID | None
    #: Its last status, once a step has failed or it was canceled.
    ending: str | None
    error: str | None

    @property
    def label(self) -> str:
        return f"process {self.process_id} ({self.domain}/{self.type})"


class Process:
    """A process in the transaction that has locked its row."""

    def __init__(
        self,
        store: Store,
        connection: Connection,
        row: ProcessRow,
        manager: "ProcessManager[Any]",
    ) -> None:
        self.row = row
        self._store = store
        self._connection = connection
        self._manager = manager
        self._ending, self._error = row.ending, row.error
        with self._asking("its state"):
            data = decode(row.state)
            if isinstance(data, Undecodable):
                raise PermanentCommandError("STATE_NOT_READABLE", data.reason)
            self._state = load_state(manager, data, row.version)

    def begin(self) -> None:
        with self._asking("first_step"):
            step = step_of(self._manager, self._manager.first_step(self._state), "first_step")
        self._send_step(step, None)

    def receive(self, reply: Reply) -> None:
        """Takes the reply to the awaited command."""
        if self.row.undoing is not None:
            self._receive_compensation(reply)
            return
        manager = self._manager
        with self._asking("update_state"):
            step = step_of(manager, self.row.step, "an older build")
            self._state = manager.update_state(self._state, step, reply)
        if self._ending is not None or not reply.is_success:
            self._fail(reply)
            return
        with self._asking("next_step"):
            following = manager.next_step(self._state, step, reply)
            if following is not None:
                following = step_of(manager, following, "next_step")
        if following is None:
            self._write(ProcessStatus.COMPLETED, self.row.step, None, reply=reply)
        else:
            self._send_step(following, reply)

    def compensate(self) -> None:
        """Sends the next compensation, or ends the process."""
        values = {"process_id": self.row.process_id}
        steps = self._store.rows(self._connection, "read_undoable", **values)
        skipped = []
        found: tuple[int, str, SendRequest] | None = None
        for number, step, undone in steps:
            if undone is None and found is None:
                with self._asking("compensation"):
                    known = step_of(self._manager, step, "an older build")
                    request = self._manager.compensation(known, self._state)
                if request is None:
                    skipped.append(number)
                else:
                    found = number, step, request
        if skipped:
            self._store.rows(self._connection, "skip_compensations", **values, numbers=skipped)
        if found is not None:
            number, step, request = found
            outgoing = self._checked(request, "compensation")
            self._write(ProcessStatus.COMPENSATING, step, _sent(outgoing), undoing=number)
            return
        has_failed = any(undone in ("FAILED", "CANCELED") for *_, undone in steps)
        ending = ProcessStatus.FAILED if has_failed else self._ending or ProcessStatus.COMPENSATED
        self._write(ending, self.row.step, None)

    def signal(self, name: str, data: object) -> None:
        with self._asking("on_signal"):
            self._state = self._manager.on_signal(self._state, name, data)
        self._store.rows(
            self._connection,
            "write_signal",
            process_id=self.row.process_id,
            state=self._stored_state(),
            version=self._manager.version,
            details=encode({"name": name, "data": data}, max_bytes=2 * MAX_BYTES),
        )

    def _receive_compensation(self, reply: Reply) -> None:
        if not reply.is_success:
            failure = f"the compensation of {self.row.step} failed: {_failure(reply)}"
            self._error = f"{self._error}; {failure}"[:_MAX_ERROR]
        self._end_step(reply)
        self.compensate()

    def _fail(self, reply: Reply) -> None:
        if not reply.is_success and self._error is None:
            self._error = f"{self.row.step}: {_failure(reply)}"[:_MAX_ERROR]
        self._ending = self._ending or ProcessStatus.COMPENSATED
        self._end_step(reply)
        self.compensate()

    def _send_step(self, step: Any, reply: Reply | None) -> None:
        with self._asking("build_command"):
            request = self._manager.build_command(step, self._state)
        if isinstance(request, list):
            sent = self._sent_batch(request, str(step))
        else:
            sent = _sent(self._checked(request, "build_command"))
        with self._asking("deadline"):
            seconds = self._manager.deadline(step)
        with self._checking("deadline"):
            seconds = None if seconds is None else check_seconds("it", seconds)
        status = ProcessStatus.WAITING_FOR_REPLY
        self._write(status, str(step), sent, reply=reply, seconds=seconds)

    def _end_step(self, reply: Reply) -> None:
        """Stores the reply; what follows is written later in the transaction."""
        row = self.row
        self._store.rows(
            self._connection,
            "end_step",
            **self._ended(reply),
            process_id=row.process_id,
            number=row.number,
            undoing=row.undoing,
            domain=row.domain,
        )

    def _ended(self, reply: Reply) -> dict[str, object]:
        problem = None if reply.is_success else _failure(reply)[:_MAX_ERROR]
        return {"outcome": reply.outcome, "error": problem, "timer_id": self.row.timer_id}

    def _write(
        self,
        status: str,
        step: str | None,
        sent: dict[str, object] | None,
        *,
        undoing: int | None = None,
        reply: Reply | None = None,
        seconds: float | None = None,
    ) -> None:
        """Stores the `reply`, unless that was done before, and the process, and sends."""
        row = self.row
        values: dict[str, object] = {
            "process_id": row.process_id,
            "domain": row.domain,
            "number": row.number,
            "status": str(status),
            "step": step,
            "undoing": undoing,
            "state": self._stored_state(),
            "version": self._manager.version,
            "ending": None if self._ending is None else str(self._ending),
            "error": self._error,
            **(_NOTHING if sent is None else sent),
            "seconds": seconds,
        }
        name = "advance_process"
        if reply is not None:
            name = "end_step_and_advance"
            ended = self._ended(reply)
            values |= {"outcome": ended["outcome"], "timer_id": ended["timer_id"]}
            values["problem"] = ended["error"]
        *_, refusal = self._store.rows(self._connection, name, **values)[0]
        if refusal is not None:
            raise self._duplicate(values["command_id"], step)

    def _duplicate(self, command_id: object, step: str | None) -> PermanentCommandError:
        message = f"{self.row.label}: command {command_id} of step {step} was sent before"
        return PermanentCommandError("DUPLICATE_COMMAND", message)

    def _sent_batch(self, requests: Sequence[object], step: str) -> dict[str, object]:
        if not requests:
            with self._checking("build_command"):
                raise ValueError("it returned no SendRequest: a step has one, or a list of some")
        commands = [self._checked(request, "build_command") for request in requests]
        row = self.row
        batch_id, taken = create_batch(
            self._store,
            self._connection,
            commands,
            domain=row.domain,
            process_id=row.process_id,
            name=f"{row.type} {step}",
        )
        if taken is not None:
            raise self._duplicate(taken, step)
        return {**_NOTHING, "type": BATCH, "command_id": batch_id}

    def _stored_state(self) -> str:
        with self._checking("its state"):
            return encode(state_data(self._state), what="state")

    def _checked(self, request: object, method: str) -> Outgoing:
        with self._checking(method):
            if not isinstance(request, SendRequest):
                raise ValueError(f"it must return a SendRequest, not {shown(request)}")
            if request.reply_to is not None or request.correlation_id is not None:
                raise ValueError(
                    "its SendRequest has a reply_to or a correlation_id: these are the process's"
                )
            return _LIMITS.check(request, new_id())

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Errors of the manager name the process, and what failed. With a business rule the command
        would be over, and the process would wait for ever: an operator decides."""
        where = self._where(what)
        try:
            yield
        except TransientCommandError as error:
            message = f"{where}: {error.message}"
            raise TransientCommandError(
                error.code, message, error.details, error.retry_after
            ) from error
        except CommandError as error:
            message = f"{where}: {error.message}"
            raise PermanentCommandError(error.code, message, error.details) from error
        except Exception as error:
            details = {"traceback": traceback.format_exc()[-_MAX_TRACEBACK:]}
            message = f"{where}: {error}"
            raise TransientCommandError(type(error).__name__, message, details) from error

    @contextmanager
    def _checking(self, what: str) -> Iterator[None]:
        """A second try would be refused as well."""
        try:
            yield
        except ValueError as error:
            message = f"{self._where(what)}: {error}"
            raise PermanentCommandError("INVALID_PROCESS", message) from None

    def _where(self, what: str) -> str:
        step = "" if self.row.step is None else f", step {self.row.step}"
        return f"{self.row.label}{step}: {what}"


def _failure(reply: Reply) -> str:
    result = reply.result if isinstance(reply.result, dict) else {}
    if reply.type == BATCH:
        return f"{result['completed']} of {result['total']} commands were completed"
    return f"{result.get('code')}: {result.get('message')}"


def _sent(outgoing: Outgoing) -> dict[str, object]:
    return {
        "to_domain": outgoing.domain,
        "type": outgoing.type,
        "data": outgoing.data,
        "command_id": outgoing.command_id,
        "own": outgoing.own,
        "priority": outgoing.priority,
        "delay": outgoing.delay,
        "run_at": outgoing.run_at,
        "max_attempts": outgoing.max_attempts,
    }
