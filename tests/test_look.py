"""Reading commands and steering them, while no worker runs."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import beside, claim, connect, found, kinds, promote
from queries import NOWHERE, await_lock_waits, claim_by_hand, scalar

from cmdbus import (
    CommandBus,
    CommandNotFoundError,
    CommandRecord,
    InvalidOperationError,
    SendRequest,
    Status,
    Undecodable,
)
from cmdbus.worker.claims.claim_statements import ClaimStatements

pytestmark = pytest.mark.new_database


def test_the_fields_of_a_record_are_the_columns_of_the_view(dsn: str) -> None:
    with connect(dsn) as connection:
        columns = connection.execute("SELECT * FROM cmdbus.command").description
        assert columns is not None
        assert [column.name for column in columns] == list(CommandRecord.__slots__)


def test_unknown_commands(bus: CommandBus) -> None:
    assert bus.get("payments", uuid4()) is None
    assert bus.audit("payments", uuid4()) == []
    for call in (bus.wait, bus.cancel):
        with pytest.raises(CommandNotFoundError, match="domain 'payments' has no command"):
            call("payments", uuid4())
    with pytest.raises(ValueError, match="command_id must be a UUID"):
        bus.get("payments", "seven")


def test_a_claimed_command_is_in_progress_until_its_lease_ends(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        id_ = bus.send("payments", "Debit")
        claim_by_hand(dsn, id_)
        record = found(bus, id_)
        assert (record.status, record.attempts) == (Status.IN_PROGRESS, 1)
        assert record.started_at is not None
        assert kinds(bus, id_) == ["SENT", "RECEIVED"]
        assert bus.snapshot("payments")["in_progress"] == 1
        claim_by_hand(dsn, id_, "-1 second")
        assert (found(bus, id_).status, found(bus, id_).attempts) == (Status.PENDING, 0)
        assert bus.snapshot("payments")["ready"] == 1


@pytest.mark.parametrize(
    "text", ["[" * 3000 + "]" * 3000, "9" * 5000, "1e5000"], ids=["deep", "digits", "huge"]
)
def test_what_others_wrote_and_python_cannot_decode_breaks_no_look(dsn: str, text: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        good = bus.send("payments", "Debit", {"a": 1})
        odd = scalar(connection, "SELECT cmdbus.send('payments', 'Debit', %s)", text)
        record = found(bus, odd)
        # How deep is too deep differs between versions of Python.
        assert isinstance(record.data, Undecodable) or text[0] == "["
        assert [each.command_id for each in bus.query("payments")] == [odd, good]
        assert len(connection.execute("SELECT data::text FROM cmdbus.command").fetchall()) == 2


def test_times_at_the_bounds_of_pythons_range_break_no_look(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        connection.execute(
            "INSERT INTO cmdbus.scheduled (domain, priority, command_id, type, data,"
            " correlation_id, due_at) SELECT 'payments', 5, gen_random_uuid(), 'D', '1',"
            " gen_random_uuid(), t::timestamptz"
            " FROM unnest(ARRAY['0001-01-01 00:00:00+00', '9999-12-31 23:59:59+00']) t"
        )
        past, future = sorted(record.due_at for record in bus.query())
        assert past.year <= 2 and future.year == 9998


def test_commands_are_found_by_every_condition_newest_first(bus: CommandBus) -> None:
    first = bus.send("payments", "Debit")
    later = bus.send("payments", "Credit", delay=60)
    ship = bus.send("orders", "Ship")
    bus.cancel("payments", first)
    boundary = datetime.now(UTC)
    last = bus.send("payments", "Debit")

    def ids(**conditions: object) -> list[UUID]:
        return [record.command_id for record in bus.query(**conditions)]  # type: ignore[arg-type]

    assert ids() == [last, ship, later, first]
    assert ids(domain="payments") == [last, later, first]
    assert ids(status="CANCELED") == [first]
    assert ids(status=Status.PENDING, type="Debit") == [last]
    assert ids(since=boundary) == [last]
    assert ids(until=boundary) == [ship, later, first]
    assert ids(since=boundary, until=boundary) == []
    assert ids(limit=2) == [last, ship]
    assert ids(limit=2, offset=1) == [ship, later]
    assert ids(domain="payments", status="PENDING", type="Debit", until=boundary) == []


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [
        ({"status": "DONE"}, "status must be one of PENDING, IN_PROGRESS"),
        ({"since": datetime(2026, 1, 1)}, "since must be an aware datetime"),
        ({"limit": 0}, "limit must be a whole number from 1"),
        ({"limit": 10**30}, "limit must be a whole number from 1 to 2147483646"),
        ({"offset": -1}, "offset must be a whole number from 0"),
        ({"domain": "a b"}, "domain must be a letter"),
    ],
)
def test_impossible_conditions_are_refused(conditions: dict[str, object], sentence: str) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(ValueError, match=sentence):
        bus.query(**conditions)  # type: ignore[arg-type]


def test_since_leaves_older_partitions_of_history_unread(dsn: str) -> None:
    with connect(dsn) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        from cmdbus.database.statements import statement

        values = dict.fromkeys(("domain", "status", "type", "key", "until"))
        values |= {"limit": 1, "offset": 0, "since": datetime.now(UTC) + timedelta(days=10)}
        query = b"EXPLAIN (ANALYZE, COSTS OFF) " + statement("query_commands", "cmdbus")
        plan = "\n".join(row[0] for row in connection.execute(query, values).fetchall())
        assert f"finished_{datetime.now(UTC):%Y%m%d}" not in plan


def test_a_snapshot_counts_one_domain(bus: CommandBus) -> None:
    empty = {
        "depth": 0,
        "ready": 0,
        "scheduled": 0,
        "limited": 0,
        "in_progress": 0,
        "troubleshooting": 0,
        "oldest_age": 0.0,
        "shutdown": False,
    }
    assert bus.snapshot("payments") == empty
    bus.send("orders", "Ship")
    bus.send_many([SendRequest("payments", "Debit", delay=delay) for delay in (0, 0, 60)])
    eventually(lambda: bus.snapshot("payments")["oldest_age"] > 0.02)
    snapshot = bus.snapshot("payments")
    assert snapshot.pop("oldest_age") < 10
    del empty["oldest_age"]
    assert snapshot == {**empty, "depth": 3, "ready": 2, "scheduled": 1}


def test_snapshots_agree_with_themselves_while_commands_move(dsn: str) -> None:
    """From two threads: each command is counted once, wherever it is just then."""
    snapshots: list[dict[str, Any]] = []
    over = threading.Event()

    def look(bus: CommandBus) -> None:
        while not over.is_set():
            snapshots.append(dict(bus.snapshot("payments")))

    with CommandBus(dsn) as bus, connect(dsn) as connection:
        statements = ClaimStatements("cmdbus", 30)
        statements.register(connection, "mover")
        bus.send_many([SendRequest("payments", "Debit", delay=60)] * 300)
        with beside(look, bus), beside(look, bus):
            for _ in range(30):
                connection.execute("UPDATE cmdbus.scheduled SET due_at = now() - interval '1 s'")
                promote(statements, connection, 10)
                claim(statements, connection, 5)
            eventually(lambda: len(snapshots) > 20)
            over.set()
    assert all(each["depth"] == each["ready"] + each["scheduled"] for each in snapshots)
    assert {each["depth"] + each["in_progress"] for each in snapshots} == {300}
    assert len({each["scheduled"] for each in snapshots}) > 2, "they have moved meanwhile"


def test_waiting_ends_when_the_command_does(bus: CommandBus) -> None:
    id_ = bus.send("payments", "Debit")
    with pytest.raises(TimeoutError, match=r"is PENDING after 0\.05 s"):
        bus.wait("payments", id_, timeout=0.05)
    waited: list[CommandRecord] = []
    with beside(lambda: waited.append(bus.wait("payments", id_))):
        bus.cancel("payments", id_, reason="changed my mind")
    assert waited[0].status is Status.CANCELED
    assert waited[0].status.terminal


def test_a_waiting_command_is_canceled_with_its_reason_and_reply(bus: CommandBus) -> None:
    for delay in (None, 60):
        id_ = bus.send("payments", "Debit", delay=delay, reply_to="orders")
        bus.cancel("payments", id_, reason="no money", operator="ann")
        record = found(bus, id_)
        assert (record.status, record.error_message) == (Status.CANCELED, "no money")
        assert record.finished_at is not None
        events = bus.audit("payments", id_)
        assert [event.kind for event in events] == ["SENT", "CANCELED"]
        assert (events[1].operator, events[1].message) == ("ann", "no money")
        assert "operator=ann" in str(events[1])
        [reply] = bus.query("orders", limit=1)
        assert (reply.type, reply.correlation_id) == ("Reply", record.correlation_id)
        assert reply.data == {
            "command_id": str(id_),
            "type": "Debit",
            "outcome": "CANCELED",
            "result": {"code": "CANCELED", "message": "no money", "details": None},
        }
        with pytest.raises(InvalidOperationError, match="cannot be canceled: it has finished"):
            bus.cancel("payments", id_)


def test_a_running_command_is_canceled_only_on_request(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        id_ = bus.send("payments", "Debit")
        claim_by_hand(dsn, id_)
        with pytest.raises(InvalidOperationError, match=r"it is in progress; .*running=True"):
            bus.cancel("payments", id_)
        bus.cancel("payments", id_, running=True)
        assert found(bus, id_).status is Status.CANCELED
        assert bus.query(status="IN_PROGRESS") == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"reason": 5}, "reason must be text"),
        ({"reason": "\0"}, "reason must be text"),
        ({"reason": "x" * 2001}, "reason must be text of at most 2000"),
        ({"operator": []}, "operator must be text"),
        ({"running": 1}, "running must be True or False"),
    ],
)
def test_a_remark_that_cannot_be_kept_is_refused(
    arguments: dict[str, object], sentence: str
) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(ValueError, match=sentence):
        bus.cancel("payments", uuid4(), **arguments)  # type: ignore[arg-type]


def test_a_cancel_that_is_rolled_back_has_not_happened(dsn: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as connection:
        id_ = bus.send("payments", "Debit", reply_to="orders")
        bus.cancel("payments", id_, connection=connection)
        connection.rollback()
        assert found(bus, id_).status is Status.PENDING
        assert bus.query("orders") == []


def test_a_command_that_moves_while_it_is_canceled_is_canceled(dsn: str) -> None:
    """A promotion, held open between the two tables."""
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as mover:
        id_ = bus.send("payments", "Debit", delay=60)
        mover.execute(
            "WITH due AS (DELETE FROM cmdbus.scheduled RETURNING *) INSERT INTO cmdbus.ready"
            " (domain, priority, command_id, type, data, correlation_id)"
            " SELECT domain, priority, command_id, type, data, correlation_id FROM due"
        )
        with beside(bus.cancel, "payments", id_):
            await_lock_waits(dsn)
            mover.commit()
        assert found(bus, id_).status is Status.CANCELED


def test_a_domains_settings_change_one_by_one(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        bus.configure("payments", max_depth=10, warn_depth=5)
        bus.configure("payments", keep=timedelta(days=1))
        bus.configure("payments", warn_depth=None)
        bus.pause("payments")
        query = "SELECT accepting, paused, max_depth, warn_depth, keep FROM cmdbus.domain"
        row = connection.execute(query).fetchone()
        assert row == (True, True, 10, None, timedelta(days=1))
        bus.resume("payments")
        row = connection.execute("SELECT paused FROM cmdbus.domain").fetchone()
        assert row == (False,)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "configure needs at least one setting"),
        ({"max_depth": 0}, "max_depth must be a whole number from 1"),
        ({"warn_depth": 1.5}, "warn_depth must be a whole number"),
        ({"keep": 7}, "keep must be a timedelta"),
        ({"keep": None}, "keep must be a timedelta"),
        ({"keep": timedelta(-1)}, "keep must be a timedelta from 0 to 36525 days"),
        ({"keep": timedelta(36526)}, "keep must be a timedelta from 0 to 36525 days"),
        ({"accepting": 1}, "accepting must be True or False"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], sentence: str) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(ValueError, match=sentence):
        bus.configure("payments", **settings)  # type: ignore[arg-type]


def test_every_call_can_be_part_of_the_callers_transaction(dsn: str) -> None:
    with CommandBus(dsn, purge_allowed=True) as bus, psycopg.connect(dsn) as connection:
        id_ = bus.send("payments", "Debit", connection=connection)
        bus.configure("payments", max_depth=5, connection=connection)
        bus.pause("payments", connection=connection)
        assert bus.snapshot("payments", connection=connection)["depth"] == 1
        assert [record.command_id for record in bus.query(connection=connection)] == [id_]
        assert len(bus.audit("payments", id_, connection=connection)) == 1
        bus.resume("payments", connection=connection)
        assert bus.purge("payments", connection=connection) == 1
        connection.rollback()
        assert bus.snapshot("payments")["depth"] == 0
        assert bus.get("payments", id_) is None


def test_a_purge_removes_more_than_one_of_its_statements(dsn: str) -> None:
    with CommandBus(dsn, purge_allowed=True) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 1_100)
        bus.send_many([SendRequest("payments", "Debit", delay=60)] * 10)
        assert bus.purge("payments") == 1_110
        assert bus.snapshot("payments")["depth"] == 0


def test_purge_is_for_tests(dsn: str) -> None:
    with CommandBus(dsn) as bus, pytest.raises(InvalidOperationError, match="purge_allowed=True"):
        bus.purge("payments")
    with CommandBus(dsn, purge_allowed=True) as bus:
        own = bus.send("payments", "Debit", command_id=uuid4())
        bus.send("payments", "Debit", delay=60)
        running = bus.send("payments", "Debit")
        other = bus.send("orders", "Ship")
        claim_by_hand(dsn, running)
        assert bus.purge("payments") == 2
        assert [record.command_id for record in bus.query()] == [other, running]
        bus.send("payments", "Debit", command_id=own)
