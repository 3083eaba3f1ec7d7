"""What each kind of role may do, and what it may not."""

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
from cmdbus.database.statements import statement

SENDERS = [
    *("domain", "priority", "command_id", "type", "data", "correlation_id", "reply_to"),
    *("max_attempts", "batch_id", "key", "unique_key", "expires_at", "headers"),
]
#: Columns of the view `command` without payloads.
SEEN = [
    *("domain", "command_id", "type", "status", "priority", "attempts", "max_attempts"),
    *("error_code", "correlation_id", "reply_to", "batch_id", "created_at", "due_at"),
    *("started_at", "finished_at", "worker"),
]
#: The columns without payloads of the tables of commands: those of all, and those of each.
COMMON = [
    *("domain", "command_id", "type", "priority", "attempts", "max_attempts", "error_code"),
    *("correlation_id", "reply_to", "batch_id", "created_at", "due_at", "claimed_at", "claimer"),
]
OWN = {
    "ready": ("lease_until", "id"),
    "scheduled": ("id",),
    "limited": ("lane_position",),
    "troubleshooting": ("failed_at",),
    "finished": ("finished_at", "status"),
}
LANE_TABLES = ("lane", "shared_state", "turn")
LIMIT_TABLES = ("limit_declared", "limit_in_force", "limit_set", "limited_type")
SCHEDULE_TABLES = ("schedule", "schedule_added", "schedule_declared")
#: Columns of these without data.
SEEN_OF_SCHEDULES = [
    *("schedule.name", "schedule.terms", "schedule.app", "schedule.paused", "schedule.left_out"),
    *("schedule.counts_from", "schedule.next_tick", "schedule.check_at", "schedule.last_tick"),
    *("schedule.last_command_id", "schedule.left_out_at", "schedule.last_error"),
    *("schedule_declared.name", "schedule_declared.app", "schedule_declared.terms"),
    *("schedule_declared.declared_at", "schedule_added.name", "schedule_added.terms"),
    *("schedule_added.operator", "schedule_added.reason", "schedule_added.added_at"),
]
BREAKER_TABLES = (
    "breaker",
    "breaker_declared",
    "breaker_event",
    "breaker_probe",
    "breaker_set",
)
PROCESS_TABLES = ("managed_process", "process", "process_event", "process_step")
#: Columns of the view `process` without state and error.
SEEN_OF_PROCESSES = [
    *("process_id", "domain", "type", "status", "step", "batch_id", "created_at", "updated_at"),
    "finished_at",
]
SEEN_OF_BATCHES = [
    *("batch_id", "domain", "status", "total", "completed", "failed", "canceled"),
    *("in_troubleshooting", "remaining", "created_at", "started_at", "completed_at"),
]
#: Columns of the table `published_node` without stacks.
SEEN_OF_NODES = ["node", "name", "host", "published_at", "stopped", "state", "counters"]
SEARCHES = ("count_newest", "list_domains", "list_types", "read_found", "read_queues", "walk")
#: Rights on tables, columns, sequences and functions, by kind of role.
RIGHTS = {
    "producer": {
        "SELECT": ["alarm", "armed", "limits", "migration"],
        "EXECUTE": [
            *("admit", "already_sent", "batch_exists", "cancel", "cancel_batch"),
            *("cancel_in_batch", "create_batch", "domain_bit", "enqueue", "enqueue_unique"),
            *("identify", "notify", "outcome", "send", "signal_process", "start_process"),
            *("find_full_key", "limited_types", "move_arrived", "take_unique_keys"),
            *("note_changes", "sent_at", "wake", "wake_at"),
        ],
        "INSERT": [
            *[f"ready.{column}" for column in SENDERS],
            *[f"scheduled.{column}" for column in [*SENDERS, "due_at"]],
        ],
    },
    "worker": {
        "SELECT": [
            *("alarm", "armed", "batch", "batch_state", "command", "domain", "domain_event"),
            *("domain_event_id_seq", "tally", "tally_id_seq"),
            *(
                "checkpoint",
                "event",
                "event_id_seq",
                "finished",
                "incarnation",
                "lease",
                "migration",
                "node",
            ),
            *("limited", "longer_patience", "patience", "ready", "ready_id_seq", "scheduled"),
            *("scheduled_id_seq", "troubleshooting", "waiter", *PROCESS_TABLES),
            *("limits", *LIMIT_TABLES, *LANE_TABLES, "turn_id_seq", *SCHEDULE_TABLES),
            *(*BREAKER_TABLES, "bridge", "rollup"),
        ],
        "INSERT": [
            *LANE_TABLES,
            *(
                "checkpoint",
                "event",
                "finished",
                "incarnation",
                "ready",
                "scheduled",
                "troubleshooting",
            ),
            *("lease", "limited", "node", "tally", "waiter"),
        ],
        "UPDATE": [
            *("alarm", "armed", "bridge", "checkpoint", "lease", "limited"),
            *("longer_patience", "node", "patience"),
            *("ready", "scheduled", "turn_id_seq", "waiter", *LANE_TABLES),
        ],
        "DELETE": ["lease", "limited", "node", "ready", "scheduled", "waiter", *LANE_TABLES],
    },
    "operator": {
        "SELECT": [
            *("armed", "batch", "batch_state", "command", "domain", "domain_event", "event"),
            *("checkpoint", "finished", "incarnation", "limited"),
            *("migration", "ready", "scheduled", "troubleshooting", *PROCESS_TABLES),
            *LIMIT_TABLES,
            *SCHEDULE_TABLES,
            *(*BREAKER_TABLES, "bridge", "published_node", "rollup"),
        ],
        "EXECUTE": [
            *("clear_limit", "set_limit"),
            *("clear_breaker", "set_breaker", "steer_breaker"),
            *("add_bridge", "remove_bridge"),
            *("add_schedule", "remove_schedule", "pause_schedule", "run_schedule"),
            *SEARCHES,
            *("batch_keys", "cancel", "cancel_batch", "cancel_in_batch", "cancel_ready"),
            *("cancel_limited", "cancel_of_key", "cancel_scheduled"),
            *("configure_domain", "domain_bit"),
            *("cancel_process", "retry_process", "signal_process"),
            *("reschedule", "resolve", "resolve_chunk", "notify", "wake"),
            *("explain", "explain_limits", "is_handled", "is_waiting"),
            *("missing_tags", "unclaimed_priorities", "is_gone", "watch_fleet"),
            *("count_nodes", "count_unreachable"),
        ],
    },
    "monitor": {
        "EXECUTE": [
            *SEARCHES,
            *("explain", "explain_limits", "is_handled", "missing_tags", "unclaimed_priorities"),
            *("count_nodes", "count_unreachable", "is_gone", "watch_fleet"),
        ],
        "SELECT": [
            *("bridge", "domain", "migration", "rollup"),
            *LIMIT_TABLES,
            *SEEN_OF_SCHEDULES,
            *[table for table in BREAKER_TABLES if table != "breaker_event"],
            *[f"batch.{column}" for column in SEEN_OF_BATCHES],
            *[f"command.{column}" for column in SEEN],
            *[f"process.{column}" for column in SEEN_OF_PROCESSES],
            *[f"published_node.{column}" for column in SEEN_OF_NODES],
            *[f"{table}.{column}" for table, own in OWN.items() for column in (*COMMON, *own)],
            *("incarnation.id", "incarnation.worker"),
        ],
    },
}
GRANTED = """
SELECT c.relname, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
WHERE c.relnamespace = 'cmdbus'::regnamespace AND a.grantee = current_user::regrole
UNION ALL
SELECT c.relname || '.' || t.attname, a.privilege_type
FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a
WHERE c.relnamespace = 'cmdbus'::regnamespace AND a.grantee = current_user::regrole
UNION ALL
SELECT proname, a.privilege_type FROM pg_proc, aclexplode(proacl) a
WHERE pronamespace = 'cmdbus'::regnamespace AND a.grantee = current_user::regrole
"""


