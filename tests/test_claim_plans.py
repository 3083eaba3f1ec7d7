"""A claim reads the rows that it claims, and an expiry those that expire, and not the backlog,
whatever the statistics are."""

from datetime import UTC, datetime

import psycopg
import pytest
from claiming import Claimer, ended, want
from eventually import eventually
from queries import scalar

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim import Finished

pytestmark = pytest.mark.new_database

DEBIT = SendRequest("payments", "Debit")
#: Of each four two do not expire, one has begun, and one expires later.
FILL = """
INSERT INTO cmdbus.{} (domain, priority, command_id, correlation_id, type, data, due_at, expires_at,
    claimed_at, attempts)
SELECT 'payments', 5, gen_random_uuid(), gen_random_uuid(), 'Debit', '1', now() + interval '1 d',
    CASE n % 4 WHEN 0 THEN now() - interval '1 h' WHEN 1 THEN now() + n * interval '1 h' END,
    CASE n % 4 WHEN 0 THEN now() END, (n % 4 = 0)::integer
FROM generate_series(1, 10000) n"""
READ = """
SELECT sum(idx_tup_fetch) + sum(seq_tup_read) FROM pg_stat_xact_user_tables
WHERE relname IN ('ready', 'scheduled', 'limited')"""


def test_sessions_that_planned_with_an_empty_queue_find_rows_by_their_key(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """An index that looked as good then made each row a walk over its whole domain."""
    for _ in range(7):  # enough for any plan to be kept
        assert claimer.claim(9) == []
    bus.send_many([DEBIT] * 1000)
    with connection.transaction():
        claimed = claimer.claim(100)
        claimer.settle_and_claim([ended(claim) for claim in claimed], want(100))
        read = connection.execute(
            "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'ready'"
        ).fetchone()
    assert read is not None
    assert read[0] < 2_000, "rows read for 200 claims and 100 settlements"


@pytest.mark.parametrize("analysed", ["never", "when it was empty"])
def test_a_claim_reads_what_it_claims_and_not_the_backlog(
    dsn: str, connection: psycopg.Connection, claimer: Claimer, analysed: str
) -> None:
    """Right after a burst the statistics still say that the table is empty."""
    if analysed != "never":
        connection.execute("ANALYZE")
    send(dsn, DEBIT, 20_000)
    connection.execute("SET track_functions = 'all'")
    before = pages_read(connection)
    finished: list[Finished] = []
    for _ in range(20):
        found = claimer.settle_and_claim(finished, want(20))
        assert len(found) == 20
        finished = [ended(claim) for claim in found]
    assert pages_read(connection) - before < 20 * 20 * 15


def test_the_next_expiry_is_found_without_a_walk(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send("payments", "Debit", expires=datetime.now(UTC))
    for table in ("ready", "scheduled", "limited"):
        connection.execute(FILL.format(table).encode())
    with connection.transaction():
        before = scalar(connection, READ)
        assert scalar(connection, "SELECT due FROM cmdbus.next_expiry()") <= 0
        assert scalar(connection, "SELECT cmdbus.expire(10, 10000, '{}')") == 1
        assert scalar(connection, "SELECT due FROM cmdbus.next_expiry()") > 0
        assert scalar(connection, READ) - before < 500


def test_rows_of_one_id_that_a_sender_has_written_are_renewed_and_settled_by_their_own(
    connection: psycopg.Connection, claimer: Claimer
) -> None:
    """By as many reads as others, although each is found by its command's id."""
    connection.execute(
        "INSERT INTO cmdbus.ready (domain, priority, command_id, correlation_id, type, data)"
        " SELECT 'payments', 5, gen, gen, 'Debit', 'null'::json"
        " FROM gen_random_uuid() gen, generate_series(1, 20000)"
    )
    connection.execute("ANALYZE cmdbus.ready")
    claimed = claimer.claim(10)
    before = pages_read(connection)
    assert claimer.renew(*claimed) == []
    assert claimer.settle_and_claim([ended(claim) for claim in claimed], want(0)) == []
    assert pages_read(connection) - before < 500


def test_urgent_commands_of_the_future_slow_and_starve_nobody(
    dsn: str, connection: psycopg.Connection, claimer: Claimer
) -> None:
    send(dsn, SendRequest("payments", "Debit", priority="high", delay=3600), 10_000)
    send(dsn, DEBIT, 1)
    before = pages_read(connection)
    assert claimer.claim_one().priority == 5
    assert pages_read(connection) - before < 100
    plan = connection.execute(
        "EXPLAIN SELECT due_at FROM cmdbus.scheduled ORDER BY due_at, id LIMIT 1"
    ).fetchall()
    assert "scheduled_pkey" in str(plan)


def send(dsn: str, request: SendRequest, count: int) -> None:
    """By a session that ends."""
    with CommandBus(dsn) as bus:
        bus.send_many([request] * count)


def pages_read(connection: psycopg.Connection) -> int:
    """Heap and index pages of ready that all sessions have read so far.

    A session reports its last pages when it ends, a moment after its client has closed it.
    """
    others = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    eventually(lambda: not connection.execute(others).fetchall())
    connection.execute("SELECT pg_stat_clear_snapshot()")
    if connection.info.server_version >= 150000:
        connection.execute("SELECT pg_stat_force_next_flush()")
    else:  # statistics are sent at most twice a second
        connection.execute("SELECT pg_sleep(0.6)")
        connection.execute("SELECT 1")
    row = connection.execute(
        "SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit"
        " FROM pg_statio_user_tables WHERE relid = 'cmdbus.ready'::regclass"
    ).fetchone()
    assert row is not None
    return int(row[0])
