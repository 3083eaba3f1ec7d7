"""Moves a process on: asks its manager what becomes of it, and what it sends."""

import logging
import traceback
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cmdbus.checks import check_seconds
from cmdbus.data import CEILING_BYTES, encode
from cmdbus.errors import (
    CommandError,
    NotHereError,
    PermanentCommandError,
    TransientCommandError,
)
from cmdbus.forwarding import default_headers
from cmdbus.payloads.forms import form_of
from cmdbus.processes.batch_steps import BATCH, create_batch
from cmdbus.processes.managers import checked_result, checked_state, load_state, step_of
from cmdbus.processes.transition import Ended, Move, ProcessRow, Sent, Transition, duplicate
from cmdbus.producer.ids import new_id
from cmdbus.producer.process_records import ProcessStatus
from cmdbus.producer.requests import Outgoing, SendRequest, SendRules, expiry_of
from cmdbus.reply import Reply

if TYPE_CHECKING:
    from cmdbus.processes.process_manager import ProcessManager

logger = logging.getLogger(__name__)

_MAX_ERROR, _MAX_TRACEBACK = 2_000, 10_000


class Process:
    """A process in the transaction that has locked its row."""

    def __init__(
        self,
        transition: Transition,
        row: ProcessRow,
        manager: "ProcessManager[Any]",
        rules: SendRules,
    ) -> None:
        self.row = row
        self._transition = transition
        self._store, self._connection = transition.store, transition.connection
        self._manager, self._rules = manager, rules
        self._ending, self._error = row.ending, row.error

    @cached_property
    def _state(self) -> Any:
        """Read only for what moves the process on: the rest is dropped, whatever the state is."""
        row, manager = self.row, self._manager
        if row.version > manager.version:
            message = (
                f"{self.where('its state')} is of version {row.version}, and its manager here of "
                f"version {manager.version}: a newer worker must run it"
            )
            logger.warning("%s", message)
            raise NotHereError("STATE_TOO_NEW", message)
        what = "its state"
        if row.version < manager.version:
            what = f"its state, from version {row.version} to {manager.version}"
        with self._asking(what):
            return load_state(manager, row.state, row.version)

    def begin(self) -> None:
        state = self._state
        with self._asking("first_step"):
            step = step_of(self._manager, self._manager.first_step(state), "first_step")
        self._send_step(step, None)

    def receive(self, reply: Reply) -> None:
        """Takes the reply to the awaited command."""
        state = self._state
        if self.row.undoing is not None:
            self._receive_compensation(reply)
            return
        manager = self._manager
        with self._asking("update_state"):
            step = step_of(manager, self.row.step, "an older build")
            state = manager.update_state(state, step, reply)
        with self._checking("update_state"):
            self._state = checked_state(state, manager)
        if self._ending is not None or not reply.is_success:
            self._fail(reply)
            return
        with self._asking("next_step"):
            following = manager.next_step(self._state, step, reply)
            if following is not None:
                following = step_of(manager, following, "next_step")
        if following is None:
            self._move(ProcessStatus.COMPLETED, self.row.step, ended=self._ended(reply))
        else:
            self._send_step(following, reply)

    def compensate(self) -> None:
        """Sends the next compensation, or ends the process."""
        values = {"process_id": self.row.process_id}
        steps = self._store.rows(self._connection, "read_undoable", **values)
        skipped: list[int] = []
        for number, step, undone in steps:
            if undone is None:
                sent = self._compensation_of(step)
                if sent is not None:
                    self._skip(skipped)
                    self._move(ProcessStatus.COMPENSATING, step, sent, undoing=number)
                    return
                skipped.append(number)
        self._skip(skipped)
        if any(undone in ("FAILED", "CANCELED") for *_, undone in steps):
            logger.error("%s is FAILED: %s", self.row.label, self._error)
            self._move(ProcessStatus.FAILED, self.row.step)
        else:
            self._move(self._ending or ProcessStatus.COMPENSATED, self.row.step)

    def signal(self, name: str, data: object) -> None:
        state = self._state
        with self._asking("on_signal"):
            state = self._manager.on_signal(state, name, data)
        with self._checking("on_signal"):
            self._state = checked_state(state, self._manager)
        self._store.rows(
            self._connection,
            "write_signal",
            process_id=self.row.process_id,
            state=self._stored_state(),
            version=self._manager.version,
            details=encode({"name": name, "data": data}, max_bytes=CEILING_BYTES),
        )

    def _compensation_of(self, step: str) -> Sent | None:
        state = self._state
        with self._asking("compensation"):
            known = step_of(self._manager, step, "an older build")
            request = self._manager.compensation(known, state)
        return (
            None
            if request is None
            else self._sent(self._checked(request, "compensation"), "compensation")
        )

    def _skip(self, numbers: list[int]) -> None:
        """Notes steps that need no compensation."""
        if numbers:
            values = {"process_id": self.row.process_id, "numbers": numbers}
            self._store.rows(self._connection, "skip_compensations", **values)

    def _receive_compensation(self, reply: Reply) -> None:
        if not reply.is_success:
            failure = f"the compensation of {self.row.step} failed: {_failure(reply)}"
            if failure not in str(self._error):  # It may fail again after a retry.
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
            sent = self._sent_batch(request, step.value)
        else:
            sent = self._sent(self._checked(request, "build_command"), "build_command")
        with self._asking("deadline"):
            seconds = self._manager.deadline(step)
        with self._checking("deadline"):
            seconds = None if seconds is None else check_seconds("it", seconds)
        self._move(
            ProcessStatus.WAITING_FOR_REPLY,
            step.value,
            sent,
            ended=Ended() if reply is None else self._ended(reply),
            deadline=seconds,
        )

    def _end_step(self, reply: Reply) -> None:
        """Stores the reply before what follows."""
        row = self.row
        self._store.rows(
            self._connection,
            "end_step",
            **self._ended(reply)._asdict(),
            process_id=row.process_id,
            number=row.number,
            undoing=row.undoing,
            domain=row.domain,
        )

    def _ended(self, reply: Reply) -> Ended:
        problem = None if reply.is_success else _failure(reply)[:_MAX_ERROR]
        return Ended(reply.outcome, problem, self.row.timer_id)

    def _move(
        self,
        status: str,
        step: str | None,
        sent: Sent = Sent(),  # noqa: B008  # immutable
        *,
        undoing: int | None = None,
        ended: Ended = Ended(),  # noqa: B008  # immutable
        deadline: float | None = None,
    ) -> None:
        """Written together with the moves of other processes, at the end of the transaction."""
        move = Move(
            self.row,
            str(status),
            step,
            undoing,
            self._stored_state(),
            self._manager.version,
            None if self._ending is None else str(self._ending),
            self._error,
            ended,
            sent,
            deadline,
            None if deadline is None else new_id(),
        )
        self._transition.add(move)

    def _sent(self, outgoing: Outgoing, what: str) -> Sent:
        sent = Sent(
            outgoing.command_id,
            outgoing.type,
            outgoing.domain,
            outgoing.data,
            outgoing.own,
            outgoing.priority,
            outgoing.delay,
            outgoing.run_at,
            outgoing.max_attempts,
            outgoing.key,
            headers=outgoing.headers,
        )
        if outgoing.expires_at is None:
            return sent
        now = self._store.value(self._connection, "read_now")
        with self._checking(what):
            return sent._replace(expires_at=expiry_of(outgoing, now))

    def _sent_batch(self, requests: Sequence[object], step: str) -> Sent:
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
            raise duplicate(row, taken, step)
        return Sent(batch_id, BATCH)

    def _stored_state(self) -> str:
        """As large as a state that any bus can have started a process with."""
        with self._checking("its state"):
            return encode(
                form_of(self._state),
                what="state",
                max_bytes=CEILING_BYTES,
                encoder=self._rules.encoder,
            )

    def _checked(self, request: object, method: str) -> Outgoing:
        with self._checking(method):
            request = checked_result(request, SendRequest)
            if request.reply_to is not None or request.correlation_id is not None:
                raise ValueError(
                    "its SendRequest has a reply_to or a correlation_id: these are the process's"
                )
            if request.unique is not None:
                raise ValueError(
                    "its SendRequest has a unique key, by which a command could be refused that "
                    "the process awaits"
                )
            return self._rules.check(request, new_id(), default_headers())

    def _asking(self, what: str) -> "_Asking":
        return _Asking(self, what)

    def _checking(self, what: str) -> "_Checking":
        return _Checking(self, what)

    def where(self, what: str) -> str:
        step = "" if self.row.step is None else f", step {self.row.step}"
        return f"{self.row.label}{step}: {what}"


