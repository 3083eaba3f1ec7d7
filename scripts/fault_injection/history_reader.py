"""Reads the history of a run: journals, marks, logs and tables."""

import json
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from cmdbus.errors import CallTimeoutError
from fault_injection.bridging import QUEUE_IN, QUEUE_OUT
from fault_injection.group_history import Batch, Process, Step
from fault_injection.history import (
    Call,
    Effect,
    Event,
    LimitChange,
    Line,
    Mark,
    Message,
    Move,
    Probe,
    Row,
    Tick,
    Time,
)
from fault_injection.instruments import TURNS
from fault_injection.journal import lines_of
from fault_injection.lanes import LANES, WIDE

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
            if "answer" in line:
                call["answer"] = line["answer"]
            call["timed_out"] = line.get("why") == CallTimeoutError.__name__
            call["messages"] = line.get("messages", ())
            call["unique"] = line.get("unique", call.get("unique"))
            call["held_by"] = line.get("held_by")
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
SELECT command_id, '{table}', {status}, type, domain, priority,
    CASE WHEN pg_column_size(data) < 100000 THEN data ELSE json_build_object(
        'call', data -> 'call', 'index', data -> 'index', 'delay', data -> 'delay',
        'adds', data -> 'adds', 'does', data -> 'does', 'rows', data -> 'rows',
        'unique_until', data -> 'unique_until', 'headers', data -> 'headers',
        'correlation_id', data -> 'correlation_id') END,
    error_code, attempts, max_attempts, losses, token, claimer, {result}, created_at, reply_to,
    batch_id, key, unique_key, expires_at, correlation_id, headers
FROM cmdbus.{table}"""
_TABLES = {
    "ready": "'PENDING'",
    "scheduled": "'PENDING'",
    "limited": "'PENDING'",
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
    claimer_before, lease_before, due_at, attempts, claimed_at
FROM chaos.move ORDER BY number"""
_EVENTS = "SELECT command_id, at, kind, code, token, claimer FROM cmdbus.event ORDER BY id"
_TICKS = """
SELECT details ->> 'schedule', (details ->> 'tick')::timestamptz, command_id, at
FROM cmdbus.event WHERE kind = 'SENT_BY_SCHEDULE' ORDER BY id"""
_PROBES = "SELECT at, breaker, held, most FROM chaos.probe ORDER BY number"
_EFFECTS = "SELECT command_id, run, session, xid FROM chaos.effect"
_ITERATIONS = """
SELECT command_id::text, array_agg(number)::text FROM chaos.iteration GROUP BY command_id"""
_BATCHES = """
SELECT b.batch_id, coalesce(b.name, ''), b.status, b.total, b.completed, b.failed, b.canceled,
    coalesce(c.rows, '{}'::json), coalesce(s.on_complete, 0), coalesce(s.on_cancel, 0)
FROM cmdbus.batch b
LEFT JOIN (
    SELECT batch_id, json_object_agg(status, count) AS rows
    FROM (
        SELECT batch_id, status, count(*)
        FROM (
            SELECT batch_id, status FROM cmdbus.command
            UNION ALL
            SELECT batch_id, CASE status WHEN 'COMPENSATED' THEN 'FAILED' ELSE status END
            FROM cmdbus.process
        ) one
        WHERE batch_id IS NOT NULL GROUP BY batch_id, status
    ) counts
    GROUP BY batch_id
) c ON c.batch_id = b.batch_id
LEFT JOIN (
    SELECT correlation_id, count(*) FILTER (WHERE NOT cancels) AS on_complete,
        count(*) FILTER (WHERE cancels) AS on_cancel
    FROM (
        SELECT c.correlation_id, CASE WHEN c.type = 'process:batch' THEN b.status = 'CANCELED'
            ELSE coalesce(c.data ->> 'call', '') LIKE '%-canceled' END AS cancels
        FROM cmdbus.command c JOIN cmdbus.batch b ON b.batch_id = c.correlation_id
        WHERE c.batch_id IS NULL AND c.type NOT IN ('Reply', 'process:counted')
    ) sent
    GROUP BY correlation_id
) s ON s.correlation_id = b.batch_id"""
_PROCESSES = """
SELECT p.process_id, p.batch_id, p.status, p.state, coalesce(s.steps, '[]'::json),
    coalesce(e.events, '[]'::json)
FROM cmdbus.process p
LEFT JOIN (
    SELECT process_id, json_agg(json_build_object(
        'number', number, 'undoes', undoes, 'step', step, 'command_id', command_id, 'type', type,
        'outcome', outcome, 'deadline_at', extract(epoch FROM deadline_at)
    ) ORDER BY number) AS steps
    FROM cmdbus.process_step GROUP BY process_id
) s ON s.process_id = p.process_id
LEFT JOIN (
    SELECT process_id, json_agg(kind ORDER BY id) AS events
    FROM cmdbus.process_event GROUP BY process_id
) e ON e.process_id = p.process_id"""
_LIMIT_CHANGES = """
SELECT at, name, concurrency, starts_per_second, burst FROM chaos.limit_change ORDER BY number"""
_TURNS = f"SELECT DISTINCT concat_ws(' ', domain, type, key) {TURNS} ORDER BY 1"
_HAS_QUEUES = "SELECT to_regclass('pgmq.meta') IS NOT NULL"
_MESSAGES = """
SELECT '{queue}', msg_id, message ->> 'call', (message -> 'index')::integer,
    message ->> 'command_id', message ->> 'outcome', coalesce(headers, '{{}}')
FROM pgmq.{table}"""
_QUEUES = " UNION ALL ".join(
    _MESSAGES.format(queue=queue, table=f"{kind}_{queue}")
    for queue in (QUEUE_IN, QUEUE_OUT)
    for kind in "qa"
)
_WORKERS = "SELECT id, worker FROM cmdbus.incarnation"


