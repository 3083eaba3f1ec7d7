"""What roles of each kind do with their rights, and what they are refused."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from cli import here
from handlers import connect
from psycopg.conninfo import make_conninfo
from queries import move_to_troubleshooting
from roles import refused, role

from cmdbus import CommandBus, QueueFullError, SendRequest


def test_no_role_may_make_operators_for_the_types_of_the_schema(dsn: str) -> None:
    """They would match better than PostgreSQL's own."""
    with role(dsn, "producer") as producer, connect(dsn) as admin:
        admin.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        for name in ("name", "payload", "finite_time", "priority", "attempt_limit", "remark"):
            query = f"CREATE FUNCTION public.f(cmdbus.{name}) RETURNS int LANGUAGE sql RETURN 1"
            assert refused(producer, query), name


def test_a_worker_cannot_change_history(dsn: str) -> None:
    """What retention removes, it removes with the owner's rights."""
    with role(dsn, "worker") as connection:
        for table in ("event", "finished", "troubleshooting", "identity", "domain_event"):
            for query in (f"DELETE FROM cmdbus.{table}", f"TRUNCATE cmdbus.{table}"):
                assert refused(connection, query), query
        for query in (
            "UPDATE cmdbus.event SET operator = 'ann'",
            "UPDATE cmdbus.finished SET status = 'FAILED'",
            "UPDATE cmdbus.troubleshooting SET attempts = 0",
            "UPDATE cmdbus.domain SET keep = '1 day'",
        ):
            assert refused(connection, query), query
        connection.execute(
            "SELECT cmdbus.retain_domain(partition, 'payments', 100) FROM (SELECT max(relname)"
            " FROM pg_class WHERE relname ~ '^finished_[0-9]{8}$') days (partition)"
        )
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="no old day of history"):
            connection.execute(
                "SELECT cmdbus.retain_day(partition, 1) FROM (SELECT max(relname)"
                " FROM pg_class WHERE relname ~ '^finished_[0-9]{8}$') days (partition)"
            )


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
            "SELECT * FROM cmdbus.domain_event",
            "SELECT message FROM cmdbus.breaker_event",
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
        ids = bus.send_many([SendRequest("payments", "Debit", reply_to="orders")] * 3)
        move_to_troubleshooting(dsn)
        ids.append(bus.send("payments", "Debit"))
        session: dict[str, Any] = {"connection": connection}
        queue, resolution = bus.troubleshooting, {"operator": "ann", **session}
        assert len(queue.list(**session)) == queue.count(**session) == 3
        assert len(bus.query(**session)) == 4
        queue.retry("payments", ids[0], **resolution)
        queue.cancel("payments", ids[1], **resolution)
        assert queue.complete_all(**resolution) == 1
        bus.cancel("payments", ids[3], **resolution)
        bus.pause("payments", **resolution)
        bus.resume("payments", **resolution)
        bus.configure("payments", max_depth=10, **resolution)
        assert [event.operator for event in bus.domain_audit("payments", **session)] == ["ann"] * 3
        assert bus.snapshot("payments", **session)["depth"] == 1
        bus.reschedule("payments", ids[0], delay=60, **resolution)
        assert bus.count_waiting("payments", **session) == 1
        assert bus.cancel_all("payments", **resolution) == 1
        [record] = bus.domains("payments", **session)
        assert record.keep == timedelta(days=7)
        assert len(bus.audit("payments", ids[1], **session)) == 3
        for query in (
            "UPDATE cmdbus.domain SET paused = true",
            "DELETE FROM cmdbus.domain_event",
            "DELETE FROM cmdbus.event",
            "INSERT INTO cmdbus.ready (token) VALUES (7)",
            "UPDATE cmdbus.troubleshooting SET attempts = 0",
            "UPDATE cmdbus.finished SET status = 'COMPLETED'",
        ):
            assert refused(connection, query), query


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
            "SELECT cmdbus.configure_domain('payments', '{}', 'ann', NULL, p_paused => true)",
            "SELECT * FROM cmdbus.domain_event",
        ):
            assert refused(connection, query), query


def test_a_monitor_counts_with_the_operators_command(dsn: str) -> None:
    with role(dsn, "monitor") as connection, CommandBus(dsn) as bus:
        troubled = bus.send("payments", "Debit")
        move_to_troubleshooting(dsn)
        bus.send_many([SendRequest("payments", "Debit")] * 2)
        [[name]] = connection.execute("SELECT current_user").fetchall()
        role_dsn = make_conninfo(dsn, options=f"-c role={name}")
        for command in ("status", "domain list", "tsq summary"):
            shown = here(*command.split(), "--dsn", role_dsn)
            assert shown.exit_code == 0 and "payments" in shown.stdout, shown.stderr
        assert bus.snapshot("payments", connection=connection)["depth"] == 2
        for command in ("list", "tsq list", f"get payments {troubled}"):
            done = here(*command.split(), "--dsn", role_dsn)
            assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
            grant = f"as the owner of the schema, run cmdbus init --operator {name}\n"
            assert "that roles of the kind operator have: use one of them" in done.stderr
            assert done.stderr.startswith(f"Error: role '{name}' lacks a right (permission denied")
            assert done.stderr.endswith(grant) and len(done.stderr) < 280
