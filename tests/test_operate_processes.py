"""`cmdbus process`, and what queries about processes read."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from cli import done, here
from eventually import eventually
from handlers import Gate, connect, running
from trips import (
    PERMANENT,
    RULE,
    Trip,
    answered,
    await_end,
    await_status,
    booked,
    registry_of,
    traveling,
)

from cmdbus import CommandBus
from cmdbus.database.statements import statement
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.probes.database import DepthGauge

pytestmark = pytest.mark.new_database


def shown(dsn: str, *arguments: str) -> Any:
    return json.loads(done(here("process", *arguments, "--dsn", dsn, "--json")))


def test_list_shows_the_latest_first_with_their_steps(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus) as first:
        await_end(bus, first)
    second = booked(bus)
    lines = done(here("process", "list", "--dsn", dsn)).splitlines()
    assert [line.split()[:2] for line in lines] == [
        [str(second), "PENDING"],
        [str(first), "COMPLETED"],
    ]
    assert lines[1].endswith("trips/Booking  CAR")
    found = shown(dsn, "list", "trips", "--status", "completed", "--type", "Booking")
    assert [each["process_id"] for each in found["processes"]] == [str(first)]
    more = done(here("process", "list", "--dsn", dsn, "--limit", "1")).splitlines()
    assert more[1] == "1 process shown, and there are more: --limit and --offset"
    none = done(here("process", "list", "--dsn", dsn, "--status", "FAILED"))
    assert none == "no process meets these conditions\n"


def test_show_draws_the_steps(dsn: str, bus: CommandBus) -> None:
    """And what undid them, with attempts, durations and outcomes."""
    with traveling(dsn, bus, Car=RULE) as process_id:
        await_end(bus, process_id)
    text = done(here("process", "show", str(process_id), "--dsn", dsn))
    head, *rest = text.splitlines()
    assert head == f"trips/Booking  {process_id}  COMPENSATED"
    drawn = [line.split() for line in rest if "bookings/" in line and "_" not in line]
    steps = [words for words in drawn if words[0].lstrip("-").isdigit()]
    assert [(words[0], words[1]) for words in steps] == [
        ("1", "FLIGHT"),
        ("2", "HOTEL"),
        ("3", "CAR"),
        ("-1", "FLIGHT"),
    ]
    [column] = [line.index("OUTCOME") for line in rest if "OUTCOME" in line]
    assert {line.find("SUCCESS") for line in rest if line.endswith("SUCCESS")} == {column}
    assert steps[2][-6:] == ["FAILED:", "FULL:", "no", "room", "is", "free"]
    found = shown(dsn, "show", str(process_id))
    assert found["error"] == "CAR: FULL: no room is free"
    assert [step["attempts"] for step in found["steps"]] == [1] * 4
    assert found["audit"][-1]["kind"] == "COMPENSATED"


def test_an_operator_signals_retries_and_cancels(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with traveling(dsn, bus, Flight=gate, Hotel=PERMANENT) as process_id:
        gate.wait_for(1)
        options = ["--dsn", dsn, "--operator", "ann", "--reason", "rain"]
        line = done(here("process", "signal", str(process_id), "hello", "[1]", *options))
        assert line == f"signaled {process_id}: hello\n"
        eventually(lambda: "SIGNALED" in [e.kind for e in bus.process_audit(process_id)])
        gate.open.set()
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        assert done(here("process", "retry", str(process_id), *options)).startswith("retried ")
        eventually(lambda: len(bus.audit("bookings", bus.process_steps(process_id)[-1].command_id)))
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        assert done(here("process", "cancel", str(process_id), *options)).startswith("canceled ")
        assert await_end(bus, process_id).status == "CANCELED"
    drawn = done(here("process", "show", str(process_id), "--dsn", dsn)).splitlines()
    assert [line[:10] for line in drawn if line.endswith("  CANCELED: rain")][1:] == ["2   HOTEL "]
    events = [(e.kind, e.operator, e.message) for e in bus.process_audit(process_id) if e.operator]
    assert events == [
        *[("SIGNAL_SENT", "ann", "rain"), ("RETRIED", "ann", "rain")],
        ("CANCEL_REQUESTED", "ann", "rain"),
    ]


def awaited_line(dsn: str, process_id: UUID) -> str:
    text = done(here("process", "show", str(process_id), "--dsn", dsn))
    [line] = [line for line in text.splitlines() if "  awaited, " in line]
    return line


def test_show_says_why_a_step_is_awaited(dsn: str, bus: CommandBus) -> None:
    waiting = booked(bus)
    with running(dsn, registry_of(Hotel=PERMANENT)):
        await_status(bus, waiting, "WAITING_FOR_TSQ")
    trouble = "awaited, IN_TROUBLESHOOTING_QUEUE: BROKEN: an operator must look"
    assert awaited_line(dsn, waiting).endswith(f"  {trouble}")
    unanswered = answered(dsn, bus)
    assert awaited_line(dsn, unanswered).endswith("  awaited, COMPLETED")


@pytest.mark.parametrize("verb", ["show", "cancel", "retry", "signal"])
def test_an_unknown_process_gets_one_sentence(dsn: str, verb: str) -> None:
    unknown = str(uuid4())
    more = ["hello"] if verb == "signal" else []
    result = here("process", verb, unknown, *more, "--dsn", dsn)
    assert (result.exit_code, result.stderr) == (1, f"Error: there is no process {unknown}\n")
    wrong = here("process", verb, "7", *more, "--dsn", dsn)
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "process_id must be a UUID" in wrong.stderr


def test_processes_that_are_not_over_are_counted_for_metrics(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    with traveling(dsn, bus, Hotel=PERMANENT) as waiting:
        await_status(bus, waiting, "WAITING_FOR_TSQ")
    with traveling(dsn, bus) as completed:
        await_end(bus, completed)
    booked(bus)
    gauge = DepthGauge(lambda: connect(dsn), ClaimStatements("cmdbus", 30))
    gauge.start()
    try:
        assert eventually(lambda: gauge.read().processes) == {
            ("Booking", "PENDING"): 1,
            ("Booking", "WAITING_FOR_TSQ"): 1,
        }
    finally:
        gauge.stop(5)


FILL = """
INSERT INTO cmdbus.managed_process (process_id, start_id, version, domain, type, state, status,
    finished_at, awaited_domain, awaited_id)
