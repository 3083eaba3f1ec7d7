"""How the producer's side executes statements. Decides nothing."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from cmdbus.arrays import texts
from cmdbus.checks import check_schema
from cmdbus.database.adapters import Row, own_cursor
from cmdbus.database.executor import Executor
from cmdbus.database.pool import Connection
from cmdbus.database.statements import call, render
from cmdbus.producer.requests import SELDOM, Outgoing, expiry_of

#: Rows in one piece of a COPY: the server writes one while the next is made.
_COPY_ROWS = 100
_COPY_NULL = "\\N"
_COPY_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}
#: Rows, and characters of them, in one INSERT, which a driver holds in memory several times.
_INSERTED_ROWS, _INSERTED_CHARACTERS = 1000, 4 * 1024**2
#: Those of each line, and the types of arrays of those that only some have, unless they are texts.
_SENT_COLUMNS = (
    *("domain", "priority", "command_id", "type", "data", "correlation_id", "reply_to"),
    "max_attempts",
)
_ARRAYS = {
    "batch_id": "uuid[]",
    "expires_at": "timestamptz[]",
    "due_at": "timestamptz[]",
    "headers": "json[]",
}


class AdmissionResult(NamedTuple):
    """The reply of a domain to commands that arrive; see admit and enqueue in the schema."""

    #: None, "closed", "full", "key_full", "duplicate", "early", "held" or "repeated".
    refusal: str | None
    #: Commands that wait, counted only where the domain has limits.
    depth: int | None
    max_depth: int | None
    warn_depth: int | None
    #: Seconds that the oldest command of a full domain has waited.
    oldest_age: float | None
    #: The command that holds the unique key.
    holder: UUID | None = None


class Store(Executor):
    def __init__(self, schema: str, *, prepare: bool = True) -> None:
        """Without `prepare` the driver prepares no statement. It reads in binary, because the
        session of a caller's connection may write times in a way that the driver cannot read."""
        super().__init__(check_schema(schema), prepare=None if prepare else False, binary=True)

    def enqueue(
        self,
        connection: Connection,
        command: Outgoing,
        *,
        call: int | None,
        again: bool,
        caller: int | None = None,
    ) -> AdmissionResult:
        """Sends one. `call` and `again` make a repetition harmless; see the schema's enqueue."""
        name, values = _call_of(command, call, again)
        if caller is not None:
            values["caller"] = caller
        if command.changes is None:
            [row] = self.rows(connection, name, **values)
            return AdmissionResult(*row)
        text = _call_and("note", self.schema, name, tuple(values))
        row = self._execute(connection, text, {**values, "changes": command.changes})
        return AdmissionResult(*row[:-1])

    def enqueue_dated(
        self, connection: Connection, command: Outgoing
    ) -> tuple[AdmissionResult, datetime | None]:
        """Sends one in the caller's transaction; with the time at which it was sent, unless it is
        refused."""
        name, values = _call_of(command, None, False)
        text = _call_and("date", self.schema, name, tuple(values))
        row = self._execute(connection, text, values)
        return AdmissionResult(*row[:-1]), row[-1]

    def _execute(self, connection: Connection, text: bytes, values: dict[str, Any]) -> Row:
        cursor = own_cursor(connection)
        [row] = cursor.execute(text, values, prepare=self._prepare, binary=self._binary).fetchall()
        return row

    def note_changes(
        self, connection: Connection, changed: Sequence[tuple[str, UUID, str]]
    ) -> None:
        """Domains and ids of commands that this transaction has sent, and what a hook changed."""
        domains, command_ids, changes = map(list, zip(*changed, strict=True))
        self.rows(
            connection,
            "note_changes",
            domains=domains,
            command_ids=command_ids,
            changes=texts(changes),
        )

    def copy(
        self,
        connection: Connection,
        commands: Iterable[Outgoing],
        now: datetime,
        batch_id: UUID | None = None,
        seldom: Sequence[str] = (),
    ) -> None:
        """Writes the rows of admitted and identified commands, as they come. `seldom`: those of
        SELDOM's columns that some have."""
        later: list[str] = []
        expiries: list[datetime] = []
        last = "" if batch_id is None else f"\t{batch_id.hex}"
        columns = (*seldom,) if batch_id is None else ("batch_id", *seldom)
        lines = _lines_for_ready(commands, now, last, seldom, later, expiries)
        self._copy(connection, "ready", columns, lines)
        if later:
            self._copy(connection, "scheduled", (*columns, "due_at"), iter(later))
        if expiries:
            self.rows(connection, "wake_at", time=min(expiries))

    def _copy(
        self, connection: Connection, table: str, columns: tuple[str, ...], lines: Iterator[str]
    ) -> None:
        if not isinstance(connection, psycopg.Connection):
            self._insert(connection, table, columns, lines)
            return
        with own_cursor(connection).copy(_copy_statement(self.schema, table, columns)) as copy:
            while piece := "".join(islice(lines, _COPY_ROWS)):
                copy.write(piece)

    def _insert(
        self, connection: Connection, table: str, columns: tuple[str, ...], lines: Iterator[str]
    ) -> None:
        """For drivers that have no COPY, or one of their own."""
        names = (*_SENT_COLUMNS, *columns)
        text = _insert_statement(self.schema, table, columns)
        for part in _parts(lines):
            values = zip(*map(_copied_values, part), strict=True)
            arrays = {name: texts(column) for name, column in zip(names, values, strict=True)}
            own_cursor(connection).execute(text, arrays)