def read_tables(connection: psycopg.Connection) -> dict[str, Any]:
    def all_of(query: str) -> list[tuple[Any, ...]]:
        return [tuple(map(_plain, row)) for row in connection.execute(query.encode()).fetchall()]

    def records(record: type[T], query: str) -> list[T]:
        """Its fields are the columns, in order."""
        return [record(**dict(zip(_names(record), row, strict=True))) for row in all_of(query)]

    [(has_queues,)] = all_of(_HAS_QUEUES)
    limit_changes = records(LimitChange, _LIMIT_CHANGES)
    names = {change.name for change in limit_changes}
    rows = [_row(*row) for row in all_of(_ROWS)]
    return {
        "rows": [
            row
            if row.domain in (LANES, WIDE) or row.limited in names
            else replace(row, limited=None)
            for row in rows
        ],
        "moves": records(Move, _MOVES),
        "events": records(Event, _EVENTS),
        "ticks": records(Tick, _TICKS),
        "probes": records(Probe, _PROBES),
        "effects": records(Effect, _EFFECTS),
        "iterations": {id_: _numbers(text) for id_, text in all_of(_ITERATIONS)},
        "limit_changes": limit_changes,
        "messages": records(Message, _QUEUES) if has_queues else None,
        "turns": [name for (name,) in all_of(_TURNS)],
        "batches": records(Batch, _BATCHES),
        "processes": [_process(*row) for row in connection.execute(_PROCESSES).fetchall()],
        "workers": dict(all_of(_WORKERS)),
    }


def _numbers(array: str) -> list[int]:
    return [int(number) for number in array.strip("{}").split(",")]


def _names(record: Any) -> list[str]:
    return [one.name for one in fields(record)]


def _row(*values: Any) -> Row:
    command_id, table, status, type_, domain, priority, data, code, *rest = values
    attempts, most, losses, *rest = rest
    token, claimer, result, created_at, reply_to, batch, *held = rest
    key, unique_key, expires_at, correlation_id, headers = held
    asked = data if isinstance(data, dict) else {}
    return Row(
        command_id=command_id,
        table=table,
        status=status,
        type=asked.get("does") or type_,
        domain=domain,
        priority=priority,
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
        batch=batch,
        process=asked.get("process"),
        added_by=asked.get("added_by"),
        adds=len(asked.get("adds") or ()),
        iterates=asked.get("rows") or 0,
        limited=f"{domain} {type_}",
        key=key,
        unique_key=unique_key,
        unique_until=asked.get("unique_until") or "finished",
        expires_at=expires_at,
        correlation_id=correlation_id,
        headers=headers or {},
        asked_headers=asked.get("headers"),
        asked_correlation_id=asked.get("correlation_id"),
    )


def _process(
    process_id: Any,
    batch_id: Any,
    status: str,
    state: Any,
    steps: list[dict[str, Any]],
    events: list[str],
) -> Process:
    return Process(
        process_id=str(process_id),
        batch=None if batch_id is None else str(batch_id),
        call=state["call"],
        status=status,
        listed=[planned["listed"] for planned in state["plan"]],
        undone=[planned["undo"] is not None for planned in state["plan"]],
        seen=[(step, outcome) for step, outcome in state["seen"]],
        signals=state["signals"],
        steps=[Step(**step) for step in steps],
        events=events,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    return value if value is None or isinstance(value, int | str | float | dict) else str(value)