@pytest.mark.parametrize("kind", RIGHTS)
def test_a_role_has_these_rights_and_no_others(dsn: str, kind: str) -> None:
    """A worker's role may execute every function, with its own rights or the owner's."""
    with role(dsn, kind) as connection:
        found: dict[str, list[str]] = {}
        for name, privilege in connection.execute(GRANTED).fetchall():
            found.setdefault(privilege, []).append(name)
    if kind == "worker":
        del found["EXECUTE"]
    assert {privilege: sorted(names) for privilege, names in found.items()} == {
        privilege: sorted(names) for privilege, names in RIGHTS[kind].items()
    }


def test_the_check_before_a_start_finds_each_right_that_a_worker_lacks(dsn: str) -> None:
    with role(dsn, "worker") as connection:
        rows = connection.execute("SELECT current_user").fetchall()
        connection.execute("RESET ROLE")
        for objects in ("TABLES", "SEQUENCES"):
            revoke = f"REVOKE ALL ON ALL {objects} IN SCHEMA cmdbus FROM {rows[0][0]}"
            connection.execute(revoke.encode())
        connection.execute(f"SET ROLE {rows[0][0]}".encode())
        missing = connection.execute(statement("read_missing_rights", "cmdbus")).fetchall()
    rights = RIGHTS["worker"].items()
    assert sorted(missing) == sorted(
        (f"{privilege} on {name}",) for privilege, names in rights for name in names
    )


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
