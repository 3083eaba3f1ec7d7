"""The processes' half of `CommandBus`: start them, read them, steer them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from cmdbus.checks import check_id, check_operator, check_text, check_whole
from cmdbus.errors import InvalidOperationError, ProcessNotFoundError
from cmdbus.forwarding import default_headers
from cmdbus.headers import encode_with_defaults
from cmdbus.instrument_hooks import observing_send
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.arguments import check_latest, check_remark
from cmdbus.producer.connections import Connections
from cmdbus.producer.ids import new_call, new_id
from cmdbus.producer.process_records import ProcessRecord, ProcessStatus, ProcessStep
from cmdbus.producer.process_starts import START, ProcessRequest, ProcessStart, start
from cmdbus.producer.records import AuditEvent, check_status
from cmdbus.producer.requests import SendRequest, SendRules, check_conditions
from cmdbus.producer.sending import SendAttempt, Sender
from cmdbus.producer.store import Store


class Processes:
    """The methods of CommandBus for processes."""

    _connections: Connections
    _rules: SendRules
    _sender: Sender
    _store: Store

    def start_process(
        self,
        domain: str,
        type: str,
        state: Any = None,
        *,
        process_id: UUID | str | None = None,
        batch_id: UUID | str | None = None,
        version: int = 1,
        headers: Mapping[str, str] | None = None,
        connection: CallersConnection | None = None,
    ) -> UUID:
        """Starts a process of `type` in `domain` and returns its id; a worker that has its
        manager runs the first step.

        `state` is the dataclass that the manager works with, or the same as a dict, by default an
        empty one. `version` is the manager's for which the state is written: once it has been
        raised, give it, as in `version=Transfer.version`, or `upgrade` gets the state.

        `process_id` is an id of the caller's, taken once while the process is kept. With `batch_id`
        the process becomes a part of this batch, where it counts as completed if it ends COMPLETED,
        as canceled if CANCELED, and else as failed. `headers` are those of its first command.

        Raises InvalidOperationError for an id that was taken before, or a batch that is over;
        BatchNotFoundError for an unknown batch; QueueFullError and ShutdownError as `send` does.
        """
        request = ProcessRequest(domain, type, state, process_id, version, headers)
        batch = None if batch_id is None else check_id("batch_id", batch_id)
        first = SendRequest(domain, START, correlation_id=process_id, headers=headers)
        with observing_send([first], "start_process") as sending:
            started = self._start_process(request, batch, connection)
            sending.sent([started])
        return started

    def _start_process(
        self,
        request: ProcessRequest,
        batch_id: UUID | None,
        connection: CallersConnection | None,
    ) -> UUID:
        process = ProcessStart.of(request, self._rules)
        admission = self._connections.use(
            connection,
            lambda c, _: start(self._store, c, process, batch_id, joins=batch_id is not None),
            "producer",
        )
        self._sender.check_admission(process.domain, admission, 1)
        return process.process_id

    def get_process(
        self, process_id: UUID | str, *, connection: CallersConnection | None = None
    ) -> ProcessRecord | None:
        """The process `process_id` as it is now, or None if there is none."""
        values = {"process_id": check_id("process_id", process_id)}
        records = self._connections.records(ProcessRecord, connection, "read_process", **values)
        return records[0] if records else None

    def query_processes(
        self,
        type: str | None = None,
        status: ProcessStatus | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        offset: int = 0,
        *,
        domain: str | None = None,
        batch_id: UUID | str | None = None,
        connection: CallersConnection | None = None,
    ) -> list[ProcessRecord]:
        """Processes that meet every given condition, the last started first: at most `limit`,
        after leaving out `offset`.

        `domain`, `type` and `status` (a ProcessStatus or its name) are those of the processes,
        and `batch_id` that of their batch; `since` (inclusive) and `until` (exclusive) are about
        when they were started.
        """
        wanted = None if status is None else check_status(status, ProcessStatus)
        conditions = {
            **check_conditions(domain, type, since, until),
            "status": wanted,
            "batch_id": None if batch_id is None else check_id("batch_id", batch_id),
            "unfinished": wanted is not None and not ProcessStatus(wanted).terminal,
            "limit": check_whole("limit", limit, 1),
            "offset": check_whole("offset", offset, 0),
        }
        return self._connections.records(ProcessRecord, connection, "query_processes", **conditions)

    def process_steps(
        self,
        process_id: UUID | str,
        *,
        latest: int | None = None,
        connection: CallersConnection | None = None,
    ) -> list[ProcessStep]:
        """The commands that the process `process_id` has sent, or so many of the `latest`, oldest
        first, compensations among them."""
        values = {"process_id": check_id("process_id", process_id), "latest": check_latest(latest)}
        return self._connections.records(ProcessStep, connection, "read_process_steps", **values)

    def process_audit(
        self,
        process_id: UUID | str,
        *,
        latest: int | None = None,
        connection: CallersConnection | None = None,
    ) -> list[AuditEvent]:
        """What happened to the process `process_id`, or so many of the `latest` events, oldest
        first: STARTED, SENT and RECEIVED for each step, COMPENSATION_SENT and
        COMPENSATION_RECEIVED, SIGNALED, DEADLINE, SIGNAL_SENT, CANCEL_REQUESTED and RETRIED by
        operators, and its last status."""
        values = {"process_id": check_id("process_id", process_id), "latest": check_latest(latest)}
        return self._connections.records(AuditEvent, connection, "read_process_audit", **values)

    def cancel_process(
        self,
        process_id: UUID | str,
        *,
        operator: str,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Cancels the command that the process `process_id` awaits, also one in progress or in
        troubleshooting; then workers undo its completed steps, and it is CANCELED, or FAILED if
        a compensation fails. `operator` and `reason` go into the audit trails.

        Raises ProcessNotFoundError for an unknown process, and InvalidOperationError for one
        that is over or is compensated already.
        """
        self._change("cancel", "canceled", process_id, operator, reason, connection)

    def retry_process(
        self,
        process_id: UUID | str,
        *,
        operator: str,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Takes the command that the process `process_id` awaits out of troubleshooting, and
        commands to the process itself; or lets workers send the compensations again that have
        failed. `operator` and `reason` go into the audit trails.

        Raises ProcessNotFoundError for an unknown process, and InvalidOperationError for one
        that does not wait for an operator.
        """
        self._change("retry", "retried", process_id, operator, reason, connection)

    def signal_process(
        self,
        process_id: UUID | str,
        name: str,
        data: Any = None,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Sends the process `process_id` a signal: a worker calls `on_signal` of its manager with
        `name` and `data`, any JSON value. With an `operator` this goes into the audit trail, with
        the `reason`.

        Raises ProcessNotFoundError for an unknown process, InvalidOperationError for one that is
        over, QueueFullError and ShutdownError as `send` does.
        """
        if not isinstance(name, str):
            raise ValueError(f"name must be the name of a signal, not {name!r:.80}")
        id_ = check_id("process_id", process_id)
        values = {
            "process_id": id_,
            "data": self._rules.encode({"name": name, "data": data}, "signal"),
            "signal_id": new_id(),
            **check_remark(operator, reason),
        }
        with observing_send([], "signal_process") as sending:
            self._signal(id_, values, connection)
            sending.sent([id_])

    def _signal(
        self, process_id: UUID, values: dict[str, Any], connection: CallersConnection | None
    ) -> None:
        if headers := encode_with_defaults(None, default_headers()):
            values["headers"] = headers
        number = None if connection is not None else new_call()
        found, domain, admission = self._connections.use(
            connection,
            lambda c, again: self._sender.signal(c, values, SendAttempt(number, again)),
            "producer",
        )
        if found is None:
            raise ProcessNotFoundError(process_id)
        if ProcessStatus(found).terminal:
            raise InvalidOperationError(
                f"process {process_id} cannot be signaled: it is over ({found})"
            )
        self._sender.check_admission(domain, admission, 1)

    def _change(
        self,
        verb: str,
        participle: str,
        process_id: UUID | str,
        operator: str,
        reason: str | None,
        connection: CallersConnection | None,
    ) -> None:
        id_ = check_id("process_id", process_id)
        remark = {
            "operator": check_operator(operator),
            "reason": check_text("reason", reason),
        }
        found = self._connections.call(connection, f"{verb}_process", process_id=id_, **remark)
        if found is None:
            raise ProcessNotFoundError(id_)
        if found != participle:
            raise InvalidOperationError(f"process {id_} cannot be {participle}: it is {found}")
