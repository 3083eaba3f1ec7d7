"""The schema: installed once by however many starters, compared, granted, plans held."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from cmdbus import CommandBus, QueueFullError, SchemaError, SendRequest
from cmdbus.schema import check, install, make_partitions
from cmdbus.statements import migrations, render, statement

pytestmark = pytest.mark.db


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True)


def at_once(count: int, work: Callable[[], object]) -> list[object]:
    """What `work` returns or raises in so many threads that start together."""
    barrier = threading.Barrier(count)
    results: list[object] = []

    def run() -> None:
        barrier.wait(10)
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_installing_again_changes_nothing(empty_dsn: str) -> None:
    first, second = install(empty_dsn), install(empty_dsn)
    assert (first.before, first.after) == (0, len(migrations()))
    assert (second.before, second.after) == (first.after, first.after)


def test_many_starters_install_it_once(empty_dsn: str) -> None:
    """M078, fault 51."""
    befores = [getattr(done, "before", done) for done in at_once(8, lambda: install(empty_dsn))]
    assert sorted(befores, key=str) == [0] + [len(migrations())] * 7
    with connect(empty_dsn) as connection:
        rows = connection.execute("SELECT count(*) FROM cmdbus.migration").fetchone()
        assert rows == (len(migrations()),)


def test_a_schema_that_holds_something_else_is_refused(empty_dsn: str) -> None:
    """What somebody put there would run with the owner's rights; and REVOKEs would hit it."""
    with connect(empty_dsn) as connection:
        connection.execute("CREATE SCHEMA cmdbus; CREATE TABLE cmdbus.identity (a int)")
        connection.execute("CREATE FUNCTION public.app() RETURNS int LANGUAGE sql RETURN 1")
        with pytest.raises(SchemaError, match="'cmdbus' exists already and holds something else"):
            install(empty_dsn)
        with pytest.raises(SchemaError, match="'public' exists already"):
            install(empty_dsn, "public")
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'cmdbus'")
        assert tables.fetchall() == [("identity",)]
        connection.execute("CREATE SCHEMA theirs AUTHORIZATION pg_monitor; CREATE SCHEMA ours")
        with pytest.raises(SchemaError, match="belongs to pg_monitor"):
            install(empty_dsn, "theirs")
        install(empty_dsn, "ours")


def test_two_schemas_in_one_database_are_two_buses(empty_dsn: str) -> None:
    """M066; one of them is named by a reserved word."""
    for schema in ("cmdbus", "order"):
        install(empty_dsn, schema)
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


def test_a_missing_schema_is_said_with_the_command_that_helps(empty_dsn: str) -> None:
    """R05."""
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


def test_an_older_schema_is_said(dsn: str) -> None:
    """R05."""
    with connect(dsn) as connection:
        connection.execute("DELETE FROM cmdbus.migration WHERE version > 2")
        with pytest.raises(SchemaError, match=r"has version 2 .* run cmdbus init"):
            check(connection, "cmdbus")


def test_a_schema_of_another_build_is_refused_in_one_sentence(dsn: str) -> None:
    """R05. Also one from before it was recorded by what it was made."""
    for change in (
        "UPDATE cmdbus.migration SET digest = 'another' WHERE version = 2",
        "DELETE FROM cmdbus.migration WHERE version > 2",
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


def test_nobody_may_execute_a_function_unless_it_is_granted(dsn: str) -> None:
    with connect(dsn) as connection:
        open_to_all = connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'cmdbus'::regnamespace"
            " AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0))"
        ).fetchall()
        assert open_to_all == []


def test_functions_look_into_no_foreign_schema(dsn: str) -> None:
    """But for those with an SQL-standard body, which is bound when they are made."""
    with connect(dsn) as connection:
        loose = connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'cmdbus'::regnamespace"
            " AND prosqlbody IS NULL"
            " AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))"
        ).fetchall()
        assert loose == []


@contextmanager
def role(dsn: str, kind: str) -> Iterator[psycopg.Connection]:
    """A session with just the rights of a kind of role."""
    name = f"cmdbus_test_{kind}_{uuid4().hex[:8]}"
    with connect(dsn) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        try:
            install(dsn, grants={kind: [name]})
            with connect(dsn) as connection:
                connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(name)))
                yield connection
        finally:
            drop = "DROP OWNED BY {0}; DROP ROLE {0}"
            admin.execute(sql.SQL(drop).format(sql.Identifier(name)))


