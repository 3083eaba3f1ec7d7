"""Every statement that the producer's side sends to PostgreSQL. Decides nothing.

Each method takes the connection to use, so that it works in a caller's transaction
as well as alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from cmdbus.checks import check_schema
from cmdbus.database.adapters import own_cursor
from cmdbus.database.statements import statement
from cmdbus.producer.domains import SETTINGS, UNHANDLED_AFTER_SECONDS
from cmdbus.producer.records import (
    AuditEvent,
    CommandRecord,
    DomainRecord,
    TroubleCount,
    TroubleRecord,
    domains_of,
    event_of,
    record_of,
    trouble_count_of,
    trouble_of,
)
from cmdbus.producer.requests import Outgoing

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]

#: Rows in one piece of a COPY: large enough to be quick, small enough to stream.
_COPY_ROWS = 500
#: Rows of each table that one statement of a purge removes.
_PURGED_ROWS = 1000
_COPY_NULL = "\\N"
_SNAPSHOT = (
    "depth",
    "ready",
    "scheduled",
    "in_progress",
    "troubleshooting",
    "oldest_age",
    "shutdown",
)


class AdmissionResult(NamedTuple):
    """What a domain says to commands that arrive; see admit and enqueue in the schema."""

    #: None, "closed", "full", "duplicate" or "repeated".
    refusal: str | None
    #: Commands that wait, counted only where the domain has limits.
    depth: int | None
    max_depth: int | None
    warn_depth: int | None
    #: Seconds that the oldest command of a full domain has waited.
    oldest_age: float | None


class Admission(NamedTuple):
    domain: str
    admission: AdmissionResult
    #: The server's clock.
    now: datetime


class ResolvedChunk(NamedTuple):
    resolved: int
    #: From when to when the next batch is; last is None if there is none.
    last: datetime | None
    before: datetime


class Store:
    def __init__(self, schema: str, *, prepare: bool = True) -> None:
        self.schema = check_schema(schema)
        #: None lets the driver prepare statements that it executes often.
        self._prepare = None if prepare else False

    def enqueue(
        self, connection: Connection, command: Outgoing, *, call: int | None, again: bool
    ) -> AdmissionResult:
        """Sends one. `call` and `again` make a repetition harmless; see the schema's enqueue."""
        delay = None if command.delay is None else command.delay.total_seconds()
        values = {**command._asdict(), "delay": delay, "call": call, "again": again}
        row = self._row(connection, "enqueue", values)
        return AdmissionResult(*row)

    def admit(self, connection: Connection, counts: dict[str, int]) -> list[Admission]:
        rows = self._rows(
            connection, "admit", {"domains": list(counts), "counts": list(counts.values())}
        )
        return [Admission(domain, AdmissionResult(*answer), now) for domain, *answer, now in rows]

    def identify(
        self, connection: Connection, keys: Sequence[tuple[str, UUID]], call: int, *, brought: bool
    ) -> list[tuple[str, UUID, str]]:
        """Takes ids; returns (domain, id, refusal) of those it did not get. `brought` says
        that callers made them."""
        domains, command_ids = zip(*keys, strict=True)
        parameters = {
            "domains": list(domains),
            "command_ids": list(command_ids),
            "call": call,
            "brought": brought,
        }
        return [(row[0], row[1], row[2]) for row in self._rows(connection, "identify", parameters)]

    def already_sent(
        self,
        connection: Connection,
        key: tuple[str, UUID],
        *,
        brought: bool,
        call: int,
        again: bool,
    ) -> bool:
        """Whether the other try of this call did it; waits for that try if it is on its way."""
        parameters = {
            "domain": key[0],
            "command_id": key[1],
            "brought": brought,
            "call": call,
            "again": again,
        }
        return bool(self._row(connection, "landed", parameters)[0])

    def wait_for_send(self, connection: Connection, call: int) -> None:
        """Until a call's first try has ended, and with a fresh snapshot after it."""
        self._execute(connection, "wait_for_call", {"call": call})
        if not connection.autocommit:
            connection.commit()

    def copy(self, connection: Connection, commands: Iterable[Outgoing], now: datetime) -> None:
        """Writes the rows of admitted and identified commands, as they come."""
        later: list[str] = []
        self._copy(connection, "copy_ready", _lines_for_ready(commands, now, later))
        if later:
            self._copy(connection, "copy_scheduled", iter(later))

    def read(self, connection: Connection, domain: str, command_id: UUID) -> CommandRecord | None:
        rows = self._rows(connection, "read_command", {"domain": domain, "command_id": command_id})
        return record_of(rows[0]) if rows else None

    def query(self, connection: Connection, **conditions: object) -> list[CommandRecord]:
        return [record_of(row) for row in self._rows(connection, "query_commands", conditions)]

    def audit(self, connection: Connection, domain: str, command_id: UUID) -> list[AuditEvent]:
        parameters = {"domain": domain, "command_id": command_id}
        return [event_of(row) for row in self._rows(connection, "read_audit", parameters)]

    def snapshot(self, connection: Connection, domain: str) -> dict[str, Any]:
        row = self._row(connection, "read_snapshot", {"domain": domain})
        return dict(zip(_SNAPSHOT, row, strict=True))

    def domains(self, connection: Connection, domains: Sequence[str] | None) -> list[DomainRecord]:
        values = {
            "domains": None if domains is None else list(domains),
            "unhandled_after": UNHANDLED_AFTER_SECONDS,
        }
        return domains_of(self._rows(connection, "read_domains", values))

    def trouble(
        self, connection: Connection, conditions: Mapping[str, object]
    ) -> list[TroubleRecord]:
        return [trouble_of(row) for row in self._rows(connection, "read_trouble", conditions)]

    def count_trouble(self, connection: Connection, conditions: Mapping[str, object]) -> int:
        return int(self._row(connection, "count_trouble", conditions)[0])

    def summarize_trouble(
        self, connection: Connection, conditions: Mapping[str, object]
    ) -> list[TroubleCount]:
        rows = self._rows(connection, "summarize_trouble", conditions)
        return [trouble_count_of(row) for row in rows]

    def resolve(self, connection: Connection, parameters: Mapping[str, object]) -> str | None:
        """The status in which it was found, None if it is unknown; see the schema's resolve."""
        return self._found(connection, "resolve", parameters)

    def resolve_chunk(
        self, connection: Connection, parameters: Mapping[str, object]
    ) -> ResolvedChunk:
        return ResolvedChunk(*self._row(connection, "resolve_batch", parameters))

    def configure(
        self,
        connection: Connection,
        domain: str,
        settings: Mapping[str, object],
        remark: Mapping[str, object],
    ) -> None:
        """`remark` is the operator and the reason."""
        values = {**dict.fromkeys(SETTINGS), **settings, **remark}
        self._execute(
            connection, "configure_domain", {**values, "domain": domain, "given": list(settings)}
        )

    def set_paused(
        self, connection: Connection, domain: str, paused: bool, remark: Mapping[str, object]
    ) -> None:
        self._execute(connection, "set_paused", {"domain": domain, "paused": paused, **remark})

    def domain_audit(self, connection: Connection, domain: str) -> list[AuditEvent]:
        rows = self._rows(connection, "read_domain_audit", {"domain": domain})
        return [event_of(row) for row in rows]

    def purge(self, connection: Connection, domain: str) -> int:
        values, total = {"domain": domain, "count": _PURGED_ROWS}, 0
        while removed := int(self._row(connection, "purge", values)[0]):
            total += removed
        return total

    def cancel(self, connection: Connection, parameters: Mapping[str, object]) -> str | None:
        """`canceled`, or where the command is: running, troubleshooting, finished, or None."""
        return self._found(connection, "cancel", parameters)

    def reschedule(self, connection: Connection, parameters: Mapping[str, object]) -> str | None:
        """`waiting` if it was done, or where the command is, as for `cancel`."""
        return self._found(connection, "reschedule", parameters)

    def cancel_scheduled(
        self, connection: Connection, parameters: Mapping[str, object]
    ) -> tuple[int, datetime, UUID | None]:
        """How many; when all that is canceled was sent before; after which id the next begins."""
        canceled, before, last = self._row(connection, "cancel_scheduled", parameters)
        return canceled, before, last

    def cancel_ready(
        self, connection: Connection, parameters: Mapping[str, object]
    ) -> tuple[int, int | None, int | None]:
        """How many, and after which priority and row the next batch begins."""
        canceled, priority, row = self._row(connection, "cancel_ready", parameters)
        return canceled, priority, row

    def count_waiting(self, connection: Connection, conditions: Mapping[str, object]) -> int:
        return int(self._row(connection, "count_waiting", conditions)[0])

    def _found(
        self, connection: Connection, name: str, parameters: Mapping[str, object]
    ) -> str | None:
        """A status, or None if it is unknown."""
        found = self._row(connection, name, parameters)[0]
        return None if found is None else str(found)

    def _execute(
        self, connection: Connection, name: str, parameters: Mapping[str, Any]
    ) -> psycopg.Cursor[Row]:
        # In binary: the session of a caller's connection may write times and intervals in a way
        # that the driver cannot read.
        return own_cursor(connection).execute(
            statement(name, self.schema), parameters, prepare=self._prepare, binary=True
        )

    def _rows(self, connection: Connection, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        return self._execute(connection, name, parameters).fetchall()

    def _row(self, connection: Connection, name: str, parameters: Mapping[str, Any]) -> Row:
        row = self._execute(connection, name, parameters).fetchone()
        assert row is not None, f"{name} returns exactly one row"
        return row

    def _copy(self, connection: Connection, name: str, lines: Iterator[str]) -> None:
        with own_cursor(connection).copy(statement(name, self.schema)) as copy:
            while piece := "".join(islice(lines, _COPY_ROWS)):
                copy.write(piece)


def _lines_for_ready(
    commands: Iterable[Outgoing], now: datetime, later: list[str]
) -> Iterator[str]:
    """Lines of due commands; those of the others go to `later`. In UTC: in a zone with daylight
    saving time, Python adds to the time on the clock."""
    now = now.astimezone(UTC)
    for command in commands:
        due = command.run_at if command.delay is None else now + command.delay
        if due is not None and due > now:
            later.append(f"{_copy_line(command)}\t{due.isoformat()}\n")
        else:
            yield f"{_copy_line(command)}\n"


def _copy_line(command: Outgoing) -> str:
    """In COPY's text format. Only data can hold a backslash, and nothing a tab or newline:
    JSON escapes them, names do not have them."""
    domain, type_, data, command_id, _, priority, _, _, correlation_id, reply_to, attempts = command
    data = data.replace("\\", "\\\\")
    return (
        f"{domain}\t{priority}\t{command_id.int:032x}\t{type_}\t{data}\t{correlation_id.int:032x}"
        f"\t{reply_to or _COPY_NULL}\t{attempts or _COPY_NULL}"
    )