class _Asking:
    """Errors of the manager name the process, and what failed. With a business rule the command
    would be over, and the process would wait for ever: an operator decides.

    A class, as a generator takes four times as long."""

    __slots__ = ("_process", "_what")

    def __init__(self, process: Process, what: str) -> None:
        self._process, self._what = process, what

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            raise self._named(error) from error

    def _named(self, error: Exception) -> CommandError:
        where = self._process.where(self._what)
        if isinstance(error, TransientCommandError):
            message = f"{where}: {error.message}"
            return TransientCommandError(error.code, message, error.details, error.retry_after)
        if isinstance(error, CommandError):
            return PermanentCommandError(error.code, f"{where}: {error.message}", error.details)
        details = {"traceback": "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]}
        return TransientCommandError(type(error).__name__, f"{where}: {error}", details)


class _Checking(_Asking):
    """A second try would be refused as well."""

    __slots__ = ()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ValueError):
            message = f"{self._process.where(self._what)}: {error}"
            raise PermanentCommandError("INVALID_PROCESS", message) from None


def _failure(reply: Reply) -> str:
    result = reply.result if isinstance(reply.result, dict) else {}
    if reply.type == BATCH:
        return f"{result['completed']} of {result['total']} commands were completed"
    return f"{result.get('code')}: {result.get('message')}"
