"""Sends with unique keys read a few rows, however many commands and keys there are."""

import psycopg
import pytest
from handlers import connect
from queries import scalar

pytestmark = pytest.mark.new_database

#: Many commands of one domain, each with a key, in every table.
FILL = """
INSERT INTO cmdbus.ready (command_id, correlation_id, priority, domain, type, data, unique_key)
SELECT gen_random_uuid(), gen_random_uuid(), 5, 'payments', 'Debit', '{}', 'ready ' || n
FROM generate_series(1, 5000) n;
INSERT INTO cmdbus.scheduled (due_at, command_id, correlation_id, priority, domain, type, data,
    unique_key)
SELECT now() + interval '1 day', gen_random_uuid(), gen_random_uuid(), 5, 'payments', 'Debit',
    '{}', 'scheduled ' || n
FROM generate_series(1, 5000) n;
INSERT INTO cmdbus.finished (token, created_at, command_id, correlation_id, priority, attempts,
    losses, domain, type, status, data, unique_key)
SELECT 1, now(), gen_random_uuid(), gen_random_uuid(), 5, 1, 0, 'payments', 'Debit', 'COMPLETED',
    '{}', 'finished ' || n
FROM generate_series(1, 5000) n;
INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id, priority,
    attempts, losses, domain, type, data, unique_key)
SELECT 1, now(), gen_random_uuid(), gen_random_uuid(), 5, 1, 0, 'payments', 'Debit', '{}',
    'troubleshooting ' || n
FROM generate_series(1, 5000) n;
INSERT INTO cmdbus.unique_command (domain, unique_key, command_id, until_started, held_until)
SELECT domain, unique_key, command_id, false, CASE status WHEN 'COMPLETED' THEN 'tomorrow'::date END
FROM cmdbus.command WHERE NOT starts_with(unique_key, 'early');
"""
#: Rows that this transaction has read, and perhaps those shortly before it.
READ = """
SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint
FROM pg_stat_xact_user_tables WHERE schemaname = 'cmdbus'"""
SEND = "SELECT cmdbus.send('payments', 'Debit', p_unique => %s, p_on_conflict => %s)"


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_key_is_looked_up_by_indexes(dsn: str, analyzed: bool) -> None:
    """Also by a session that made its plans while all was empty."""
    with connect(dsn) as admin, psycopg.connect(dsn) as sender:
        for n in range(10):
            scalar(sender, SEND, f"early {n % 5}", "replace")
        sender.commit()
        admin.execute(FILL.encode())
        if analyzed:
            admin.execute("ANALYZE")
        for table in ("ready", "scheduled", "finished", "troubleshooting", "no"):
            for on_conflict in ("existing", "replace"):
                key = f"{table} 77"
                try:
                    scalar(sender, SEND, key, on_conflict)
                except psycopg.errors.UniqueViolation:
                    assert table in ("finished", "troubleshooting") and on_conflict == "replace"
                    sender.rollback()
                    continue
                assert scalar(sender, READ) < 1000, (table, on_conflict)
                sender.rollback()


def test_retention_reads_no_more_than_the_rows_it_looks_at(dsn: str) -> None:
    with connect(dsn) as admin, psycopg.connect(dsn) as steward:
        admin.execute(FILL.encode())
        scalar(steward, "SELECT removed FROM cmdbus.retain_unique(100, 'payments', 'ready 4')")
        assert scalar(steward, READ) < 1000


def test_a_command_is_canceled_without_a_look_at_others(dsn: str) -> None:
    cancel = "SELECT cmdbus.cancel('payments', %s, NULL, false, 'ann')"
    with connect(dsn) as admin, psycopg.connect(dsn) as operator:
        for _ in range(10):
            scalar(operator, cancel, scalar(operator, "SELECT cmdbus.send('payments', 'Debit')"))
        operator.commit()
        admin.execute(FILL.encode())
        for table in ("ready", "scheduled"):
            id_ = scalar(admin, f"SELECT max(command_id::text) FROM cmdbus.{table}")
            assert scalar(operator, cancel, id_) == "canceled"
            assert scalar(operator, READ) < 1000, table
            operator.rollback()