SELECT gen_random_uuid(), gen_random_uuid(), 1, 'trips', 'Booking', '{}',
    CASE WHEN n < 10 THEN 'WAITING_FOR_REPLY' ELSE 'COMPLETED' END,
    CASE WHEN n < 10 THEN NULL ELSE clock_timestamp() END, 'bookings', gen_random_uuid()
FROM generate_series(1, 5000) n;
INSERT INTO cmdbus.process_step (process_id, sent_at, command_id, number, step, domain, type)
SELECT process_id, created_at, gen_random_uuid(), 1, 'FLIGHT', 'bookings', 'Flight'
FROM cmdbus.managed_process;
INSERT INTO cmdbus.process_event (process_id, kind) SELECT process_id, 'SIGNALED'
FROM cmdbus.managed_process;
ANALYZE cmdbus.managed_process, cmdbus.process_step, cmdbus.process_event
"""
QUERY = {
    **dict.fromkeys(("domain", "status", "type", "batch_id", "since", "until")),
    **{"unfinished": False, "limit": 10, "offset": 0},
}
BY_ID = {"process_id": uuid4(), "latest": None}
POSITION = {"process_id": None, "after": datetime.now(UTC), "after_id": uuid4()}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("read_process", BY_ID),
        ("query_processes", QUERY),
        ("query_processes", {**QUERY, "unfinished": True, "status": "WAITING_FOR_TSQ"}),
        ("page_processes", QUERY | POSITION),
        ("read_process_steps", BY_ID),
        ("read_process_audit", BY_ID),
        ("read_undoable", BY_ID),
        ("count_processes", {}),
    ],
    ids=["get", "query", "unfinished", "page", "steps", "audit", "undoable", "metrics"],
)
def test_queries_about_processes_read_no_whole_table(
    dsn: str, bus: CommandBus, name: str, values: dict[str, object]
) -> None:
    bus.start_process("trips", "Booking", Trip())
    with connect(dsn) as connection:
        connection.execute(FILL.encode())
        explain = b"EXPLAIN (COSTS OFF) " + statement(name, "cmdbus")
        plan = "\n".join(line for (line,) in connection.execute(explain, values).fetchall())
    for table in ("managed_process", "process_step", "process_event"):
        assert f"Seq Scan on {table}" not in plan, plan
