"""What a test asks the database, and what it does to rows in the place of a worker or a user."""

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from eventually import eventually

#: A DSN for what is refused before a connection is made.
NOWHERE = "host=nowhere.invalid"
#: The sessions of workers and stewards.
SESSIONS = (
    "FROM pg_stat_activity WHERE datname = current_database()"
    " AND starts_with(application_name, 'cmdbus:') AND application_name <> 'cmdbus:bus'"
)
#: What a worker does to a row when it claims it: for how long, and the command's id.
CLAIM = (
    "UPDATE cmdbus.ready SET claimer = 1, token = token + 1, claimed_at = clock_timestamp(),"
    " lease_until = clock_timestamp() + %s::interval WHERE command_id = %s"
)

#: By the DSNs that are kept: the session of the test's own thread.
_kept: dict[str, psycopg.Connection | None] = {}
_PID = os.getpid()


@contextmanager
def keeping(dsn: str) -> Iterator[None]:
    """Meanwhile `rows` asks on one session: a new one costs more than most queries, and a wait
    asks a hundred times a second."""
    _kept[dsn] = None
    try:
        yield
    finally:
        session = _kept.pop(dsn)
        if session is not None:
            session.close()


def _kept_session(dsn: str) -> psycopg.Connection:
    session = _kept[dsn]
    if session is not None and (session.closed or select.select([session], [], [], 0)[0]):
        session.close()  # the server has ended it
        session = None
    if session is None:
        session = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        _kept[dsn] = session
    return session


def scalar(connection: psycopg.Connection, query: str, *values: object) -> Any:
    """Of a query with one row: what is in its first column."""
    [row] = connection.execute(query.encode(), values or None).fetchall()
    return row[0]


def rows(dsn: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    in_test = threading.current_thread() is threading.main_thread() and os.getpid() == _PID
    if in_test and dsn in _kept:
        return _kept_session(dsn).execute(query.encode(), values or None).fetchall()
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode(), values or None).fetchall()


def counts(dsn: str) -> dict[str, int]:
    """The number of rows of each table, of the bus and of the application."""
    query = """
        SELECT relname, (xpath('/row/count/text()', query_to_xml(
            format('SELECT count(*) FROM %s', oid::regclass), false, true, '')))[1]::text::int
        FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
            AND relnamespace IN ('cmdbus'::regnamespace, 'public'::regnamespace)"""
    return dict(rows(dsn, query))


def count(connection: psycopg.Connection, table: str) -> int:
    return int(scalar(connection, f"SELECT count(*) FROM {table}"))


def insert(connection: psycopg.Connection, table: str, **row: object) -> None:
    names, places = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})".encode(), row)


def await_lock_waits(dsn: str, sessions: int = 1) -> None:
    """Until as many sessions of the database wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with psycopg.connect(dsn, autocommit=True) as watcher:
        eventually(lambda: scalar(watcher, query) >= sessions)


def end_sessions(dsn: str) -> None:
    """Those of workers and stewards, which have ended afterwards."""
    rows(dsn, f"SELECT pg_terminate_backend(pid, 5000) {SESSIONS}")


def end_listening_sessions(dsn: str) -> int:
    """How many there were."""
    query = f"SELECT count(pg_terminate_backend(pid, 5000)) {SESSIONS} AND query LIKE 'LISTEN%'"
    return int(rows(dsn, query)[0][0])


def claim_by_hand(dsn: str, command_id: object, lease: str = "1 minute") -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(CLAIM, (lease, command_id))


def limit_by_hand(dsn: str, *command_ids: object) -> None:
    """Puts these commands from ready to where they wait at a limit."""
    columns = (
        "token, claimed_at, created_at, due_at, command_id, correlation_id, priority, attempts,"
        " losses, max_attempts, domain, type, reply_to, data, batch_id, caller, key, unique_key,"
        " expires_at, headers"
    )
    query = f"""
        WITH gone AS (DELETE FROM cmdbus.ready WHERE command_id = ANY (%s) RETURNING *)
        INSERT INTO cmdbus.limited ({columns}) SELECT {columns} FROM gone ORDER BY id"""
    with psycopg.connect(dsn, autocommit=True) as connection:
        moved = connection.execute(query.encode(), (list(command_ids),)).rowcount
    assert moved == len(command_ids)


def move_to_troubleshooting(
    dsn: str, code: str = "GONE", message: str = "it is gone", attempts: int = 3
) -> int:
    """Everything that is ready but replies, as workers would: how many commands."""
    query = """
        WITH gone AS (DELETE FROM cmdbus.ready WHERE type <> 'Reply' RETURNING *),
        logged AS (
            INSERT INTO cmdbus.event (domain, command_id, kind, code, details)
            SELECT domain, command_id, 'MOVED_TO_TROUBLESHOOTING_QUEUE', %(code)s,
                '{"reason": "PERMANENT"}'
            FROM gone)
        INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id, priority,
            attempts, losses, max_attempts, sent_max_attempts, domain, type, reply_to, data,
            error_code, error_message, key, headers)
        SELECT 7, created_at, command_id, correlation_id, priority, %(attempts)s, 2, 3,
            max_attempts, domain, type, reply_to, data, %(code)s, %(message)s,
            key, headers
        FROM gone"""
    given = {"code": code, "message": message, "attempts": attempts}
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query, given).rowcount


def slow_down_inserts(
    connection: psycopg.Connection, seconds: float, table: str = "ready", condition: str = "true"
) -> None:
    """Each insert of a row that meets the condition takes `seconds`."""
    connection.execute(
        f"""
        CREATE OR REPLACE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_catalog.pg_sleep({seconds}); RETURN NEW; END';
        CREATE TRIGGER dawdle BEFORE INSERT ON cmdbus.{table}
            FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION public.dawdle()""".encode()
    )


def holds_advisory_lock(connection: psycopg.Connection, key: int) -> bool:
    """Whether a session of this database does."""
    return bool(
        scalar(
            connection,
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted"
            f" AND objid = {key} AND objsubid = 1 AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database()))",
        )
    )
