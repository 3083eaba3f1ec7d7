"""A page of a search reads about as many rows as it has, whatever the statistics are."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from queries import scalar
from roles import role

from cmdbus import CommandBus
from cmdbus.errors import MissingRightError

pytestmark = pytest.mark.new_database

#: Many commands in every table, in batches of 50, of which each 20th has failed; and few claimed.
FILL = """
CREATE TEMP TABLE sent AS
SELECT n, lpad(to_hex(1763600000000 + n), 12, '0') || '8cb58000' || lpad(to_hex(n), 11, '0') AS id,
    CASE n % 20 WHEN 0 THEN 'mail' ELSE 'payments' END AS domain,
    ('00000000-0000-0000-0000-' || lpad((n / 50)::text, 12, '0'))::uuid AS batch_id,
    now() - (5000 - n) * interval '1 second' AS created_at
FROM generate_series(1, 5000) n;
INSERT INTO cmdbus.finished (token, created_at, command_id, correlation_id, priority, attempts,
    losses, domain, type, status, data, batch_id, key)
SELECT 1, created_at, (id || '1')::uuid, gen_random_uuid(), 5, 1, 0, domain, 'Debit',
    CASE n % 20 WHEN 0 THEN 'FAILED' ELSE 'COMPLETED' END, '{}', batch_id, 'k' || n / 50
FROM sent;
INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id, priority,
    attempts, losses, domain, type, data, failed_at)
SELECT 1, created_at, gen_random_uuid(), gen_random_uuid(), 5, 1, 0, domain, 'Debit', '1',
    created_at
FROM sent;
INSERT INTO cmdbus.ready (created_at, command_id, correlation_id, priority, domain, type, data,
    batch_id, key, lease_until)
SELECT created_at, (id || '2')::uuid, (id || '2')::uuid, n % 3, domain, 'Debit',
    '1', batch_id, 'k' || n / 50,
    CASE WHEN n < 90 THEN clock_timestamp() + interval '1 hour' END
FROM sent ORDER BY n;
INSERT INTO cmdbus.scheduled (created_at, due_at, command_id, correlation_id, priority, domain,
    type, data, batch_id, key)
SELECT created_at, now() + interval '1 hour', (id || '3')::uuid, (id || '3')::uuid, n % 3,
    domain, 'Debit', '1',
    batch_id, 'k' || n / 50
FROM sent ORDER BY n;
INSERT INTO cmdbus.limited (created_at, command_id, correlation_id, priority, domain, type, data,
    batch_id, key)
SELECT created_at, (id || '4')::uuid, (id || '4')::uuid, n % 3, domain, 'Debit',
    '1', batch_id, 'k' || n / 50
FROM sent ORDER BY n"""
TABLES = "cmdbus.ready, cmdbus.scheduled, cmdbus.limited, cmdbus.troubleshooting, cmdbus.finished"
READ = """
SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables
WHERE schemaname = 'cmdbus'"""
#: Of the partitions of the history.
PROBES = """
SELECT sum(idx_scan) FROM pg_stat_xact_user_tables WHERE relname LIKE 'finished_20%'"""
BATCH = UUID("00000000-0000-0000-0000-000000000080")
#: Each with the number of commands of its first page.
SEARCHES: list[tuple[dict[str, Any], int]] = [
    ({}, 50),
    ({"domain": "mail"}, 50),
    ({"status": "PENDING"}, 50),
    ({"status": "IN_PROGRESS"}, 50),
    ({"status": "COMPLETED"}, 50),
    ({"status": "IN_TROUBLESHOOTING_QUEUE"}, 50),
    ({"batch_id": BATCH}, 50),
    ({"batch_id": BATCH, "status": "FAILED"}, 3),
    ({"batch_id": BATCH, "status": "PENDING"}, 50),
    ({"domain": "payments", "key": "k7", "status": "PENDING"}, 50),
    ({"domain": "none"}, 0),
]


@pytest.mark.parametrize(
    "analysed",
    ["never", pytest.param("now", marks=pytest.mark.long), "when it was empty"],
)
def test_a_page_reads_what_it_shows(
    bus: CommandBus, connection: psycopg.Connection, analysed: str
) -> None:
    """Also by a session that has planned on empty tables, for the first page and a later one."""
    if analysed == "when it was empty":
        connection.execute(f"ANALYZE {TABLES}".encode())
    for _ in range(7):  # enough for any plan to be kept
        assert bus.search(connection=connection).commands == []
    connection.execute(FILL.encode())
    if analysed == "now":
        connection.execute(f"ANALYZE {TABLES}".encode())
    for conditions, number in SEARCHES:
        after = None
        for _ in range(3):
            with connection.transaction():
                before, probes = scalar(connection, READ), scalar(connection, PROBES)
                page = bus.search(**conditions, limit=50, after=after, connection=connection)
                read = scalar(connection, READ) - before
                probes = scalar(connection, PROBES) - probes
            assert read < 3500, (conditions, read)
            assert probes < 300, (conditions, probes)
            assert page.stopped is None
            assert after or len(page.commands) == number, conditions
            after = page.next
            # Behind the last claimed one there are only others.
            if after is None or conditions.get("status") == "IN_PROGRESS":
                break
    with connection.transaction():
        before = scalar(connection, READ)
        page = bus.search(text="nothing", max_rows=2000, connection=connection)
        assert scalar(connection, READ) - before < 10000
    assert page.commands == [] and page.stopped and page.next
    assert 2000 <= page.stopped.rows < 10000


def test_a_monitor_searches_what_it_may_read(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send("payments", "Debit", {"secret": 1}, key="ann")
    bus.send("payments", "Debit", delay=60)
    with role(dsn, "monitor") as monitor:
        for conditions in ({}, {"domain": "payments"}, {"status": "PENDING", "type": "Debit"}):
            page = bus.search(**conditions, connection=monitor)  # type: ignore[arg-type]
            assert page.restricted and len(page.commands) == 2
            assert {(each.key, each.error_message) for each in page.commands} == {(None, None)}
            [only] = bus.search(command_id=page.commands[0].command_id, connection=monitor).commands
            assert only == page.commands[0]
        for private in ({"text": "secret"}, {"key": "ann"}, {"key": "ann", "domain": "payments"}):
            with pytest.raises(MissingRightError, match=r"that roles of the kind operator have"):
                bus.search(**private, connection=monitor)  # type: ignore[arg-type]
        assert bus.known_types(connection=monitor) == {"payments": ["Debit"]}
    with role(dsn, "operator") as operator:
        [found] = bus.search(text="secret", connection=operator).commands
        assert found.key == "ann"
