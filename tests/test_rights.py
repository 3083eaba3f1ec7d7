"""What each kind of role may do, and that what it may write harms nothing."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from guarded import Guarded
from handlers import connect, running
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from roles import refused, role

from cmdbus import (
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    QueueFullError,
    SchemaError,
    SendRequest,
)
from cmdbus.ids import new_id
from cmdbus.schema import install

pytestmark = pytest.mark.db

SENDERS = [
    *("domain", "priority", "command_id", "type", "data", "correlation_id", "reply_to"),
    "max_attempts",
]
#: Rights on tables, columns, sequences and functions, by kind of role.
RIGHTS = {
    "producer": {
        "SELECT": ["alarm", "armed", "migration"],
        "EXECUTE": [
            *("admit", "cancel", "domain_bit", "enqueue", "identify", "landed", "send", "wake"),
        ],
        "INSERT": [
            *[f"ready.{column}" for column in SENDERS],
            *[f"scheduled.{column}" for column in [*SENDERS, "due_at"]],
        ],
    },
    "worker": {
        "SELECT": [
            *("alarm", "armed", "command", "domain", "domain_event", "event", "finished"),
            *("incarnation", "migration", "node", "patience", "ready", "ready_id_seq", "scheduled"),
            *("troubleshooting", "waiter"),
        ],
        "INSERT": [
            *("event", "finished", "incarnation", "ready", "scheduled", "troubleshooting"),
            *("node", "waiter"),
        ],
        "UPDATE": ["alarm", "armed", "node", "patience", "ready", "scheduled", "waiter"],
        "DELETE": ["node", "ready", "scheduled", "waiter"],
    },
    "operator": {
        "SELECT": [
            *("armed", "command", "domain", "domain_event", "event", "incarnation"),
            *("migration", "ready", "scheduled", "troubleshooting"),
        ],
        "EXECUTE": [
            *("cancel", "cancel_ready", "cancel_scheduled", "configure_domain", "domain_bit"),
            *("reschedule", "resolve", "resolve_batch", "set_paused", "wake"),
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
    """R27. A worker's role may execute every function, with its own rights or the owner's."""
    with role(dsn, kind) as connection:
        found: dict[str, list[str]] = {}
        for name, privilege in connection.execute(GRANTED).fetchall():
            found.setdefault(privilege, []).append(name)
    if kind == "worker":
        del found["EXECUTE"]
    assert {privilege: sorted(names) for privilege, names in found.items()} == {
        privilege: sorted(names) for privilege, names in RIGHTS[kind].items()
    }


def test_nobody_may_make_operators_for_the_types_of_the_schema(dsn: str) -> None:
    """They would match better than PostgreSQL's own."""
    with role(dsn, "producer") as producer, connect(dsn) as admin:
        admin.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        for name in ("name", "payload", "finite_time", "priority", "attempt_limit", "remark"):
            query = f"CREATE FUNCTION public.f(cmdbus.{name}) RETURNS int LANGUAGE sql RETURN 1"
            assert refused(producer, query), name


ROW: dict[str, Any] = {
    "domain": "payments",
    "priority": 5,
    "type": "Debit",
    "data": "{}",
    "reply_to": None,
    "max_attempts": None,
}


def insert(connection: psycopg.Connection, table: str = "ready", **changed: Any) -> Any:
    """As a bulk send writes it, but with any values; returns the id."""
    id_ = uuid4()
    row = {**ROW, "command_id": id_, "correlation_id": id_, **changed}
    names, places = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    connection.execute(f"INSERT INTO cmdbus.{table} ({names}) VALUES ({places})".encode(), row)
    return row["command_id"]


