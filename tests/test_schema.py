"""The schema: installed once by however many starters, compared, granted, plans held."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from handlers import connect
from queries import rows, scalar
from senders import race

import cmdbus
from cmdbus import CommandBus, SchemaError, SendRequest
from cmdbus.database import schema
from cmdbus.database.schema import check, install, make_partitions
from cmdbus.database.statements import render, statement, versions

pytestmark = pytest.mark.new_database


def test_installing_again_changes_nothing(empty_dsn: str) -> None:
    first, second = install(empty_dsn), install(empty_dsn)
    assert (first.before, first.after) == (0, len(versions()))
    assert (second.before, second.after) == (first.after, first.after)


def test_many_starters_install_it_once(empty_dsn: str) -> None:
    befores = [getattr(done, "before", done) for done in race([lambda: install(empty_dsn)] * 8)]
    assert sorted(befores, key=str) == [0] + [len(versions())] * 7
    assert rows(empty_dsn, "SELECT count(*) FROM cmdbus.migration") == [(len(versions()),)]


def test_a_schema_that_holds_something_else_is_refused(empty_dsn: str) -> None:
    """Its functions would run with the owner's rights, and REVOKE would change its tables."""
    with connect(empty_dsn) as connection:
        connection.execute("CREATE SCHEMA cmdbus; CREATE TABLE cmdbus.identity (a int)")
        connection.execute("CREATE FUNCTION public.app() RETURNS int LANGUAGE sql RETURN 1")
        with pytest.raises(SchemaError, match="'cmdbus' exists already and holds something else"):
            install(empty_dsn)
        with pytest.raises(SchemaError, match="'public' exists already"):
            install(empty_dsn, "public")
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'cmdbus'")
        assert tables.fetchall() == [("identity",)]
        connection.execute("CREATE SCHEMA monitors AUTHORIZATION pg_monitor; CREATE SCHEMA own")
        with pytest.raises(SchemaError, match="belongs to pg_monitor"):
            install(empty_dsn, "monitors")
        install(empty_dsn, "own")


def test_two_schemas_in_one_database_are_two_buses(empty_dsn: str) -> None:
    """One of them is named by a reserved word."""
    for name in ("cmdbus", "order"):
        install(empty_dsn, name)
    with CommandBus(empty_dsn) as one, CommandBus(empty_dsn, schema="order") as other:
        id_ = uuid4()
        one.send("payments", "Debit", command_id=id_)
        assert other.get("payments", id_) is None
        other.send("payments", "Debit", command_id=id_)
        other.cancel("payments", id_)
        assert str(one.query()[0].status) == "PENDING"


def test_a_newer_database_is_refused(dsn: str) -> None:
    with connect(dsn) as connection:
        connection.execute("INSERT INTO cmdbus.migration VALUES (999, 'from the future')")
        sentence = "schema 'cmdbus' has version 999, and this code knows versions up to"
        with pytest.raises(SchemaError, match=sentence):
            install(dsn)
        with pytest.raises(SchemaError, match=sentence):
            check(connection, "cmdbus")


def test_a_missing_schema_is_reported_with_the_command_that_installs_it(empty_dsn: str) -> None:
    calls: list[Callable[[CommandBus], object]] = [
        lambda bus: bus.send("payments", "Debit"),
        lambda bus: bus.send_many([SendRequest("payments", "Debit")]),
        lambda bus: bus.get("payments", uuid4()),
        lambda bus: bus.snapshot("payments"),
    ]
    with CommandBus(empty_dsn) as bus:
        for call in calls:
            with pytest.raises(SchemaError, match="'cmdbus' is not installed"):
                call(bus)


def test_a_missing_schema_is_reported_also_in_a_callers_transaction(empty_dsn: str) -> None:
    """Which has failed; another schema's table that is missing is the caller's affair."""
    with CommandBus(empty_dsn) as bus, psycopg.connect(empty_dsn) as own:
        calls: list[Callable[[], object]] = [
            lambda: bus.send("payments", "Debit", connection=own),
            lambda: bus.send_many([SendRequest("payments", "Debit")], connection=own),
            lambda: bus.get("payments", uuid4(), connection=own),
        ]
        for call in calls:
            with pytest.raises(SchemaError, match=r"'cmdbus' is not installed .*run cmdbus init"):
                call()
            own.rollback()
    with connect(empty_dsn) as own, CommandBus(empty_dsn) as bus:
        install(empty_dsn)
        own.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM FROM shop.missing; END $$;"
            "CREATE TRIGGER fail BEFORE INSERT ON cmdbus.ready FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        with pytest.raises(psycopg.errors.UndefinedTable, match=r"shop\.missing"):
            bus.send("payments", "Debit", connection=own)


