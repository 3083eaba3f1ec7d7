"""Batches as tests make and judge them."""

from collections import Counter
from typing import Any
from uuid import UUID

import psycopg
from claiming import Claimer

from cmdbus import BatchRecord, CommandBus, SendRequest
from cmdbus.arrays import ids
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind

DEBIT = SendRequest("payments", "Debit")
CLOSE = SendRequest("payments", "Close", {"month": 3})
UNDO = SendRequest("orders", "Undo", {"month": 3}, priority="high")

FAILED = Outcome(kind=OutcomeKind.FAILED, code="NO_FUNDS", message="none left", details="{}")
TROUBLE = Outcome(kind=OutcomeKind.TROUBLE, code="GONE", message="it is gone", details="{}")
RETRY = Outcome(kind=OutcomeKind.RETRY, code="AWAY", message="away", details="{}", delay=0.0)

#: In one snapshot: a batch, and its commands by status.
_COUNTED = """
SELECT b.status, b.total, b.completed, b.failed, b.canceled, b.in_troubleshooting, b.remaining,
    (SELECT json_object_agg(c.status, c.count) FROM (
        SELECT status, count(*) FROM cmdbus.command WHERE batch_id = b.batch_id GROUP BY status
    ) c)
FROM cmdbus.batch b WHERE b.batch_id = %s"""


def end(claimer: Claimer, batch_id: UUID) -> None:
    """As a worker looks after its own commit."""
    claimer.statements.value(claimer.connection, "end_batches", batch_ids=ids([batch_id]))


def batch_of(bus: CommandBus, batch_id: UUID) -> BatchRecord:
    record = bus.get_batch(batch_id)
    assert record is not None
    return record


def kinds_of(bus: CommandBus, batch_id: UUID) -> list[str]:
    """Of its events."""
    return [event.kind for event in bus.batch_audit(batch_id)]


def check_counters(connection: psycopg.Connection, batch_id: UUID) -> str:
    """They equal the rows. Returns the status."""
    row = connection.execute(_COUNTED, (batch_id,)).fetchone()
    assert row is not None
    status, total, completed, failed, canceled, troubled, remaining, found = row
    rows: Counter[str] = Counter(found or {})
    ended = {"COMPLETED": completed, "FAILED": failed, "CANCELED": canceled}
    assert {name: rows[name] for name in ended} == ended, row
    assert rows["IN_TROUBLESHOOTING_QUEUE"] == troubled, row
    assert (rows.total(), remaining) == (total, total - completed - failed - canceled), row
    assert (remaining == 0) or status in ("PENDING", "IN_PROGRESS"), row
    return str(status)


def sent_after(bus: CommandBus, batch_id: UUID) -> list[tuple[str, str, Any]]:
    """The commands that carry its id as correlation id: domain, type, data."""
    return [
        (record.domain, record.type, record.data)
        for record in bus.query(limit=1000)
        if record.correlation_id == batch_id
    ]
