"""A run as records: what the producers, the tables, the handlers, the supervisors and the
server say of it. Read here, judged elsewhere.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from fault_injection.journal import lines_of

#: Seconds since the epoch, as all times here; the server's clock and ours are one machine's.
Time = float
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Of a producer, as its journal ends."""

    name: str
    way: str
    count: int
    began: Time = 0.0
    #: When its last line was written.
    ended: Time = 0.0
    #: ok, fail or unknown.
    outcome: str
    ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A command where it is at the end."""

    command_id: str
    table: str
    status: str
    type: str
    domain: str = ""
    #: None of both for a reply.
    call: str | None = None
    index: int | None = None
    code: str | None = None
    attempts: int = 0
    max_attempts: int | None = None
    losses: int = 0
    token: int = 0
    claimer: int | None = None
    #: Of the execution whose outcome was settled.
    run: str | None = None
    created_at: Time = 0.0
    #: As its sender asked, in seconds.
    delay: float = 0.0
    reply_to: str | None = None
    #: Of a reply: what it answers.
    answers: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One change of one row, in the order in which they were made."""

    number: int
    #: By the server's clock: the start of the statement that made it, and itself.
    began: Time
    at: Time
    xid: int
    session: str
    #: claim, release, or a table with + or -.
    what: str
    command_id: str
    token: int
    token_before: int | None = None
    claimer: int | None = None
    claimer_before: int | None = None
    lease_before: Time | None = None
    due_at: Time | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    command_id: str
    at: Time
    kind: str
    code: str | None = None
    token: int | None = None
    claimer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    command_id: str
    run: str
    session: str
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line that a handler left: enter, returned or raised."""

    at: Time
    what: str
    run: str
    pid: int
    command_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Of a supervisor's log, written by the supervisor itself."""

    instance: str
    at: Time
    pid: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An instance at one moment."""

    instance: str
    at: Time
    supervisor: int
    #: Worker processes alive, those that leave among them.
    workers: int
    wanted: int
    #: Counters by name.
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The database at one moment, in one snapshot."""

    at: Time
    #: Commands that were ever inserted; rows that there are; sessions of the fleets.
    commands: int
    rows: int
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A process that was a zombie, or had lost its parent, for so many seconds."""

    pid: int
    what: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How long after a fault's end everything worked again; None if it did not."""

    fault: int
    kind: str
    began: Time
    ended: Time
    seconds: float | None
    #: What was promised for while it lasted, and was not so.
    broken: str = ""
    #: No other fault was near.
    single: bool = True
    #: The instances that it hurt.
    instances: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The observer had no CPU, or no answer of the server."""

    began: Time
    ended: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What was committed after the copy was gone when the server ran again."""

    copied_at: Time
    restored_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the plan promises, for the checks."""

    procs: int
    drain: float
    max_attempts: int
    backoff: Sequence[float]
    jitter: float
    #: Seconds that a claim lasts without a renewal.
    lease: float
    #: What the producers send to.
    domains: Sequence[str]
    #: Sessions of all fleets together.
    sessions: int
    #: After the faults something ends, until everything has, at least once in so long.
    standstill: float
    #: And work again so long after a fault, by its kind.
    recovered_within: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    limits: Limits
    calls: Sequence[Call] = ()
    rows: Sequence[Row] = ()
    moves: Sequence[Move] = ()
    events: Sequence[Event] = ()
    effects: Sequence[Effect] = ()
    marks: Sequence[Mark] = ()
    lines: Sequence[Line] = ()
    samples: Sequence[Sample] = ()
    counts: Sequence[Count] = ()
    strays: Sequence[Stray] = ()
    recoveries: Sequence[Recovery] = ()
    stalls: Sequence[Stall] = ()
    restores: Sequence[Restore] = ()
    #: The ids of pending commands of the unhandled type, as the bus lists them.
    pending: Sequence[str] = ()
    #: Incarnations: who they are, as "host:pid" or "steward:pid".
    workers: Mapping[int, str] = field(default_factory=dict)
    #: Unexpected ends of supervisors, and what was not found whole at the end.
    wrong: Sequence[str] = ()
    #: Of the server's log: time, SQL state, text. None without a server of our own.
    server: Sequence[tuple[Time, str, str]] | None = None
    #: The canary: where it was seen.
    leaks: Sequence[str] = ()
    drained: float | None = None


def read_calls(paths: Iterable[Path]) -> list[Call]:
    calls: dict[str, dict[str, Any]] = {}
    for path in paths:
        for line in lines_of(path):
            call = calls.setdefault(line["call"], {"outcome": "unknown", "ids": ()})
            if line["what"] == "invoke":
                call.update(way=line["way"], count=line["count"], began=line["at"])
            elif line["what"] != "again":
                call["outcome"] = line["what"]
            call["ids"] = line.get("ids", call["ids"])
            call["ended"] = line["at"]
    return [Call(name=name, **call) for name, call in calls.items()]


def read_marks(path: Path) -> list[Mark]:
    names = ("at", "what", "run", "pid", "command_id", "attempt")
    lines = path.read_text().splitlines() if path.exists() else []
    return [Mark(**dict(zip(names, json.loads(line), strict=True))) for line in lines]


def read_lines(instance: str, log: Path) -> list[Line]:
    found = []
    for text in log.read_text(errors="replace").splitlines():
        if not text.startswith("{"):
            continue
        line = json.loads(text)
        if line["logger"].startswith("cmdbus.supervisor"):
            at = datetime.fromisoformat(line["time"]).timestamp()
            found.append(Line(instance=instance, at=at, pid=line["pid"], message=line["message"]))
    return found


_SERVER_LINE = re.compile(r"(\S+ \S+) \w+ \[\d+\] (\w{5}) (.*)")


def read_server(log: Path, since: int) -> list[tuple[Time, str, str]]:
    """Each entry with the lines that go on with it."""
    found: list[tuple[Time, str, str]] = []
    with log.open(errors="replace") as file:
        file.seek(since)
        for line in file:
            if m := _SERVER_LINE.match(line):
                at = datetime.fromisoformat(f"{m[1]}+00:00").timestamp()
                found.append((at, m[2], m[3]))
            elif found and line.startswith("\t"):
                at, state, text = found[-1]
                found[-1] = at, state, f"{text}\n{line.strip()}"
    return found


_ROW = """
SELECT command_id, '{table}', {status}, type, domain,
    CASE WHEN pg_column_size(data) < 100000 THEN data ELSE json_build_object(
        'call', data -> 'call', 'index', data -> 'index', 'delay', data -> 'delay') END,
    error_code, attempts, max_attempts, losses, token, claimer, {result}, created_at, reply_to
