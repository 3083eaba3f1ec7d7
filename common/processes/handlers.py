"""The handlers of a domain's processes: each runs in the transaction that moves a process on, and
locks its row first."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cmdbus.command import Command
from cmdbus.command_log import fields_of, log_about
from cmdbus.context import Context
from cmdbus.data import MAX_BYTES
from cmdbus.database.pool import Connection
from cmdbus.errors import NotHereError
from cmdbus.handlers import Handler
from cmdbus.payloads.forms import Encoder
from cmdbus.processes import batch_steps
from cmdbus.processes.advancing import Process
from cmdbus.processes.batch_steps import BATCH
from cmdbus.processes.transition import ProcessRow, Transition
from cmdbus.producer.process_records import ProcessStatus
from cmdbus.producer.requests import SendRules
from cmdbus.producer.store import Store
from cmdbus.reply import Reply, reply_fields

if TYPE_CHECKING:
    from cmdbus.processes.process_manager import ProcessManager

logger = logging.getLogger(__name__)

_OUTCOMES = {"COMPLETED": "SUCCESS", "FAILED": "FAILED", "CANCELED": "CANCELED"}
_store = cache(Store)


class ProcessHandlers:
    """`managers` are those of the domain, by the types of their processes; more may come."""

    def __init__(
        self,
        domain: str,
        managers: "Mapping[str, ProcessManager[Any]]",
        encoder: Encoder | None = None,
    ) -> None:
        self._domain = domain
        self._managers = managers
        self._rules = SendRules.of(None, MAX_BYTES, encoder)
        self._group = partial(ProcessGroup, self)

    @property
    def all(self) -> list[Handler]:
        functions = {
            "Reply": self.receive,
            "process:start": self.start,
            "process:signal": self.signal,
            "process:deadline": self.expire,
            "process:resume": self.resume,
            "process:counted": self.end_batch,
            BATCH: self.receive_batch,
        }
        grouped = "Reply", "process:start"
        return [
            Handler(self._domain, type_, function, group=self._group if type_ in grouped else None)
            for type_, function in functions.items()
        ]

    def start(self, command: Command, context: Context) -> None:
        with self._moving(command, context) as transition:
            self.begin(command, transition)

    def receive(self, command: Command, context: Context) -> None:
        with self._moving(command, context) as transition:
            self.take_reply(command, transition)

    def receive_batch(self, command: Command, context: Context) -> None:
        """The commands of a step have ended."""
        process_id = UUID(command.data["process_id"])
        with self._moving(command, context, process_id) as transition:
            process = self._process(command, transition, process_id)
            if process is None:
                return
            batch_id = command.correlation_id
            reply = None
            if process.row.awaited_id == batch_id:
                reply = batch_steps.reply_of(transition.store, transition.connection, batch_id)
            if reply is None:
                _drop(command, f"{process.row.label} does not await batch {batch_id} now")
            else:
                process.receive(reply)

    def signal(self, command: Command, context: Context) -> None:
        with self._moving(command, context) as transition:
            process = self._process(command, transition)
            if process is not None:
                if ProcessStatus(process.row.status).terminal:
                    _drop(command, f"{process.row.label} is {process.row.status}")
                else:
                    process.signal(command.data["name"], command.data["data"])

    def expire(self, command: Command, context: Context) -> None:
        """The reply to the canceled command moves the process on."""
        values = {"process_id": command.correlation_id, "number": command.data["number"]}
        store = _store(context.schema)
        reason = store.value(context.connection, "expire_step", **values)
        if reason is not None:
            logger.warning("process %s: %s", command.correlation_id, reason)

    def resume(self, command: Command, context: Context) -> None:
        """Begins, compensates, or finds a reply that was lost."""
        with self._moving(command, context) as transition:
            process = self._process(command, transition)
            if process is None:
                return
            row = process.row
            if row.awaited_id is not None:
                reply = _lost_reply(transition, row)
                if reply is not None:
                    process.receive(reply)
            elif row.status == ProcessStatus.PENDING:
                process.begin()
            elif row.status == ProcessStatus.COMPENSATING:
                process.compensate()

    def end_batch(self, command: Command, context: Context) -> None:
        """Ends the batch of a process that has ended, if it is over with that."""
        values = {"batch_ids": [command.correlation_id]}
        _store(context.schema).value(context.connection, "end_batches", **values)

    @contextmanager
    def _moving(
        self, command: Command, context: Context, process_id: UUID | None = None
    ) -> Iterator[Transition]:
        """Locks the process that a command is about, by default the one that it is correlated
        with; writes its move at the end."""
        process_ids = [process_id or command.correlation_id]
        transition = self.transition(context.schema, context.connection, process_ids)
        yield transition
        transition.write()

    def transition(
        self,
        schema: str,
        connection: Connection,
        process_ids: Sequence[UUID],
        *,
        skips_locked: bool = False,
    ) -> Transition:
        return Transition(
            _store(schema), connection, self._domain, process_ids, skips_locked=skips_locked
        )

    def begin(self, command: Command, transition: Transition) -> None:
        process = self._process(command, transition)
        if process is not None:
            if process.row.status == ProcessStatus.PENDING:
                process.begin()
            else:
                _drop(command, f"{process.row.label} is {process.row.status} already")

    def take_reply(self, command: Command, transition: Transition) -> None:
        if command.correlation_id == command.command_id:
            _drop(command, "it has no correlation id")
            return
        fields = reply_fields(command.data)
        if fields is None:
            _drop(command, "it has not the data of a reply")
            return
        reply = Reply(**fields)
        process = self._process(command, transition)
        if process is not None:
            if process.row.awaited_id == reply.command_id:
                process.receive(reply)
            else:
                _drop(
                    command,
                    f"{process.row.label} does not await command {reply.command_id} now",
                )

    def can_run(self, row: ProcessRow) -> bool:
        manager = self._managers.get(row.type)
        return manager is not None and row.version <= manager.version

    def _process(
        self, command: Command, transition: Transition, process_id: UUID | None = None
    ) -> Process | None:
        """The process that a command is about; None if that drops the command."""
        process_id = process_id or command.correlation_id
        row = transition.rows.get(process_id)
        if row is None:
            _drop(command, f"domain {self._domain} has no process {process_id}")
            return None
        manager = self._managers.get(row.type)
        if manager is None:
            problem = f"{row.label} has no manager here"
            if command.type != "Reply" and not ProcessStatus(row.status).terminal:
                message = f"{problem}: a worker that has it must run {command.type}"
                logger.error("%s", message)
                raise NotHereError("NO_MANAGER", message)
            _drop(command, problem, logging.ERROR)
            return None
        return Process(transition, row, manager, self._rules)


class ProcessGroup:
    """Starts and replies of several processes. One whose row is locked, or that another worker
    must run, fails no group: it is handled by itself."""

    def __init__(
        self,
        handlers: ProcessHandlers,
        commands: Sequence[Command],
        connection: Connection,
        schema: str,
    ) -> None:
        self._handlers = handlers
        process_ids = [command.correlation_id for command in commands]
        self._transition = handlers.transition(schema, connection, process_ids, skips_locked=True)

    def takes(self, command: Command) -> bool:
        row = self._transition.rows.get(command.correlation_id)
        return row is not None and self._handlers.can_run(row)

    def handle(self, command: Command) -> None:
        if command.type == "Reply":
            self._handlers.take_reply(command, self._transition)
        else:
            self._handlers.begin(command, self._transition)

    def write(self) -> None:
        self._transition.write()


def _drop(command: Command, why: str, level: int = logging.WARNING) -> None:
    fields = fields_of(command.command_id, command.domain, command.type, command.correlation_id)
    log_about(logger, level, fields, "dropped a command: %s", why)


def _lost_reply(transition: Transition, row: ProcessRow) -> Reply | None:
    """The reply of the awaited command or batch, if that is over."""
    store, connection = transition.store, transition.connection
    assert row.awaited_id is not None
    if row.awaited_domain is None:
        return batch_steps.reply_of(store, connection, row.awaited_id)
    values = {"domain": row.awaited_domain, "command_id": row.awaited_id}
    found = store.rows(connection, "read_awaited", **values)
    if not found:
        return batch_steps.gone(row.awaited_id)
    type_, status, result, code, message = found[0]
    if status not in _OUTCOMES:
        return None
    if status != "COMPLETED":
        result = {"code": code, "message": message, "details": None}
    return Reply(command_id=row.awaited_id, type=type_, outcome=_OUTCOMES[status], result=result)
