"""Looks at batches use indexes, however many batches, commands and lines there are."""

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from batches import DEBIT, batch_of
from handlers import connect
from test_schema import scans

from cmdbus import CommandBus, SendRequest
from cmdbus.database.statements import statement
from cmdbus.producer.store import Store

pytestmark = pytest.mark.new_database

#: Many batches of few commands, in every table; and lines of the tally.
FILL = """
INSERT INTO cmdbus.batch_state (batch_id, domain, total, data)
SELECT gen_random_uuid(), 'payments', 10, 'null' FROM generate_series(1, 2000);
INSERT INTO cmdbus.tally (batch_id, completed)
SELECT batch_id, 1 FROM cmdbus.batch_state, generate_series(1, 5);
INSERT INTO cmdbus.finished (token, created_at, command_id, correlation_id, priority, attempts,
    losses, domain, type, status, data, batch_id)
SELECT 1, clock_timestamp(), gen_random_uuid(), gen_random_uuid(), 5, 1, 0, 'payments', 'Debit',
    'COMPLETED', '{}', batch_id
FROM cmdbus.batch_state, generate_series(1, 5);
INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id, priority,
    attempts, losses, domain, type, data, batch_id)
SELECT token, created_at, command_id, correlation_id, 5, 1, 0, domain, type, data, batch_id
FROM cmdbus.finished;
INSERT INTO cmdbus.ready (command_id, correlation_id, priority, domain, type, data, batch_id)
SELECT command_id, correlation_id, 5, domain, type, data, batch_id FROM cmdbus.finished;
INSERT INTO cmdbus.scheduled (due_at, command_id, correlation_id, priority, domain, type, data,
    batch_id)
SELECT now(), command_id, correlation_id, 5, domain, type, data, batch_id FROM cmdbus.finished;
"""
ANALYZE = """
ANALYZE cmdbus.batch_state, cmdbus.tally, cmdbus.finished, cmdbus.troubleshooting, cmdbus.ready,
    cmdbus.scheduled"""
#: All that has finished is one batch.
LARGE = """
UPDATE cmdbus.finished SET batch_id = (SELECT min(batch_id::text)::uuid FROM cmdbus.batch_state)"""
#: All batches are over, and what they have sent is gone.
OLD = """
UPDATE cmdbus.batch_state SET completed = total, completed_at = now() - interval '8 days',
    on_complete = json_populate_record(NULL::cmdbus.request, json_build_object(
        'domain', 'payments', 'type', 'Close', 'command_id', gen_random_uuid()))"""
#: Rows that were read, by table.
READ = """
SELECT CASE WHEN relname LIKE 'finished%' THEN 'finished' ELSE relname::text END,
    sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint
FROM pg_stat_xact_user_tables WHERE schemaname = 'cmdbus' GROUP BY 1"""
_CONDITIONS = dict.fromkeys(("status", "name", "since", "until")) | {"limit": 10, "offset": 0}
_POSITION = {"domain": None, "batch_id": None, "after": datetime.now(UTC), "after_id": uuid4()}


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize(
    ("name", "values", "indexes"),
    [
        (
            "read_batch",
            {},
            {
                "batch_state": {"batch_state_pkey"},
                "tally": {"tally_pkey"},
                "troubleshooting": {"troubleshooting_batch"},
            },
        ),
        (
            "page_batches",
            _CONDITIONS | _POSITION,
            {
                "batch_state": {"batch_state_newest"},
                "tally": {"tally_pkey"},
                "troubleshooting": {"troubleshooting_batch"},
            },
        ),
        (
            "query_batches",
            _CONDITIONS,
            {
                "batch_state": {"batch_state_newest"},
                "tally": {"tally_pkey"},
                "troubleshooting": {"troubleshooting_batch"},
            },
        ),
    ],
    ids=["get", "page", "list"],
)
def test_looks_at_batches_use_indexes(
    dsn: str, name: str, values: dict[str, object], indexes: dict[str, set[str]], analyzed: bool
) -> None:
    with connect(dsn) as connection:
        connection.execute(FILL)
        if analyzed:
            connection.execute(ANALYZE)
        explain = b"EXPLAIN (FORMAT JSON) " + statement(name, "cmdbus")
        [[plan]] = connection.execute(explain, {"batch_id": uuid4(), **values}).fetchall()
        found: dict[str, set[str]] = {}
        for table, index in scans(plan[0]["Plan"]):
            found.setdefault(table, set()).add(index)
    assert found == indexes