def refused(connection: psycopg.Connection, query: str) -> bool:
    try:
        connection.execute(query)
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def test_a_producer_sends_and_cancels_and_reads_nothing(dsn: str) -> None:
    with role(dsn, "producer") as connection, CommandBus(dsn) as bus:
        id_ = bus.send(
            "payments", "Debit", {"secret": 1}, command_id=uuid4(), connection=connection
        )
        ids = bus.send_many(
            [SendRequest("payments", "Debit"), SendRequest("payments", "Debit", delay=60)],
            connection=connection,
        )
        connection.execute("SELECT cmdbus.send('payments', 'Debit')")
        bus.cancel("payments", ids[1], connection=connection)
        assert bus.snapshot("payments")["depth"] == 3
        assert bus.get("payments", id_) is not None
        bus.configure("payments", max_depth=1)
        with pytest.raises(QueueFullError):
            bus.send("payments", "Debit", connection=connection)
        with pytest.raises(QueueFullError):
            bus.send_many([SendRequest("payments", "Debit")], connection=connection)
        for query in (
            "SELECT * FROM cmdbus.ready",
            "SELECT data FROM cmdbus.command",
            "SELECT * FROM cmdbus.identity",
            "UPDATE cmdbus.ready SET priority = 0",
            "DELETE FROM cmdbus.ready",
            "INSERT INTO cmdbus.ready (token) VALUES (7)",
            "SELECT cmdbus.purge('payments')",
            "SELECT cmdbus.set_paused('payments', true, NULL, NULL)",
            "SELECT cmdbus.configure_domain('payments', '{}', true, 1, 1, '1 day', NULL, NULL)",
            "SELECT cmdbus.reschedule('payments', gen_random_uuid(), 0, NULL, 5::smallint,"
            " NULL, NULL, false)",
            "SELECT cmdbus.cancel_ready('payments', NULL, NULL, now(), 0::smallint, 0, 1, 1,"
            " NULL, NULL)",
            "SELECT cmdbus.cancel_scheduled('payments', NULL, NULL, now(), NULL, 1, 1, NULL, NULL)",
            "SELECT * FROM cmdbus.domain_event",
            "SELECT cmdbus.resolve('RETRY', 'payments', gen_random_uuid(), 'x', '', '1', false)",
            "SELECT * FROM cmdbus.resolve_batch("
            "'RETRY', '', '', '', now(), now(), 1, 'x', '', '1')",
            "SELECT * FROM cmdbus.troubleshooting",
            "SELECT setval('cmdbus.armed', 1)",
        ):
            assert refused(connection, query), query


def test_a_worker_does_everything_but_change_the_schema(dsn: str) -> None:
    with role(dsn, "worker") as connection, CommandBus(dsn) as bus:
        bus.send("payments", "Debit", connection=connection)
        bus.send_many([SendRequest("payments", "Debit")], connection=connection)
        assert len(bus.query(connection=connection)) == 2
        connection.execute("SELECT cmdbus.arm(1, ARRAY['payments'], now(), '1 minute')")
        connection.execute("SELECT cmdbus.make_partitions(15)")
        bus.reschedule("payments", bus.query()[0].command_id, priority=0, connection=connection)
        bus.pause("payments", connection=connection)
        assert bus.cancel_all("payments", connection=connection) == 2
        assert len(bus.domain_audit("payments", connection=connection)) == 1
        for query in ("ALTER TABLE cmdbus.ready ADD a int", "DROP TABLE cmdbus.event"):
            assert refused(connection, query), query


def test_an_operator_looks_and_decides_and_sends_nothing(dsn: str) -> None:
    with role(dsn, "operator") as connection, CommandBus(dsn) as bus:
        ids = bus.send_many([SendRequest("payments", "Debit", reply_to="orders")] * 4)
        with connect(dsn) as owner:
            for id_ in ids[:3]:
                owner.execute(TROUBLE, [id_])
        mine: dict[str, Any] = {"connection": connection}
        queue, said = bus.troubleshooting, {"operator": "ann", **mine}
        assert [len(queue.list(**mine)), queue.count(**mine), len(bus.query(**mine))] == [3, 3, 4]
        queue.retry("payments", ids[0], **said)
        queue.cancel("payments", ids[1], **said)
        assert queue.complete_all(**said) == 1
        bus.cancel("payments", ids[3], **said)
        bus.pause("payments", **said)
        bus.resume("payments", **said)
        bus.configure("payments", max_depth=10, **said)
        assert [event.operator for event in bus.domain_audit("payments", **mine)] == ["ann"] * 3
        assert bus.snapshot("payments", **mine)["depth"] == 1
        bus.reschedule("payments", ids[0], delay=60, **said)
        assert bus.count_waiting("payments", **mine) == 1
        assert bus.cancel_all("payments", **said) == 1
        [record] = bus.domains("payments", **mine)
        assert record.keep == timedelta(days=7)
        assert len(bus.audit("payments", ids[1], **mine)) == 2
        for query in (
            "SELECT cmdbus.send('payments', 'Debit')",
            "SELECT cmdbus.purge('payments')",
            "SELECT cmdbus.resolve_keys('CANCEL', '{}', '{}', 'ann', NULL, NULL)",
            "SELECT cmdbus.cancel_ids('payments', '{}', true, NULL, NULL)",
            "UPDATE cmdbus.domain SET paused = true",
            "DELETE FROM cmdbus.domain_event",
            "DELETE FROM cmdbus.event",
            "INSERT INTO cmdbus.ready (token) VALUES (7)",
            "UPDATE cmdbus.troubleshooting SET attempts = 0",
            "UPDATE cmdbus.finished SET status = 'COMPLETED'",
        ):
            assert refused(connection, query), query


