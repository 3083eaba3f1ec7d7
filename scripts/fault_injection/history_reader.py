"""Reads the history of a run: journals, marks, logs and tables."""

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from fault_injection.history import Batch, Call, Effect, Event, Line, Mark, Move, Row, Time
from fault_injection.journal import lines_of

T = TypeVar("T")


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


def read_server(log: Path, since: Time) -> list[tuple[Time, str, str]]:
    """Each entry with the lines that go on with it. A server that starts moves the entries of a
    long log to log.1."""
    found: list[tuple[Time, str, str]] = []
    for path in (log.with_name("log.1"), log):
        text = path.read_text(errors="replace") if path.exists() else ""
        for line in text.splitlines():
            if m := _SERVER_LINE.match(line):
                at = datetime.fromisoformat(f"{m[1]}+00:00").timestamp()
                found.append((at, m[2], m[3]))
            elif found and line.startswith("\t"):
                at, state, entry = found[-1]
                found[-1] = at, state, f"{entry}\n{line.strip()}"
    return [entry for entry in found if entry[0] >= since]


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
_BATCHES = """
SELECT b.name, b.status, b.total, b.completed, b.failed, b.canceled,
    coalesce(c.rows, '{}'::json), coalesce(s.count, 0)
FROM cmdbus.batch b
LEFT JOIN (
    SELECT batch_id, json_object_agg(status, count) AS rows
    FROM (SELECT batch_id, status, count(*) FROM cmdbus.command
          WHERE batch_id IS NOT NULL GROUP BY batch_id, status) counts
    GROUP BY batch_id
) c ON c.batch_id = b.batch_id
LEFT JOIN (
    SELECT correlation_id, count(*) FROM cmdbus.command
    WHERE batch_id IS NULL AND type <> 'Reply' GROUP BY correlation_id
) s ON s.correlation_id = b.batch_id"""
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
        "batches": records(Batch, _BATCHES),
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
