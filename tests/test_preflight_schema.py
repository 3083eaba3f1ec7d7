"""What a supervisor checks of its database before it starts: encoding, schema, history."""

import psycopg
import pytest
from databases import Databases
from handlers import connect
from preflights import FATAL, WARNING, checks, troubles
from queries import limit_by_hand, rows

from cmdbus import CommandBus
from cmdbus.database.schema import install
from cmdbus.readiness import Finding


def assert_repaired(dsn: str, change: str, check: str, text: str) -> None:
    """The check warns of the change, and its fix repairs it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(change.encode())
        found = checks(dsn)[check]
        assert found.finding is WARNING and text in found.sentence
        connection.execute(found.fix.encode())
    assert troubles(dsn) == []


def test_more_days_of_history_than_the_server_has_locks_for_are_a_warning(dsn: str) -> None:
    [[locks]] = rows(
        dsn,
        "SELECT current_setting('max_locks_per_transaction')::int"
        " * current_setting('max_connections')::int",
    )
    days = locks // 30
    rows(dsn, "SELECT cmdbus.make_partitions(%s)", days)
    found = checks(dsn)["history"]
    assert found.finding is WARNING
    assert f"history has {days + 1} days" in found.sentence
    assert f"max_locks_per_transaction to {3 * (days + 1)}" in (found.fix or "")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("ALTER TABLE cmdbus.scheduled DISABLE TRIGGER ALL", "does not fire for a send: "),
        ("ALTER TABLE cmdbus.scheduled ENABLE REPLICA TRIGGER wake", "does not fire for a send: "),
        ("ALTER TABLE cmdbus.scheduled ENABLE TRIGGER ALL", "does not fire for a row that is"),
        ("DROP TRIGGER wake ON cmdbus.scheduled", "is missing for a send: "),
    ],
)
def test_a_trigger_that_is_missing_or_in_another_mode_is_a_warning_with_its_repair(
    dsn: str, change: str, text: str
) -> None:
    assert_repaired(dsn, change, "triggers", f"the trigger wake of cmdbus.scheduled {text}")


@pytest.mark.parametrize(
    ("table", "trigger", "text"),
    [
        ("ready", "wake", "it wakes no idle worker"),
        ("turn", "wake", "it wakes no idle worker"),
        ("limited", "leave_turns", "commands that wait at a limit may not be claimed"),
    ],
)
def test_each_trigger_that_is_missing_is_made_again(
    dsn: str, table: str, trigger: str, text: str
) -> None:
    about = f"the trigger {trigger} of cmdbus.{table} is missing for a send: {text}"
    assert_repaired(dsn, f"DROP TRIGGER {trigger} ON cmdbus.{table}", "triggers", about)


def test_the_repair_of_limits_lets_those_that_wait_be_claimed(dsn: str, bus: CommandBus) -> None:
    change = "ALTER TABLE cmdbus.limited DISABLE TRIGGER leave_turns"
    with connect(dsn) as connection:
        connection.execute(change)
    limit_by_hand(dsn, bus.send("payments", "Debit", key="a"))
    assert rows(dsn, "SELECT key FROM cmdbus.turn") == []
    assert_repaired(dsn, change, "triggers", "commands that wait at a limit may not be claimed")
    assert rows(dsn, "SELECT DISTINCT key FROM cmdbus.turn") == [("a",)]


def test_an_index_that_is_missing_is_a_warning_with_its_repair(dsn: str) -> None:
    change = "DROP INDEX cmdbus.ready_command"
    assert_repaired(dsn, change, "objects", "the index ready_command of")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("DROP FUNCTION cmdbus.place_of", "place_of"),
        ("DROP TABLE cmdbus.removal", "removal, removal_pkey"),
        ("DROP SEQUENCE cmdbus.patience", "patience"),
        ("DROP VIEW cmdbus.command", "command"),
        ("ALTER TABLE cmdbus.identity DROP CONSTRAINT identity_pkey", "identity_pkey"),
    ],
)
def test_a_schema_of_which_something_was_dropped_is_refused(
    dsn: str, change: str, name: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(change.encode())
    found = checks(dsn)["objects"]
    assert found.finding is FATAL
    assert f"schema 'cmdbus' lacks {name}, which" in found.sentence


def test_sequences_behind_restored_rows_are_refused_with_their_repair(dsn: str) -> None:
    """As after logical replication, which copies no sequences."""
    with CommandBus(dsn) as bus, psycopg.connect(dsn, autocommit=True) as connection:
        for domain, delay in (("a", None), ("b", None), ("b", 60)):
            ids = [bus.send(domain, "Debit", delay=delay) for _ in range(3)]
        bus.reschedule("b", ids[0], delay=30)
        bus.pause("a")
        assert troubles(dsn) == []
        for table in ("ready", "scheduled", "event", "domain_event"):
            connection.execute(f"ALTER SEQUENCE cmdbus.{table}_id_seq RESTART".encode())
        with pytest.raises(psycopg.errors.UniqueViolation):
            bus.send("a", "Debit")
        found = checks(dsn)["sequences"]
        assert found.finding is FATAL
        assert "behind the ids of ready, scheduled, event, domain_event, as" in found.sentence
        for repair in (found.fix or "").split("; "):
            connection.execute(repair.removeprefix("run ").encode())
        assert troubles(dsn) == []
        bus.send("a", "Debit")


@pytest.mark.parametrize(("encoding", "finding"), [("SQL_ASCII", FATAL), ("LATIN1", WARNING)])
def test_a_database_of_another_encoding_is_recognised(
    databases: Databases, encoding: str, finding: Finding
) -> None:
    with databases.fresh(encoding=encoding) as name:
        found = checks(databases.dsn_of(name))["encoding"]
        assert found.finding is finding
        assert encoding in found.sentence and "ENCODING 'UTF8'" in (found.fix or "")


def test_a_schema_that_is_missing_newer_or_of_another_build_is_one_line(
    empty_dsn: str,
) -> None:
    missing = checks(empty_dsn)["schema"]
    assert missing.finding is FATAL
    assert "is not installed" in missing.sentence and "run cmdbus init" in missing.sentence
    install(empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        for change, text in (
            ("INSERT INTO cmdbus.migration VALUES (99, 'from the future')", "has version 99"),
            ("UPDATE cmdbus.migration SET digest = '' WHERE version = 1", "made by another build"),
        ):
            connection.execute(change)
            found = checks(empty_dsn)["schema"]
            assert found.finding is FATAL and text in found.sentence
            assert "\n" not in str(found)
