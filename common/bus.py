"""The producer's side of the bus: send commands, look at them, steer their domains.

A request passes `Limits.check` (requests.py) and is written by `Sender` (sending.py).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from cmdbus.checks import (
    check_aware,
    check_id,
    check_name,
    check_seconds,
    check_whole,
)
from cmdbus.connections import Connection, Connections, Pool, check_encoding
from cmdbus.data import MAX_BYTES
from cmdbus.errors import CommandNotFoundError, InvalidOperationError
from cmdbus.ids import new_id
from cmdbus.records import AuditEvent, CommandRecord, DomainRecord, Status, check_status
from cmdbus.requests import Limits, SendRequest
from cmdbus.sending import Batch, Call, Sender, new_call
from cmdbus.steering import Steering
from cmdbus.store import Store
from cmdbus.troubleshooting import Troubleshooting

T = TypeVar("T")

#: Stands for "not given" where None means "no limit".
_UNSAID: Any = object()
#: `wait` looks again after 5 ms, later more seldom, at least every 200 ms.
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.2


class CommandBus:
    """Sends commands and shows what becomes of them. Safe to share between threads.

    With a DSN it keeps 1 to 4 connections of its own, opened at the first use, in a
    forked child anew; a call of its own whose connection dies is repeated once. With
    `connection=`, a call is part of the caller's transaction and never repeated.

    `on_send` sees each request first and may return a changed one: a place for
    defaults, for priorities by content, for tracing.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: Pool | None = None,
        schema: str = "cmdbus",
        priorities: Mapping[str, int] | None = None,
        max_bytes: int = MAX_BYTES,
        on_send: Callable[[SendRequest], SendRequest] | None = None,
        purge_allowed: bool = False,
    ) -> None:
        self._store = Store(schema)
        self._limits = Limits.of(priorities, max_bytes)
        self._connections = Connections(dsn, pool, schema)
        self._steering = Steering(self._store, self._connections, self._limits.priorities)
        self._on_send = on_send
        self._purge_allowed = purge_allowed
        self._sender = Sender(self._store)
        #: Commands that failed for good and wait for a person.
        self.troubleshooting = Troubleshooting(self._store, self._connections, max_bytes=max_bytes)

    def send(
        self,
        domain: str,
        type: str,
        data: Any = None,
        *,
        command_id: UUID | str | None = None,
        priority: str | int = "normal",
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        correlation_id: UUID | str | None = None,
        reply_to: str | None = None,
        max_attempts: int | None = None,
        connection: Connection | None = None,
    ) -> UUID:
        """Sends one command and returns its id; what is refused was not written."""
        request = SendRequest(
            domain,
            type,
            data,
            command_id,
            priority,
            delay,
            run_at,
            correlation_id,
            reply_to,
            max_attempts,
        )
        if self._on_send is not None:
            request = self._seen(request)
        command = self._limits.check(request, new_id())
        self._run(connection, lambda c, call: self._sender.send(c, command, call))
        return command.command_id

    def send_many(
        self, requests: Iterable[SendRequest], *, connection: Connection | None = None
    ) -> list[UUID]:
        """Sends all of them in one transaction, or none; ids in the order of the requests."""
        seen = map(self._seen, requests) if self._on_send else requests
        batch = Batch(list(seen))
        if batch.requests:
            check = self._limits.check
            self._run(connection, lambda c, call: self._sender.send_all(c, batch, check, call))
        return batch.ids

    def get(
        self, domain: str, command_id: UUID | str, *, connection: Connection | None = None
    ) -> CommandRecord | None:
        """The command as it is now, or None if the domain has none with this id."""
        check_name("domain", domain)
        id_ = check_id("command_id", command_id)
        return self._look(connection, lambda c: self._store.read(c, domain, id_))

    def wait(self, domain: str, command_id: UUID | str, timeout: float = 30.0) -> CommandRecord:
        """Returns the command once it is terminal or in troubleshooting; else TimeoutError."""
        deadline = time.monotonic() + check_seconds("timeout", timeout)
        pause = _FIRST_LOOK
        while True:
            record = self.get(domain, command_id)
            if record is None:
                raise CommandNotFoundError(domain, check_id("command_id", command_id))
            if record.status.terminal or record.status is Status.IN_TROUBLESHOOTING_QUEUE:
                return record
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"command {command_id} of domain {domain!r} is {record.status} "
                    f"after {timeout:g} s"
                )
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_LOOK)

    def cancel(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        reason: str | None = None,
        running: bool = False,
        operator: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Cancels a command that waits; with `running` also one in progress.

        Then its handler is not interrupted, but nothing that it writes through its
        context's connection lands.
        """
        self._steering.cancel(domain, command_id, running, operator, reason, connection)

    def cancel_all(
        self,
        domain: str,
        type: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        operator: str | None = None,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> int:
        """Cancels everything that waits in the domain and meets every given condition, and
        returns how many commands it canceled.

        `since` (inclusive) and `until` (exclusive) are about when commands were sent; what
        is sent after this call begins is left alone. Commands in progress, and those in
        troubleshooting, stay. Each command gets its event, with `operator` and `reason`,
        and its reply, as with `cancel`. Without `connection=` batches are transactions of
        their own, and a command that another session has locked at that moment is left.
        """
        steering = self._steering
        return steering.cancel_all(domain, type, since, until, operator, reason, connection)

    def count_waiting(
        self,
        domain: str,
        type: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        connection: Connection | None = None,
    ) -> int:
        """How many commands `cancel_all` with the same conditions would cancel now."""
        return self._steering.count_waiting(domain, type, since, until, connection)

    def reschedule(
        self,
        domain: str,
        command_id: UUID | str,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        priority: str | int | None = None,
        operator: str | None = None,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Gives a command that waits another time, another priority, or both.

        `run_at` is an aware datetime and `delay` seconds or a timedelta from now; one that
        has passed, and a delay of 0, make the command claimable at once, also in the middle
        of a retry's backoff. Its attempts stay. `operator` and `reason` go into its audit.
        CommandNotFoundError for an unknown command, InvalidOperationError for one that is
        in progress, in troubleshooting or finished.
        """
        self._steering.reschedule(
            domain, command_id, run_at, delay, priority, operator, reason, connection
        )

    def query(
        self,
        domain: str | None = None,
        status: Status | str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        offset: int = 0,
        *,
        connection: Connection | None = None,
    ) -> list[CommandRecord]:
        """Commands that meet every given condition, the last sent first.

        `since` (inclusive) and `until` (exclusive) are about when they were sent.
        """
        conditions = {
            "domain": None if domain is None else check_name("domain", domain),
            "status": None if status is None else check_status(status),
            "type": None if type is None else check_name("type", type),
            "since": check_aware("since", since),
            "until": check_aware("until", until),
            "limit": check_whole("limit", limit, 1),
            "offset": check_whole("offset", offset, 0),
        }
        return self._look(connection, lambda c: self._store.query(c, **conditions))

    def audit(
        self, domain: str, command_id: UUID | str, *, connection: Connection | None = None
    ) -> list[AuditEvent]:
        """What happened to the command, oldest first; empty if there is none with this id."""
        check_name("domain", domain)
        id_ = check_id("command_id", command_id)
        return self._look(connection, lambda c: self._store.audit(c, domain, id_))

    def snapshot(self, domain: str, *, connection: Connection | None = None) -> dict[str, Any]:
        """Counts of one moment: depth (ready + scheduled), ready, scheduled, in_progress,
        troubleshooting; oldest_age in seconds; shutdown, whether sends are refused."""
        check_name("domain", domain)
        return self._look(connection, lambda c: self._store.snapshot(c, domain))

    def domains(self, *names: str, connection: Connection | None = None) -> list[DomainRecord]:
        """Every domain, or those named, that has commands to run or settings, with counts by
        type: a type that no worker knows stays here, and grows old."""
        checked = [check_name("domain", name) for name in names] or None
        return self._look(connection, lambda c: self._store.domains(c, checked))

    def configure(
        self,
        domain: str,
        *,
        max_depth: int | None = _UNSAID,
        warn_depth: int | None = _UNSAID,
        keep: timedelta = _UNSAID,
        accepting: bool = _UNSAID,
        operator: str | None = None,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Changes what is given; None removes a limit.

        `max_depth` refuses sends while so many commands wait (concurrent senders can
        pass it by what they have in flight), `warn_depth` logs a warning, `keep` says
        how long finished commands stay, `accepting=False` refuses all sends. A change is
        recorded with `operator` and `reason`; see `domain_audit`.
        """
        given: dict[str, object] = {"max_depth": max_depth, "warn_depth": warn_depth}
        given |= {"keep": keep, "accepting": accepting}
        given = {name: value for name, value in given.items() if value is not _UNSAID}
        self._steering.configure(domain, given, operator, reason, connection)

    def pause(
        self,
        domain: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Workers start nothing more of this domain; what runs, ends. Sends are taken.
        Recorded with `operator` and `reason`; see `domain_audit`."""
        self._steering.set_paused(domain, True, operator, reason, connection)

    def resume(
        self,
        domain: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Ends a pause; recorded like it."""
        self._steering.set_paused(domain, False, operator, reason, connection)

    def domain_audit(
        self, domain: str, *, connection: Connection | None = None
    ) -> list[AuditEvent]:
        """Pauses, resumptions and changes of settings, oldest first, with the operator, the
        reason as the message, and the settings before and after. Calls that changed nothing
        and named no operator are not recorded."""
        return self._steering.audit(domain, connection)

    def purge(self, domain: str, *, connection: Connection | None = None) -> int:
        """Removes everything that waits in the domain, with every trace; for tests."""
        check_name("domain", domain)
        if not self._purge_allowed:
            raise InvalidOperationError(
                f"purge of domain {domain!r} refused: it destroys commands without a trace; "
                f"make the bus with CommandBus(..., purge_allowed=True) where that is wanted"
            )
        return self._look(connection, lambda c: self._store.purge(c, domain))

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _seen(self, request: SendRequest) -> SendRequest:
        assert self._on_send is not None
        changed = self._on_send(request)
        if not isinstance(changed, SendRequest):
            raise ValueError(f"on_send must return a SendRequest, not {type(changed).__name__}")
        return changed

    def _run(
        self, connection: Connection | None, send: Callable[[Connection, Call | None], None]
    ) -> None:
        """Sends in the caller's transaction, or as a call that may be repeated."""
        if connection is not None:
            return send(check_encoding(connection), None)
        number = new_call()
        self._connections.run(lambda c, again: send(c, Call(number, again)))

    def _look(self, connection: Connection | None, work: Callable[[Connection], T]) -> T:
        """Runs what may be repeated without further care."""
        return self._connections.use(connection, lambda conn, again: work(conn))