def _call_of(command: Outgoing, call: int | None, again: bool) -> tuple[str, dict[str, Any]]:
    """The function of the schema that sends it, and the function's arguments."""
    values = {**command._asdict(), "call": call, "again": again}
    for column in (*SELDOM.values(), "on_conflict", "unique_until"):
        if values[column] is None:
            del values[column]
    if isinstance(command.expires_at, float):
        values["expires"] = values.pop("expires_at")
    del values["changes"]
    return "enqueue" if command.unique_key is None else "enqueue_unique", values


@cache
def _call_and(what: str, schema: str, function: str, arguments: tuple[str, ...]) -> bytes:
    """Calls a function that sends a command, and another one for it; see functions.sql."""
    return call(f"call_and_{what}", schema, function, arguments)


@cache
def _copy_statement(schema: str, table: str, columns: tuple[str, ...]) -> bytes:
    """`columns`: those that not every command fills."""
    more = "".join(f", {column}" for column in columns)
    return render("copy", schema, table=table, more=more).encode()


@cache
def _insert_statement(schema: str, table: str, columns: tuple[str, ...]) -> bytes:
    arrays = "".join(f", %({column})s::{_ARRAYS.get(column, 'text[]')}" for column in columns)
    more = "".join(f", {column}" for column in columns)
    return render("insert", schema, table=table, more=more, arrays=arrays).encode()


def _parts(lines: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    characters = 0
    for line in lines:
        if part and (characters + len(line) > _INSERTED_CHARACTERS or len(part) == _INSERTED_ROWS):
            yield part
            part, characters = [], 0
        part.append(line)
        characters += len(line)
    if part:
        yield part


def _copied_values(line: str) -> list[str | None]:
    """Those of a line in COPY's text format."""
    return [
        None if value == _COPY_NULL else _ESCAPED.sub(lambda m: _UNESCAPED[m[1]], value)
        for value in line.removesuffix("\n").split("\t")
    ]


def _lines_for_ready(
    commands: Iterable[Outgoing],
    now: datetime,
    last: str,
    seldom: Sequence[str],
    later: list[str],
    expiries: list[datetime],
) -> Iterator[str]:
    """Lines of due commands, which end with `last` and the columns `seldom`; those of the others
    go to `later`, and times at which some expire to `expiries`. In UTC: in a zone with daylight
    saving time, Python adds to the time on the clock."""
    now = now.astimezone(UTC)
    any_expires = "expires_at" in seldom
    for command in commands:
        domain, type_, data, id_, _, priority, delay, due, correlation_id, reply_to, most, *_ = (
            command
        )
        # In COPY's text format. Of these columns only data can hold a backslash, and none a tab or
        # newline: JSON escapes them, names do not have them.
        data = data.replace("\\", "\\\\")
        first = correlation = f"{id_.int:032x}"
        if correlation_id is not id_:
            correlation = f"{correlation_id.int:032x}"
        line = (
            f"{domain}\t{priority}\t{first}\t{type_}\t{data}\t{correlation}"
            f"\t{reply_to or _COPY_NULL}\t{most or _COPY_NULL}{last}"
        )
        if any_expires and (expires_at := expiry_of(command, now)):
            expiries.append(expires_at)
            command = command._replace(expires_at=expires_at)
        for column in seldom:
            line += f"\t{_copied(getattr(command, column))}"
        if delay is not None:
            due = now + timedelta(seconds=delay)
        if due is not None and due > now:
            later.append(f"{line}\t{due.isoformat()}\n")
        else:
            yield f"{line}\n"


def _copied(value: str | datetime | None) -> str:
    if value is None:
        return _COPY_NULL
    return value.isoformat() if isinstance(value, datetime) else value.translate(_COPY_ESCAPES)
