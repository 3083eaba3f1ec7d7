"""The rights of each kind of role."""

import pytest
from roles import role

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
