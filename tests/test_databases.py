"""The databases that tests get."""

import psycopg
import pytest
from databases import Databases

from cmdbus import CommandBus, SendRequest


def used(databases: Databases, template: str, *queries: str) -> str:
    """The name of a database in which these were executed."""
    with (
        databases.fresh(template, cleaned=True) as name,
        psycopg.connect(databases.dsn_of(name)) as connection,
    ):
        for query in queries:
            connection.execute(query.encode())
    return name


def test_one_in_which_nothing_was_written_is_given_to_the_next_test(
    databases: Databases, template: str
) -> None:
    """Unless the server itself has written something meanwhile."""
    names = [used(databases, template, "SELECT * FROM cmdbus.command") for _ in range(5)]
    assert len({*names}) < 5


def all_rows(databases: Databases, name: str) -> list[tuple[str, str]]:
    """Of its tables and sequences, by their names."""
    query = """
        SELECT relname,
            query_to_xml(format('SELECT * FROM %s', oid::regclass), true, true, '')::text
        FROM pg_class WHERE relkind IN ('r', 'S') AND relnamespace >= 16384 ORDER BY oid"""
    with psycopg.connect(databases.dsn_of(name)) as connection:
        return connection.execute(query).fetchall()


def test_one_in_which_rows_were_written_is_given_to_the_next_test_without_them(
    databases: Databases, template: str
) -> None:
    with databases.fresh(template, cleaned=True) as name:
        expected = all_rows(databases, name)
        with CommandBus(databases.dsn_of(name)) as bus:
            bus.send("payments", "Debit", unique="one")
            bus.cancel_all("payments")
            bus.pause("orders")
            bus.create_batch("payments", [SendRequest("payments", "Debit", unique="two")])
        assert all_rows(databases, name) != expected
    with databases.fresh(template, cleaned=True) as other:
        assert (other, all_rows(databases, other)) == (name, expected)


@pytest.mark.parametrize(
    "write",
    [
        "COMMENT ON SCHEMA cmdbus IS 'seen'",
        "CREATE TABLE made ()",
        "GRANT SELECT ON cmdbus.ready TO PUBLIC",
        "UPDATE cmdbus.limit_change SET number = number",
        "ANALYZE cmdbus.ready",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET jit = on', current_database()); END $$",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 7', current_database());"
        " END $$",
        "INSERT INTO effect SELECT FROM generate_series(1, 9999)",
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid();"
        " INSERT INTO effect DEFAULT VALUES",
    ],
)
def test_one_that_is_not_as_before_is_not_given_to_the_next_test(
    databases: Databases, template: str, write: str
) -> None:
    used(databases, template, "INSERT INTO effect DEFAULT VALUES")
    assert used(databases, template, write) != used(databases, template)


def test_one_may_be_a_template_and_then_another_one(databases: Databases, template: str) -> None:
    names = []
    for attempt in range(2):
        with databases.fresh(template, cleaned=True) as name:
            names.append(name)
            with psycopg.connect(databases.dsn_of(name)) as connection:
                connection.execute("INSERT INTO effect (attempt) VALUES (%s)", (attempt,))
            with (
                databases.fresh(name, cleaned=True) as copied,
                psycopg.connect(databases.dsn_of(copied)) as connection,
            ):
                found = connection.execute("SELECT attempt FROM effect").fetchall()
        assert found == [(attempt,)]
    assert names[0] == names[1]