@pytest.mark.parametrize("analyzed", [False, True])
def test_the_commands_of_a_large_batch_are_listed_without_a_scan(dsn: str, analyzed: bool) -> None:
    """Nor are those of others read."""
    with connect(dsn) as connection:
        connection.execute(FILL)
        connection.execute(LARGE)
        if analyzed:
            connection.execute(ANALYZE)
        [large] = connection.execute("SELECT DISTINCT batch_id FROM cmdbus.finished").fetchall()[0]
        for status in (None, "COMPLETED", "FAILED", "PENDING"):
            with reads(connection) as read:
                list_commands(connection, large, status)
            assert sum(read.values()) < 200, (status, read)


def test_the_end_of_a_batch_is_looked_for_in_its_own_lines(dsn: str) -> None:
    with connect(dsn) as connection:
        connection.execute(FILL)
        [batch_id] = connection.execute("SELECT batch_id FROM cmdbus.batch_state").fetchall()[0]
        for function in ("end_batches(ARRAY[%s::uuid])", "fold_batch(%s::uuid)"):
            with reads(connection) as read:
                connection.execute(f"SELECT cmdbus.{function}".encode(), (batch_id,))
            assert sum(read.values()) < 50, (function, read)


@pytest.mark.parametrize("analyzed", [False, True])
def test_old_batches_are_removed_without_reading_the_queue(dsn: str, analyzed: bool) -> None:
    with connect(dsn) as connection:
        connection.execute(FILL)
        connection.execute(OLD)
        if analyzed:
            connection.execute(ANALYZE)
        with reads(connection) as read:
            removed = connection.execute("SELECT cmdbus.retain_batches(100)").fetchall()
        assert removed == [(100,)]
        queue = ("ready", "scheduled", "limited", "troubleshooting", "finished")
        assert sum(read[table] for table in queue) < 50, read


@contextmanager
def reads(connection: psycopg.Connection) -> Iterator[Counter[str]]:
    """A transaction, and afterwards the rows that it has read, by table."""
    found = Counter[str]()
    with connection.transaction():
        before: Counter[str] = Counter(dict(connection.execute(READ).fetchall()))
        yield found
        after: Counter[str] = Counter(dict(connection.execute(READ).fetchall()))
        found.update(after - before)


def list_commands(connection: psycopg.Connection, batch_id: UUID, status: str | None) -> None:
    conditions = {"batch_id": batch_id, "status": status, "limit": 10, "offset": 0}
    Store("cmdbus").rows(connection, "query_batch_commands", **conditions)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_million_commands_are_a_batch(dsn: str) -> None:
    """Created in bounded memory, listed without a scan, and canceled in chunks."""

    def requests() -> Iterator[SendRequest]:
        for number in range(1_000_000):
            yield SendRequest("payments", "Debit", number)

    with CommandBus(dsn) as bus, connect(dsn) as connection:
        bus.create_batch("payments", [DEBIT] * 5000)
        tracemalloc.start()
        batch_id = bus.create_batch("payments", requests())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 32 * 2**20
        assert batch_of(bus, batch_id).total == 1_000_000
        with reads(connection) as read:
            list_commands(connection, batch_id, None)
        assert sum(read.values()) < 200, read
        bus.cancel_batch(batch_id, reason="too many")
        record = batch_of(bus, batch_id)
        assert (record.canceled, record.status) == (1_000_000, "CANCELED")
        with reads(connection) as read:
            list_commands(connection, batch_id, "CANCELED")
        assert sum(read.values()) < 200, read