UPGRADE = """
import sys, psycopg
from cmdbus.database import schema
with psycopg.connect(sys.argv[1]) as connection:
    try:
        schema.check(connection, "cmdbus")
    except schema.SchemaError as error:
        print(error)
print(schema.install(sys.argv[1]))
"""
MIGRATION = """
CREATE OR REPLACE FUNCTION {schema}.writers() RETURNS text[] LANGUAGE sql
AS $$ SELECT '{}'::text[] $$;
CREATE FUNCTION {schema}.added() RETURNS integer LANGUAGE sql AS $$ SELECT 2 $$;
"""


def test_a_later_version_upgrades_an_older_schema_and_secures_its_functions(
    dsn: str, tmp_path: Path
) -> None:
    """The next release in miniature: this one, and a migration."""
    package = tmp_path / "cmdbus"
    shutil.copytree(Path(schema.__file__).parent, package / "database")
    for entry in Path(cmdbus.__file__).parent.iterdir():
        if entry.name != "database":
            (package / entry.name).symlink_to(entry)
    migrations = package / "database/sql/migrations"
    migrations.mkdir()
    (migrations / "0002_added.sql").write_text(MIGRATION)
    done = subprocess.run(
        [sys.executable, "-c", UPGRADE, dsn],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert "has version 1 in database" in done.stdout, done.stderr
    assert "this code needs version 2: run cmdbus init" in done.stdout
    assert "Installed(before=1, after=2," in done.stdout
    with connect(dsn) as connection:
        settings = connection.execute(
            "SELECT DISTINCT proconfig FROM pg_proc WHERE proname IN ('writers', 'added')"
            " AND NOT has_function_privilege('pg_monitor', oid, 'EXECUTE')"
        )
        assert settings.fetchall() == [(["search_path=pg_catalog, pg_temp"],)]
        with pytest.raises(SchemaError, match="has version 2, and this code knows versions up to"):
            check(connection, "cmdbus")


def test_a_schema_of_another_build_is_refused_in_one_sentence(dsn: str) -> None:
    """Also one with more migrations than this one has versions, or without digests."""
    for change in (
        "UPDATE cmdbus.migration SET digest = 'another' WHERE version = 1",
        "INSERT INTO cmdbus.migration VALUES (13, 'migration_0013_domains', 'another')",
        "ALTER TABLE cmdbus.migration DROP COLUMN digest",
    ):
        with connect(dsn) as connection:
            connection.execute(change)
            for look in (lambda: check(connection, "cmdbus"), lambda: install(dsn)):
                with pytest.raises(SchemaError, match=r"another build .* DROP SCHEMA \"cmdbus\""):
                    look()


def test_partitions_reach_two_weeks_ahead_and_are_made_beside_readers(dsn: str) -> None:
    with connect(dsn) as connection, connect(dsn) as reader:
        count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'cmdbus.finished'::regclass"
        assert connection.execute(count).fetchone() == (15,)
        with reader.transaction():
            reader.execute("SELECT count(*) FROM cmdbus.finished")
            make_partitions(connection, "cmdbus")
            connection.execute("SELECT cmdbus.make_partitions(16)")
            assert connection.execute(count).fetchone() == (17,)


def test_partitions_do_not_queue_behind_a_lock(dsn: str) -> None:
    with connect(dsn) as connection, connect(dsn) as holder, holder.transaction():
        holder.execute("LOCK TABLE cmdbus.finished IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT cmdbus.make_partitions(16)")


def test_no_role_may_execute_a_function_unless_it_is_granted(dsn: str) -> None:
    open_to_all = (
        "SELECT proname FROM pg_proc WHERE pronamespace = 'cmdbus'::regnamespace"
        " AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0))"
    )
    assert rows(dsn, open_to_all) == []


def test_functions_look_into_no_foreign_schema(dsn: str) -> None:
    """But for those with an SQL-standard body, which is bound when they are made."""
    loose = (
        "SELECT proname FROM pg_proc WHERE pronamespace = 'cmdbus'::regnamespace"
        " AND prosqlbody IS NULL"
        " AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))"
    )
    assert rows(dsn, loose) == []


BY_ID = {
    "ready": {"ready_command"},
    "scheduled": {"scheduled_command"},
    "troubleshooting": {"troubleshooting_pkey"},
    "finished": {"finished_DAY_pkey"},
}


@pytest.mark.parametrize(
    ("name", "parameters", "indexes"),
    [
        ("read_command", {}, {**BY_ID, "checkpoint": {"checkpoint_pkey"}}),
        (
            "query_commands",
            dict.fromkeys(("domain", "status", "type", "key", "since", "until"))
            | {"limit": 10, "offset": 0},
            {"finished": {"finished_DAY_created_at_idx"}, "checkpoint": {"checkpoint_pkey"}},
        ),
        ("read_audit", {}, {**BY_ID, "event": {"event_pkey"}}),
        ("read_task", {"domains": ["payments"]}, {**BY_ID, "event": {"event_pkey"}}),
        (
            "read_trouble",
            dict.fromkeys(("domain", "type", "error_code", "key", "since", "until"))
            | {"limit": 10, "offset": 0},
            {"troubleshooting": {"troubleshooting_newest"}, "event": {"event_pkey"}},
        ),
        (
            "read_domains",
            {"domains": ["other"], "unhandled_after": 60.0},
            {
                "ready": {"ready_pkey"},
                "scheduled": {"scheduled_command"},
                "troubleshooting": {"troubleshooting_pkey"},
            },
        ),
    ],
    ids=["get", "query", "audit", "task", "troubleshooting", "domains"],
)
def test_looks_use_indexes(
    dsn: str, name: str, parameters: dict[str, object], indexes: dict[str, set[str]]
) -> None:
    with connect(dsn) as connection:
        connection.execute(FILL.encode())
        parameters = {"domain": "payments", "command_id": uuid4(), **parameters}
        explain = b"EXPLAIN (FORMAT JSON) " + statement(name, "cmdbus")
        [[plan]] = connection.execute(explain, parameters).fetchall()
        today = "SELECT right(max(tableoid::regclass::text), 8) FROM cmdbus.finished"
        day = scalar(connection, today)
        found: dict[str, set[str]] = {}
        for table, index in scans(plan[0]["Plan"]):
            # The partitions of other days are empty.
            found.setdefault(table.replace(f"_{day}", ""), set()).add(index.replace(day, "DAY"))
    assert {table: found.get(table) for table in indexes} == indexes


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Table and index of each scan; without an index, the kind of scan."""
    table, index = plan.get("Relation Name"), plan.get("Index Name")
    if plan["Node Type"] == "Bitmap Heap Scan":  # the index is below it
        yield from ((str(table), used) for _, used in scans(plan["Plans"][0]))
        return
    if table or index:
        yield str(table), index or plan["Node Type"]
    for below in plan.get("Plans", []):
        yield from scans(below)


#: Every table of commands, and their events; as many as make an index worth it.
FILL = """
INSERT INTO cmdbus.finished (token, created_at, command_id, correlation_id, priority, attempts,
    losses, domain, type, status, data)
SELECT 1, clock_timestamp(), gen_random_uuid(), gen_random_uuid(), 5, 1, 0, 'payments', 'Debit',
    'COMPLETED', '{}'
FROM generate_series(1, 5000);
INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id, priority,
    attempts, losses, domain, type, data)
SELECT token, created_at, command_id, correlation_id, 5, 1, 0, domain, type, data
FROM cmdbus.finished;
INSERT INTO cmdbus.ready (command_id, correlation_id, priority, domain, type, data)
SELECT command_id, correlation_id, 5, domain, type, data FROM cmdbus.finished LIMIT 2000;
INSERT INTO cmdbus.scheduled (due_at, command_id, correlation_id, priority, domain, type, data)
SELECT now(), command_id, correlation_id, 5, domain, type, data FROM cmdbus.finished LIMIT 2000;
INSERT INTO cmdbus.event (command_id, domain, kind)
SELECT command_id, domain, 'MOVED_TO_TROUBLESHOOTING_QUEUE' FROM cmdbus.finished;
ANALYZE cmdbus.finished, cmdbus.troubleshooting, cmdbus.ready, cmdbus.scheduled, cmdbus.event
"""


def test_every_statement_renders_for_every_schema() -> None:
    assert '"order".ready' in render("purge", "order")
    with pytest.raises(ValueError, match="schema must"):
        render("purge", 'x"; DROP TABLE y; --')