TROUBLE = (
    "WITH gone AS (DELETE FROM cmdbus.ready WHERE command_id = %s RETURNING *)"
    " INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id, priority,"
    " attempts, losses, domain, type, reply_to, data) SELECT 1, created_at, command_id,"
    " correlation_id, priority, 1, 0, domain, type, reply_to, data FROM gone"
)


def test_a_monitor_sees_everything_but_payloads(dsn: str) -> None:
    with role(dsn, "monitor") as connection, CommandBus(dsn) as bus:
        bus.send("payments", "Debit", {"secret": 1})
        seen = connection.execute("SELECT status, attempts FROM cmdbus.command").fetchall()
        assert seen == [("PENDING", 0)]
        for query in (
            "SELECT data FROM cmdbus.command",
            "SELECT result FROM cmdbus.command",
            "SELECT error_message FROM cmdbus.command",
            "SELECT cmdbus.send('payments', 'Debit')",
            "SELECT cmdbus.set_paused('payments', true, NULL, NULL)",
            "SELECT * FROM cmdbus.domain_event",
        ):
            assert refused(connection, query), query


def test_rights_cannot_be_granted_to_a_role_that_is_not_there(dsn: str) -> None:
    with pytest.raises(SchemaError, match="there is no role 'nobody_here'"):
        install(dsn, grants={"worker": ["nobody_here"]})
    with pytest.raises(ValueError, match="no kind of role 'king'"):
        install(dsn, grants={"king": ["postgres"]})


@pytest.mark.parametrize(
    ("query", "parameters", "index"),
    [
        (statement("read_command", "cmdbus"), {}, "command"),
        (
            statement("query_commands", "cmdbus"),
            dict.fromkeys(("domain", "status", "type", "since", "until"))
            | {"limit": 10, "offset": 0},
            "finished",
        ),
        (statement("read_audit", "cmdbus"), {}, "event_pkey"),
        (
            statement("read_trouble", "cmdbus"),
            dict.fromkeys(("domain", "type", "error_code", "since", "until"))
            | {"limit": 10, "offset": 0},
            "troubleshooting_newest",
        ),
    ],
    ids=["get", "query", "audit", "troubleshooting"],
)
def test_looks_use_indexes(
    dsn: str, query: bytes, parameters: dict[str, object], index: str
) -> None:
    """R22, R27."""
    with connect(dsn) as connection:
        connection.execute(render_history(5000))
        connection.execute(
            "INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id,"
            " priority, attempts, losses, domain, type, data) SELECT token, created_at,"
            " command_id, correlation_id, 5, 1, 0, domain, type, data FROM cmdbus.finished"
        )
        connection.execute("ANALYZE cmdbus.finished, cmdbus.troubleshooting")
        parameters = {"domain": "payments", "command_id": uuid4(), **parameters}
        plan = "\n".join(
            row[0] for row in connection.execute(b"EXPLAIN " + query, parameters).fetchall()
        )
        assert index in plan
        today = f"finished_{datetime.now(UTC):%Y%m%d}"
        assert f"Seq Scan on {today}" not in plan, plan


def render_history(rows: int) -> str:
    return (
        "INSERT INTO cmdbus.finished (token, created_at, command_id, correlation_id, priority,"
        " attempts, losses, domain, type, status, data)"
        " SELECT 1, clock_timestamp(), gen_random_uuid(), gen_random_uuid(), 5, 1, 0, 'payments',"
        f" 'Debit', 'COMPLETED', '{{}}' FROM generate_series(1, {rows})"
    )


def test_every_statement_renders_for_every_schema() -> None:
    assert '"order".ready' in render("copy_ready", "order")
    with pytest.raises(ValueError, match="schema must"):
        render("copy_ready", 'x"; DROP TABLE y; --')
