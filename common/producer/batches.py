"""The methods of `CommandBus` about batches: commands that are sent together and end together."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from cmdbus.checks import (
    check_aware,
    check_id,
    check_name,
    check_operator,
    check_text,
    check_whole,
)
from cmdbus.clock import time
from cmdbus.database.pool import Connection
from cmdbus.errors import BatchNotFoundError, InvalidOperationError
from cmdbus.forwarding import default_headers
from cmdbus.instrument_hooks import observing_send
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.batch_requests import Source, encoded
from cmdbus.producer.bulk_send import BulkSend
from cmdbus.producer.connections import Connections
from cmdbus.producer.ids import new_call, new_id
from cmdbus.producer.positions import UNNAMED
from cmdbus.producer.process_starts import ProcessRequest, ProcessStart, start, starts_of
from cmdbus.producer.records import (
    AuditEvent,
    BatchRecord,
    BatchStatus,
    CommandRecord,
    Status,
    check_status,
)
from cmdbus.producer.requests import Outgoing, SendRequest, SendRules
from cmdbus.producer.sending import SendAttempt, Sender
from cmdbus.producer.steering import Steering, canceled_chunks
from cmdbus.producer.store import Store
from cmdbus.producer.waits import BatchWait, Wait

if TYPE_CHECKING:
    from cmdbus.producer.send_calls import SendCalls

R = TypeVar("R", CommandRecord, BatchRecord)


class BatchCreation:
    """Writes the commands in parts, as they are read, and then the batch, in one transaction."""

    def __init__(
        self,
        store: Store,
        sender: Sender,
        rules: SendRules,
        source: Source,
        values: Mapping[str, object],
        after: Sequence[Outgoing | None],
        starts: Sequence[ProcessStart],
    ) -> None:
        """`after`: what is sent when the batch is complete, and when it is canceled."""
        self.batch_id = new_id()
        #: Number of its commands and processes, once they are written.
        self.total = 0
        self._store, self._sender, self._rules = store, sender, rules
        self._source, self._starts = source, starts
        on_complete, on_cancel = map(encoded, after)
        self._values = {**values, "on_complete": on_complete, "on_cancel": on_cancel}
        # Ids of the caller's are taken now, so that the batch can send these commands later.
        own = [SendRequest(c.domain, c.type, command_id=c.command_id) for c in after if c and c.own]
        self._own = BulkSend(own, positions=UNNAMED)

    def write(self, connection: Connection, attempt: SendAttempt) -> None:
        self._sender.wait_for_first_try(connection, attempt)
        with self._sender.transaction(connection):
            if attempt.number is not None and self._store.value(
                connection, "batch_exists", batch_id=self.batch_id, call=attempt.number
            ):
                return
            total = len(self._starts)
            for part, positions in self._source.parts():
                call = None if attempt.number is None else new_call()
                bulk = BulkSend(part, positions=positions)
                self._sender.write(connection, bulk, self._rules.check, call, self.batch_id)
                total += len(part)
            for process in self._starts:
                admission = start(self._store, connection, process, self.batch_id)
                self._sender.check_admission(process.domain, admission, 1)
            if not total:
                raise ValueError("Batch must contain at least one command")
            self.total = total
            if self._own.requests:
                self._sender.identify(connection, self._own, new_call())
            self._store.value(
                connection, "create_batch", batch_id=self.batch_id, **self._values, total=total
            )


class Batches(Steering):
    """The methods of CommandBus about batches."""

    def __init__(
        self, connections: Connections, rules: SendRules, store: Store, sends: "SendCalls"
    ) -> None:
        super().__init__(connections, rules.priorities)
        self._rules, self._sends = rules, sends
        self._store, self._sender = store, sends.sender

    def create_batch(
        self,
        domain: str,
        requests: Iterable[SendRequest],
        *,
        name: str | None = None,
        data: Any = None,
        on_complete: SendRequest | None = None,
        on_cancel: SendRequest | None = None,
        processes: Iterable[ProcessRequest] = (),
        connection: CallersConnection | None = None,
    ) -> UUID:
        """Sends all `requests` as a batch, in one transaction, and returns the batch's id.
        `processes` are started as a part of it, see `start_process`.

        `requests` may be an iterator of any length: it is read in parts, and memory does not grow
        with it. A call whose connection dies is repeated only if `requests` can be read again.
        The commands may be of any domains; the batch is listed under `domain`, which also says
        how long it is kept once it is over. `name` and `data`, any JSON value, are for you.

        When all commands are COMPLETED, FAILED or CANCELED, `on_complete` is sent; if the batch
        was canceled, `on_cancel` is. Both get the batch's id as correlation id, and neither is
        part of the batch.

        Raises what `send_many` and `start_process` raise, and ValueError if there is neither a
        request nor a process.
        """
        values = {"domain": domain, "name": name, "data": data}
        after = on_complete, on_cancel
        known = requests if isinstance(requests, list | tuple) else ()
        with observing_send(known, "create_batch") as sending:
            creation = self._creation(values, requests, after, processes)
            self._sends.run(connection, creation.write)
            sending.sent([creation.batch_id], creation.total)
        return creation.batch_id

    def _creation(
        self,
        given: Mapping[str, Any],
        requests: Iterable[SendRequest],
        after: Sequence[SendRequest | None],
        processes: Iterable[ProcessRequest],
    ) -> BatchCreation:
        values = {
            "domain": check_name("domain", given["domain"]),
            "name": check_text("name", given["name"]),
            "data": self._rules.encode(given["data"]),
        }
        checked = [self._after(request) for request in after]
        source = Source(requests, self._sends.apply_hook_to)
        starts = starts_of(processes, self._rules)
        return BatchCreation(
            self._store, self._sender, self._rules, source, values, checked, starts
        )

    def get_batch(
        self, batch_id: UUID | str, *, connection: CallersConnection | None = None
    ) -> BatchRecord | None:
        """The batch as it is now, or None if there is none with this `batch_id`."""
        values = {"batch_id": check_id("batch_id", batch_id)}
        records = self._connections.records(BatchRecord, connection, "read_batch", **values)
        return records[0] if records else None

    def list_batches(
        self,
        status: BatchStatus | str | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        offset: int = 0,
        *,
        connection: CallersConnection | None = None,
    ) -> list[BatchRecord]:
        """Batches that meet every given condition, the newest first: at most `limit`, after
        leaving out `offset`.

        `status` (a BatchStatus or its name) and `name` are those of the batches; `since`
        (inclusive) and `until` (exclusive) are about when they were created.
        """
        conditions = {
            "status": None if status is None else check_status(status, BatchStatus),
            "name": check_text("name", name),
            "since": check_aware("since", since),
            "until": check_aware("until", until),
            "limit": check_whole("limit", limit, 1),
            "offset": check_whole("offset", offset, 0),
        }
        return self._connections.records(BatchRecord, connection, "query_batches", **conditions)

    def batch_commands(
        self,
        batch_id: UUID | str,
        status: Status | str | None = None,
        limit: int = 100,
        offset: int = 0,
        *,
        connection: CallersConnection | None = None,
    ) -> list[CommandRecord]:
        """The commands of the batch `batch_id`, or those in a `status`, the last sent first: at
        most `limit`, after leaving out `offset`."""
        conditions = {
            "batch_id": check_id("batch_id", batch_id),
            "status": None if status is None else check_status(status),
            "limit": check_whole("limit", limit, 1),
            "offset": check_whole("offset", offset, 0),
        }
        return self._connections.records(
            CommandRecord, connection, "query_batch_commands", **conditions
        )

    def batch_audit(
        self, batch_id: UUID | str, *, connection: CallersConnection | None = None
    ) -> list[AuditEvent]:
        """What happened to the batch `batch_id`, oldest first: BATCH_CREATED, BATCH_STARTED,
        BATCH_CANCEL_REQUESTED, and BATCH_COMPLETED or BATCH_CANCELED, each at most once; empty if
        there is none with this id. Its commands have audit trails of their own."""
        values = {"batch_id": check_id("batch_id", batch_id)}
        return self._connections.records(AuditEvent, connection, "read_batch_audit", **values)

    def cancel_batch(
        self,
        batch_id: UUID | str,
        *,
        reason: str | None = None,
        operator: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Cancels the commands of the batch `batch_id` that wait, for their first execution or
        for a retry, each with its event and its reply, and its processes that no worker has
        begun; nothing can be added from now on. Commands in progress end, those in
        troubleshooting wait for an operator as before, and so do other processes; then the batch
        is CANCELED. `operator` and `reason` go into the audit trails.

        Without `connection` each 200 are a transaction of their own; stewards cancel what this
        call leaves if it is cut off. Raises BatchNotFoundError for an unknown batch, and
        InvalidOperationError for one that is over.
        """
        id_ = check_id("batch_id", batch_id)
        values = {
            "batch_id": id_,
            "operator": None if operator is None else check_operator(operator),
            "reason": check_text("reason", reason),
        }

        def request(connection: Connection, again: bool) -> tuple[str | None, bool]:
            return self._store.value(connection, "cancel_batch", **values), again

        status, again = self._connections.use(connection, request, "producer")
        if status is None:
            raise BatchNotFoundError(id_)
        known = BatchStatus(status)
        if known.terminal and not (again and known is BatchStatus.CANCELED):
            raise InvalidOperationError(f"batch {id_} cannot be canceled: it is {known}")
        cancel = partial(self._connections.row, connection, "cancel_in_batch", "producer")
        for _ in canceled_chunks(id_, cancel):
            pass

    def wait_batch(self, batch_id: UUID | str, timeout: float = 30.0) -> BatchRecord:
        """Returns the batch `batch_id` once it is over. Raises TimeoutError if it is not after
        `timeout` seconds, and BatchNotFoundError for an unknown batch."""
        return self._waited(BatchWait(batch_id, timeout))

    def _waited(self, wait: Wait[R]) -> R:
        with wait.observed():
            while (pause := wait.pause_after(records := self._poll(wait))) is not None:
                time.sleep(pause)
        return records[0]

    def _poll(self, wait: Wait[R], *, connection: CallersConnection | None = None) -> list[R]:
        return self._connections.records(
            wait.kind, connection, wait.statement, within=wait.within, **wait.values
        )

    def _after(self, request: SendRequest | None) -> Outgoing | None:
        """What is sent after a batch."""
        if request is None:
            return None
        if not isinstance(request, SendRequest):
            raise ValueError(
                f"on_complete and on_cancel must be SendRequests, not {type(request).__name__}"
            )
        command = self._rules.check(self._sends.apply_hook(request), new_id(), default_headers())
        if command.unique_key is not None:
            raise ValueError(
                "on_complete and on_cancel take no unique key: what a batch sends at its end is "
                "not refused"
            )
        return command