#: Column, and values that no command may have there.
WRONG = [
    *[
        (column, value)
        for column in ("domain", "type", "reply_to")
        for value in ("", "1st", "a\nb", "pay ments", "a" * 101, "payé", "\x1b[31m")
    ],
    *[("priority", value) for value in (-1, 11, 32767)],
    *[("max_attempts", value) for value in (0, -1, 32768)],
    *[("due_at", value) for value in ("infinity", "-infinity", "10000-01-02", "0044-03-15 BC")],
    *[("data", value) for value in ("", "{", '"' + "a" * (17 * 1024 * 1024) + '"')],
    *[(column, None) for column in ("domain", "type", "priority", "data", "command_id")],
]


def test_a_producer_cannot_write_what_no_command_may_hold(dsn: str) -> None:
    with role(dsn, "producer") as producer:
        for column, value in WRONG:
            for table in ("ready", "scheduled"):
                changed = {} if table == "ready" else {"due_at": "2040-01-01"}
                if column == "due_at" and table == "ready":
                    continue
                with pytest.raises((psycopg.IntegrityError, psycopg.DataError)):
                    insert(producer, table, **{**changed, column: value})
        with pytest.raises(psycopg.errors.CheckViolation):
            copy(producer, f"payments\\n\t5\t{uuid4()}\tDebit\t{{}}\t{uuid4()}\t\\N\t\\N\n")
    with connect(dsn) as admin:
        assert admin.execute("SELECT count(*) FROM cmdbus.command").fetchone() == (0,)


def copy(connection: psycopg.Connection, line: str) -> None:
    columns = ", ".join(SENDERS)
    with connection.cursor().copy(f"COPY cmdbus.ready ({columns}) FROM STDIN".encode()) as copy:
        copy.write(line)


def test_a_large_compressed_payload_counts_as_it_is_read(dsn: str) -> None:
    """A row that takes 0.2 MB in its table, and 17 MB in the memory of its readers."""
    with role(dsn, "producer") as producer:
        producer.execute("CREATE TEMP TABLE mine (data json)")
        producer.execute("""INSERT INTO mine SELECT to_json(repeat('a', 17 * 1024 * 1024))""")
        with pytest.raises(psycopg.errors.CheckViolation):
            producer.execute(
                "INSERT INTO cmdbus.ready (domain, priority, command_id, type, data,"
                " correlation_id) SELECT 'payments', 5, gen_random_uuid(), 'Debit', data,"
                " gen_random_uuid() FROM mine"
            )


@pytest.mark.parametrize("max_bytes", [16 * 1024 * 1024 + 1, 0])
def test_a_bus_cannot_allow_more_than_the_tables_hold(max_bytes: int) -> None:
    with pytest.raises(ValueError, match="max_bytes must be"):
        CommandBus("dbname=x", max_bytes=max_bytes)


def test_the_largest_payload_is_sent_in_either_way(dsn: str) -> None:
    request = SendRequest("payments", "Debit", "a" * (16 * 1024 * 1024 - 2))
    with CommandBus(dsn, max_bytes=16 * 1024 * 1024) as bus:
        bus.send(request.domain, request.type, request.data)
        bus.send_many([request])
        assert bus.snapshot("payments")["ready"] == 2


def test_the_functions_of_a_producer_take_no_more_than_the_tables(dsn: str) -> None:
    with CommandBus(dsn) as bus, role(dsn, "producer") as producer:
        id_ = bus.send("payments", "Debit")
        long = "repeat('a', 12001)"
        for call in (
            f"cmdbus.cancel('payments', '{id_}', {long}, true, NULL)",
            f"cmdbus.cancel('payments', '{id_}', NULL, true, {long})",
            "cmdbus.enqueue('payments', 'Debit', '1', gen_random_uuid(), false, 5, NULL,"
            " 'infinity', gen_random_uuid(), NULL, NULL, 1, false)",
            "cmdbus.enqueue('pay ments', 'Debit', '1', gen_random_uuid(), true, 5, NULL, NULL,"
            " gen_random_uuid(), NULL, NULL, 1, false)",
            "cmdbus.identify(ARRAY[E'a\\nb'], ARRAY[gen_random_uuid()], 1, true)",
        ):
            with pytest.raises(psycopg.errors.CheckViolation):
                producer.execute(f"SELECT {call}".encode())
        assert [record.command_id for record in bus.query()] == [id_]