FROM cmdbus.{table}"""
_TABLES = {
    "ready": "'PENDING'",
    "scheduled": "'PENDING'",
    "troubleshooting": "'IN_TROUBLESHOOTING_QUEUE'",
    "finished": "status",
}
_ROWS = " UNION ALL ".join(
    _ROW.format(
        table=table, status=status, result="result" if table == "finished" else "NULL::json"
    )
    for table, status in _TABLES.items()
)
_MOVES = """
SELECT number, began, at, xid, session, what, command_id, token, token_before, claimer,
    claimer_before, lease_before, due_at, attempts
FROM chaos.move ORDER BY number"""
_EVENTS = "SELECT command_id, at, kind, code, token, claimer FROM cmdbus.event ORDER BY id"
_EFFECTS = "SELECT command_id, run, session, xid FROM chaos.effect"
_WORKERS = "SELECT id, worker FROM cmdbus.incarnation"


def read_tables(connection: psycopg.Connection) -> dict[str, Any]:
    def all_of(query: str) -> list[tuple[Any, ...]]:
        return [tuple(map(_plain, row)) for row in connection.execute(query.encode()).fetchall()]

    def records(record: type[T], query: str) -> list[T]:
        """Its fields are the columns, in order."""
        return [record(**dict(zip(_names(record), row, strict=True))) for row in all_of(query)]

    return {
        "rows": [_row(*row) for row in all_of(_ROWS)],
        "moves": records(Move, _MOVES),
        "events": records(Event, _EVENTS),
        "effects": records(Effect, _EFFECTS),
        "workers": dict(all_of(_WORKERS)),
    }


def _names(record: Any) -> list[str]:
    return [one.name for one in fields(record)]


def _row(*values: Any) -> Row:
    command_id, table, status, type_, domain, data, code, attempts, most, losses, *rest = values
    token, claimer, result, created_at, reply_to = rest
    asked = data if isinstance(data, dict) else {}
    return Row(
        command_id=command_id,
        table=table,
        status=status,
        type=type_,
        domain=domain,
        call=asked.get("call"),
        index=asked.get("index"),
        code=code,
        attempts=attempts,
        max_attempts=most,
        losses=losses,
        token=token,
        claimer=claimer,
        run=result.get("run") if isinstance(result, dict) else None,
        created_at=created_at,
        delay=asked.get("delay", 0.0),
        reply_to=reply_to,
        answers=asked.get("command_id"),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    return value if value is None or isinstance(value, int | str | float | dict) else str(value)
