"""The producer's side of the bus: send commands, read them, steer their domains."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from cmdbus.checks import (
    check_iterable,
    check_key,
    check_name,
    check_seconds,
    check_whole,
)
from cmdbus.data import MAX_BYTES
from cmdbus.errors import InvalidOperationError
from cmdbus.forwarding import default_headers
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.payloads.forms import Encoder
from cmdbus.producer.batches import Batches
from cmdbus.producer.calls import Call, Calls
from cmdbus.producer.connections import WAIT_SECONDS, Connections, Pool
from cmdbus.producer.domains import UNHANDLED_AFTER_SECONDS
from cmdbus.producer.explaining import Explaining
from cmdbus.producer.history import Histories
from cmdbus.producer.ids import new_id
from cmdbus.producer.nodes import Nodes
from cmdbus.producer.operations import Operations
from cmdbus.producer.pages import Pages
from cmdbus.producer.processes import Processes
from cmdbus.producer.records import (
    AuditEvent,
    CommandRecord,
    DomainRecord,
    Status,
    Waiting,
    check_status,
    domains_of,
)
from cmdbus.producer.replies import Readers, Replies
from cmdbus.producer.requests import SendRequest, SendRules, check_command, check_conditions
from cmdbus.producer.rights import ReadingRights
from cmdbus.producer.searching import Searching
from cmdbus.producer.send_calls import SendCalls
from cmdbus.producer.send_hook import Hook
from cmdbus.producer.senders import Senders
from cmdbus.producer.store import Store
from cmdbus.producer.troubleshooting import Troubleshooting
from cmdbus.producer.waits import CommandWait
from cmdbus.uniqueness import EXISTING

#: Rows of each table that one statement of a purge removes.
_PURGED_ROWS = 1000


class CommandBus(
    Batches,
    Processes,
    Operations,
    Explaining,
    Histories,
    Nodes,
    Pages,
    ReadingRights,
    Searching,
    Senders,
):
    """Sends commands and shows what becomes of them. Safe to share between threads.

    With a DSN it keeps 1 to 4 connections of its own, opened at the first use in each process,
    one more from the first `call` on, and two for each loop over `replies`. A call whose
    connection dies is repeated once. With `connection`, one of psycopg, SQLAlchemy (a session,
    too) or a DB-API driver, a call is part of the caller's transaction and never repeated.

    Each call may raise ValueError for a wrong argument, before anything is written;
    DatabaseUnavailableError if no connection can be made; SchemaError if the schema is missing
    or older than this code; and psycopg.Error for what the server refuses. Everything else
    that a call raises is a CmdbusError.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: Pool | None = None,
        schema: str = "cmdbus",
        priorities: Mapping[str, int] | None = None,
        max_bytes: int = MAX_BYTES,
        encoder: Encoder | None = None,
        on_send: Hook | None = None,
        prepare: bool = True,
        purge_allowed: bool = False,
        timeout: float = WAIT_SECONDS,
    ) -> None:
        """Opens nothing yet. Takes a `dsn` or a `pool`, a psycopg_pool.ConnectionPool that
        the caller closes.

        `schema` is the one that `cmdbus init` made. `priorities` are further labels besides
        high, normal and low, each with its value from 0 to 10. `max_bytes` bounds the data of a
        command, and results that operators give. `encoder` is called with what has no form in JSON
        and returns something that has, or raises TypeError. `on_send` gets each request first and
        may return a changed one, a place for defaults, keys and priorities by content, or raise
        SendRefusedError: then nothing of the call is written. What it changed is in the audit
        trail.
        Without `prepare` nothing is prepared on the server, for a `pool` or a `connection`
        behind a pooler that gives each transaction to another session; with a `dsn` such a
        pooler is recognised. `purge_allowed` is for tests; see `purge`. `timeout`: seconds for
        which a call waits for one of the connections that a `dsn` leads to.
        """
        rules, store = SendRules.of(priorities, max_bytes, encoder), Store(schema, prepare=prepare)
        connections = Connections(dsn, pool, store, timeout)
        super().__init__(connections, rules, store, SendCalls(connections, rules, store, on_send))
        self._purge_allowed = purge_allowed
        self._troubleshooting = Troubleshooting(self._connections, rules)
        self._calls = Calls(self._connections, schema)
        self._readers = Readers(self._connections, store)

    @property
    def troubleshooting(self) -> Troubleshooting:
        """Commands that failed for good and wait for an operator: list, count, page, summary,
        groups, retry, cancel, complete, retry_all, cancel_all, complete_all."""
        return self._troubleshooting

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
        key: str | None = None,
        unique: str | None = None,
        on_conflict: str = "reject",
        unique_until: str | float | timedelta = "finished",
        expires: float | timedelta | datetime | None = None,
        headers: Mapping[str, str] | None = None,
        connection: CallersConnection | None = None,
    ) -> UUID:
        """Sends one command and returns its id; a refused send has written nothing.

        `domain` and `type` choose the handler, and `data` is any JSON value, or has
        a form in JSON, like a dataclass. See SendRequest for
        `command_id`, `priority`, `delay`, `run_at`, `correlation_id`, `reply_to`, `max_attempts`,
        `key`, `unique`, `on_conflict`, `unique_until`, `expires` and `headers`.

        Raises DuplicateCommandError for an id that was sent before or a unique key that is held,
        QueueFullError (with `retry_after`) above the domain's max_depth or, with its `key`, above
        its max_waiting_per_key, and ShutdownError for a closed domain.
        """
        options = priority, delay, run_at, correlation_id, reply_to, max_attempts, key
        more = unique, on_conflict, unique_until, expires, headers
        request = SendRequest(domain, type, data, command_id, *options, *more)
        return self._sends.one(request, connection)

    def send_many(
        self, requests: Iterable[SendRequest], *, connection: CallersConnection | None = None
    ) -> list[UUID]:
        """Sends all `requests` in one transaction, or none, and returns their ids in order, with
        those of existing commands in their places. Raises what `send` raises, and names the
        request by its number: "request 3 of 500" is `requests[2]`."""
        given = check_iterable("requests", requests, "SendRequests")
        return self._sends.many(list(given), connection)

    def call(
        self,
        domain: str,
        type: str,
        data: Any = None,
        *,
        timeout: float = 30.0,
        priority: str | int = "normal",
        correlation_id: UUID | str | None = None,
        max_attempts: int | None = None,
        key: str | None = None,
        expires: float | timedelta | datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Sends one command, waits for its end and returns the handler's result. See `send` for
        `domain`, `type`, `data`, `priority`, `correlation_id`, `max_attempts`, `key`, `expires` and
        `headers`.

        Raises what `send` raises; CommandFailedError (with code, message, details, command_id and
        status) if the command is FAILED or CANCELED or comes to the troubleshooting queue; and
        CallTimeoutError, a TimeoutError with domain and command_id, if it has not ended after
        `timeout` seconds: then it is not canceled.
        """
        options = priority, None, None, correlation_id, None, max_attempts, key
        request = SendRequest(domain, type, data, None, *options, expires=expires, headers=headers)
        return self._calls.complete(self._begun(request, timeout))

    def _begun(self, request: SendRequest, timeout: float) -> Call:
        seconds = check_seconds("timeout", timeout)
        request = self._sends.apply_hook(request)
        command = self._rules.check(request, new_id(), default_headers())
        if command.own or command.on_conflict == EXISTING:
            raise ValueError(
                "on_send gave a called command an id or on_conflict='existing': a call sends a "
                "command with an id of the bus's"
            )

        def send(connection: CallersConnection | None, caller: int, within: float) -> None:
            self._sends.for_call(request, command, caller, connection, within)

        return Call(self._calls, command.domain, command.command_id, seconds, send)

    def replies(
        self,
        domain: str,
        timeout: float | None = None,
        *,
        lease: float = 30.0,
        shared: bool = False,
    ) -> Replies:
        """Iterates over the replies that come to `domain`: each has command_id, type, outcome,
        result, correlation_id, reply_id and created_at. It ends when none has come for `timeout`
        seconds.

        A reply is acknowledged when the body of the loop is through; `break`, an exception and
        `close()` release it. Its lease of `lease` seconds is renewed while the body runs, and
        the reply of a program that crashes comes again when it ends. Where workers handle the
        replies of `domain`, InvalidOperationError, unless it is `shared` with them.
        """
        return self._readers.open(domain, timeout, lease, shared)

    def get(
        self, domain: str, command_id: UUID | str, *, connection: CallersConnection | None = None
    ) -> CommandRecord | None:
        """The command as it is now, or None if `domain` has none with this `command_id`."""
        records = self._connections.records(
            CommandRecord, connection, "read_command", **check_command(domain, command_id)
        )
        return records[0] if records else None

    def wait(self, domain: str, command_id: UUID | str, timeout: float = 30.0) -> CommandRecord:
        """Returns the command `command_id` of `domain` once it is terminal or in
        troubleshooting. Raises TimeoutError if it is neither after `timeout` seconds, and
        CommandNotFoundError for an unknown command.
        """
        return self._waited(CommandWait(domain, command_id, timeout))

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
        key: str | None = None,
        connection: CallersConnection | None = None,
    ) -> list[CommandRecord]:
        """Commands that meet every given condition, the last sent first: at most `limit`, after
        leaving out `offset`.

        `domain`, `status` (a Status or its name), `type` and `key` are those of the commands;
        `since` (inclusive) and `until` (exclusive) are about when they were sent.
        """
        conditions = {
            **check_conditions(domain, type, since, until),
            "key": check_key("key", key),
            "status": None if status is None else check_status(status),
            "limit": check_whole("limit", limit, 1),
            "offset": check_whole("offset", offset, 0),
        }
        return self._connections.records(CommandRecord, connection, "query_commands", **conditions)

    def audit(
        self, domain: str, command_id: UUID | str, *, connection: CallersConnection | None = None
    ) -> list[AuditEvent]:
        """What happened to the command `command_id` of `domain`, oldest first; empty if there
        is none with this id."""
        return self._connections.records(
            AuditEvent, connection, "read_audit", **check_command(domain, command_id)
        )

    def snapshot(
        self, domain: str, *, connection: CallersConnection | None = None
    ) -> dict[str, Any]:
        """Counts of `domain` at one moment: depth (ready + scheduled + limited), ready, scheduled,
        limited, in_progress, troubleshooting; oldest_age in seconds; shutdown, whether sends are
        refused."""
        found = self.domains(domain, connection=connection)
        waiting = found[0].all if found else Waiting()
        shutdown = bool(found) and not found[0].accepting
        return {"depth": waiting.depth, **asdict(waiting), "shutdown": shutdown}

    def domains(
        self, *names: str, connection: CallersConnection | None = None
    ) -> list[DomainRecord]:
        """Every domain, or those of `names`, that has unfinished commands or settings, with
        counts by type."""
        checked = [check_name("domain", name) for name in names] or None
        values: dict[str, Any] = {"domains": checked, "unhandled_after": UNHANDLED_AFTER_SECONDS}
        return domains_of(self._connections.rows(connection, "read_domains", "monitor", **values))

    def purge(self, domain: str, *, connection: CallersConnection | None = None) -> int:
        """Removes the commands that wait in `domain`, with every trace, and returns their
        number; for tests. Only the role that owns the schema may do it.

        Raises InvalidOperationError unless the bus was made with `purge_allowed=True`.
        """
        check_name("domain", domain)
        if not self._purge_allowed:
            raise InvalidOperationError(
                f"purge of domain {domain!r} refused: it destroys commands without a trace; "
                f"make the bus with CommandBus(..., purge_allowed=True) where that is wanted"
            )
        values: dict[str, Any] = {"domain": domain, "count": _PURGED_ROWS}
        total = 0
        while removed := int(self._connections.row(connection, "purge", "owner", **values)[0]):
            total += removed
        return total

    def close(self) -> None:
        """Closes its connections, but not a pool of the caller's; calls fail from now on."""
        self._readers.close()
        self._connections.close()
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