def oddities(producer: psycopg.Connection, taken: Iterable[UUID]) -> Iterator[UUID]:
    """Commands that no CommandBus would send, and that the tables take."""
    for id_ in (*taken, new_id()):
        yield insert(producer, command_id=id_)
    yield insert(producer, data="[" * 3000 + "]" * 3000)
    yield insert(producer, data='{"a": "\\u0000"}')
    yield insert(producer, data='{"a": "\\ud800"}')
    yield insert(producer, data="1" * 5000)
    yield insert(producer, data="1e999")
    yield insert(producer, max_attempts=32767)
    yield insert(producer, command_id=UUID(int=0), correlation_id=UUID(int=2**128 - 1))
    yield insert(producer, "scheduled", due_at="0001-01-01 00:00:00+00", type="Trouble")
    yield insert(producer, "scheduled", due_at="9999-12-31 23:59:59+00")
    for type_ in ("Debit", "Trouble"):  # rows of one id
        id_ = insert(producer, type=type_)
        insert(producer, type=type_, command_id=id_)
        insert(producer, "scheduled", type=type_, command_id=id_, due_at="2000-01-01")
        yield id_


def test_whatever_a_producer_can_write_stops_no_other_command(guarded: Guarded) -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)

    @registry.handler("payments", "Trouble")
    def fail(command: Command, context: Context) -> None:
        raise PermanentCommandError("NO", "never")

    with guarded.role("worker") as own:
        admin = make_conninfo(guarded.embedded.dsn, dbname=conninfo_to_dict(own)["dbname"])
        with role(admin, "producer") as producer, CommandBus(admin) as bus:
            finished = bus.send("payments", "Debit")
            bus.cancel("payments", finished)
            taken = [finished, bus.send("payments", "Debit", command_id=uuid4())]
            ids = list(oddities(producer, taken))
            producer.execute("SELECT pg_notify('cmdbus_due', 'x'), cmdbus.wake('no such domain')")
            with running(own, registry) as worker:
                good = bus.send_many([SendRequest("payments", "Debit", priority="low")] * 20)
                for id_ in good:
                    assert bus.wait("payments", id_, 20).status == "COMPLETED"
                assert int(str(worker.metrics()["cmdbus_claim_failures_total"])) == 0
            found = {id_: bus.get("payments", id_) for id_ in ids}
            assert None not in found.values()
            assert bus.query("payments") and bus.snapshot("payments") and bus.domains()
            assert bus.troubleshooting.list("payments")


def test_a_worker_cannot_change_history(dsn: str) -> None:
    """R27. What retention removes, it removes with the owner's rights."""
    with role(dsn, "worker") as connection:
        for table in ("event", "finished", "troubleshooting", "identity", "domain_event"):
            for query in (f"DELETE FROM cmdbus.{table}", f"TRUNCATE cmdbus.{table}"):
                assert refused(connection, query), query
        for query in (
            "UPDATE cmdbus.event SET operator = 'ann'",
            "UPDATE cmdbus.finished SET status = 'FAILED'",
            "UPDATE cmdbus.troubleshooting SET attempts = 0",
            "UPDATE cmdbus.domain SET keep = '1 day'",
            "SELECT cmdbus.purge('payments', 10)",
        ):
            assert refused(connection, query), query
        connection.execute(
            "SELECT cmdbus.retain_domain(partition, 'payments', 100) FROM (SELECT max(relname)"
            " FROM pg_class WHERE relname ~ '^finished_[0-9]{8}$') days (partition)"
        )
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="no old day of history"):
            connection.execute(
                "SELECT cmdbus.retain_day(partition, 0, 1) FROM (SELECT max(relname)"
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
