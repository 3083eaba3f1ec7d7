"""What a handler does through its connection commits with its command, or not at all."""

import logging
from collections.abc import Callable
from uuid import UUID

import psycopg
import pytest
from eventually import eventually, stays
from handlers import (
    ONCE,
    SOON,
    Gate,
    connect,
    do_nothing,
    effects,
    found,
    handling,
    leave_effect,
    run,
    running,
)
from proxy import Proxy
from queries import await_lock_waits, rows

from cmdbus import Command, CommandBus, Context, Status, Timeouts


def test_effects_and_completion_commit_together_or_not_at_all(dsn: str, bus: CommandBus) -> None:
    def debit(command: Command, context: Context) -> str:
        leave_effect(command, context)
        if context.attempt < 3:
            raise ValueError("after the effect")
        return "done"

    with running(dsn, handling(debit, retry=SOON)):
        record = bus.wait("payments", bus.send("payments", "Debit", reply_to="orders"))
    assert (record.result, record.attempts) == ("done", 3)
    assert rows(dsn, "SELECT attempt FROM effect") == [(3,)]
    assert len(bus.query("orders")) == 1


def test_what_fails_only_at_commit_fails_the_attempt(dsn: str, bus: CommandBus) -> None:
    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        leave_effect(command, context)

    with connect(dsn) as connection:
        unique = "ALTER TABLE effect ADD UNIQUE (command_id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(unique)
    with running(dsn, handling(debit, retry=ONCE)):
        record = bus.wait("payments", bus.send("payments", "Debit"))
    assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "UniqueViolation")
    assert effects(dsn) == 0


def lose(dsn: str, command_id: UUID) -> None:
    """Another node claims the command, whose lease has ended. Not for longer than a living node's
    lease: such a lease counts as ended."""
    with connect(dsn) as connection:
        connection.execute(
            "UPDATE cmdbus.ready SET token = token + 1,"
            " lease_until = clock_timestamp() + '25 s' WHERE command_id = %s",
            (command_id,),
        )


def test_effects_of_an_execution_that_lost_its_lease_do_not_land(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(leave_effect)
    with running(dsn, handling(gate)), caplog.at_level(logging.WARNING):
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        lose(dsn, sent)
        gate.open.set()
        eventually(lambda: "was lost before it was settled" in caplog.text)
        assert found(bus, sent).status is Status.IN_PROGRESS
    assert effects(dsn) == 0


@pytest.mark.parametrize("writes", [True, False], ids=["with effects", "without"])
def test_a_command_canceled_while_it_runs_lands_nothing_and_is_no_lost_lease(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture, writes: bool
) -> None:
    gate = Gate(leave_effect if writes else do_nothing)
    with running(dsn, handling(gate)) as worker, caplog.at_level(logging.INFO, "cmdbus"):
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        bus.cancel("payments", sent, running=True)
        gate.open.set()
        assert bus.wait("payments", sent).status is Status.CANCELED
        eventually(lambda: "was canceled while it ran" in caplog.text)
        counted = worker.metrics()
        assert counted["cmdbus_lost_leases_total"] == 0
        assert counted["cmdbus_commands_total"] == {("payments", "Debit", "canceled"): 1}
    assert "lost" not in caplog.text
    assert effects(dsn) == 0


def test_a_handler_that_cancels_its_own_command_in_its_transaction_fails_at_once(
    dsn: str, bus: CommandBus
) -> None:
    """Else the command would be claimed until its lease ends, and count as lost."""

    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        connection = context.connection
        bus.cancel("payments", command.command_id, running=True, connection=connection)

    with running(dsn, handling(debit, retry=ONCE)):
        record = bus.wait("payments", bus.send("payments", "Debit"))
    assert (record.status, record.attempts) == (Status.IN_TROUBLESHOOTING_QUEUE, 1)
    assert record.error_code == "COMMAND_CHANGED"
    assert effects(dsn) == 0


Sin = Callable[[psycopg.Connection], object]

SINS: dict[str, tuple[Sin, str]] = {
    "commit": (lambda c: c.commit(), "InvalidOperationError"),
    "rollback": (lambda c: c.rollback(), "InvalidOperationError"),
    "close": (lambda c: c.close(), "InvalidOperationError"),
    "with": (lambda c: c.__exit__(None, None, None), "InvalidOperationError"),
    "COMMIT": (lambda c: c.execute("COMMIT"), "TRANSACTION_ENDED"),
    "ROLLBACK": (lambda c: c.execute("ROLLBACK"), "TRANSACTION_ENDED"),
    "COMMIT; BEGIN": (
        lambda c: (c.execute("COMMIT"), c.execute("BEGIN")),
        "TRANSACTION_ENDED",
    ),
    "level": (
        lambda c: c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
        "TRANSACTION_ENDED",
    ),
}


def test_a_handler_that_ends_its_transaction_by_itself_gets_a_clear_error(
    dsn: str, bus: CommandBus
) -> None:
    def debit(command: Command, context: Context) -> None:
        SINS[command.data][0](context.connection)

    registry = handling(debit, retry=ONCE)
    registry.register("payments", "Good", leave_effect)
    with running(dsn, registry, concurrency=1):
        for sin, (_, code) in SINS.items():
            record = bus.wait("payments", bus.send("payments", "Debit", sin))
            assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", code), sin
            assert record.error_message is not None and "transaction" in record.error_message
            assert bus.wait("payments", bus.send("payments", "Good")).status == "COMPLETED"
    assert effects(dsn) == len(SINS)


def test_a_swallowed_sql_error_fails_the_attempt(dsn: str, bus: CommandBus) -> None:
    def debit(command: Command, context: Context) -> str:
        leave_effect(command, context)
        try:
            context.connection.execute("SELECT 1/0")
        except psycopg.Error:
            return "as if nothing had happened"
        raise AssertionError

    def savepoint(command: Command, context: Context) -> str:
        leave_effect(command, context)
        try:
            with context.connection.transaction():
                context.connection.execute("SELECT 1/0")
        except psycopg.Error:
            pass
        return "recovered"

    registry = handling(debit, retry=ONCE)
    registry.register("payments", "Savepoint", savepoint)
    with running(dsn, registry):
        record = bus.wait("payments", bus.send("payments", "Debit"))
        assert record.error_code == "TRANSACTION_ABORTED"
        assert bus.wait("payments", bus.send("payments", "Savepoint")).result == "recovered"
    assert effects(dsn) == 1


def test_a_plan_that_a_migration_invalidated_charges_no_command(dsn: str, bus: CommandBus) -> None:
    """A statement that the driver had prepared, of the handler's own."""
    with connect(dsn) as connection:
        connection.execute("CREATE TABLE wide (n int)")

    def debit(command: Command, context: Context) -> None:
        context.connection.execute("SELECT * FROM wide", prepare=True)

    with running(dsn, handling(debit), concurrency=1):
        assert bus.wait("payments", bus.send("payments", "Debit")).status == "COMPLETED"
        with connect(dsn) as connection:
            connection.execute("ALTER TABLE wide ADD COLUMN m int")
        again = bus.send("payments", "Debit")
        record = bus.wait("payments", again)
    assert (record.status, record.attempts) == ("COMPLETED", 1)
    assert "PLAN_CHANGED" in [event.code for event in bus.audit("payments", again)]


@pytest.mark.parametrize(
    ("failures", "end"), [(4, Status.COMPLETED), (5, Status.IN_TROUBLESHOOTING_QUEUE)]
)
def test_a_command_may_meet_several_sessions_with_an_old_plan(
    dsn: str, bus: CommandBus, failures: int, end: Status
) -> None:
    """Each of a fleet's sessions has prepared its own, and forgets it when a command fails."""
    with connect(dsn) as connection:
        connection.execute("CREATE TABLE wide (n int)")

    def debit(command: Command, context: Context) -> None:
        context.connection.execute("SELECT * FROM wide", prepare=True)

    with running(dsn, handling(debit, retry=ONCE), concurrency=1), connect(dsn) as connection:
        bus.wait("payments", bus.send("payments", "Debit"))
        connection.execute("ALTER TABLE wide ADD COLUMN m int")
        with connection.transaction():
            again = bus.send("payments", "Debit", connection=connection)
            note_old_plans(connection, again, failures)
        assert bus.wait("payments", again).status is end


def note_old_plans(connection: psycopg.Connection, command_id: UUID, count: int) -> None:
    """As if this number of executions had met one."""
    connection.execute(
        "INSERT INTO cmdbus.event (command_id, domain, kind, code)"
        " SELECT %s, 'payments', 'FAILED', 'PLAN_CHANGED' FROM generate_series(1, %s)",
        (command_id, count),
    )


def test_a_handler_that_always_spoils_its_own_plan_is_not_tried_forever(
    dsn: str, bus: CommandBus
) -> None:
    with connect(dsn) as connection:
        connection.execute("CREATE TABLE narrow (n int)")

    def debit(command: Command, context: Context) -> None:
        for _ in range(2):
            context.connection.execute("SELECT * FROM narrow", prepare=True)
            # Unlike an ALTER of its own, the driver does not notice this one.
            context.connection.execute("DO 'BEGIN ALTER TABLE narrow ADD m int; END'")

    sent = bus.send("payments", "Debit")
    with connect(dsn) as connection:
        note_old_plans(connection, sent, 4)
    with running(dsn, handling(debit, retry=ONCE), concurrency=1):
        record = bus.wait("payments", sent)
    assert (record.status, record.attempts) == (Status.IN_TROUBLESHOOTING_QUEUE, 1)
    assert record.error_code == "FeatureNotSupported"


def test_a_settlement_that_a_locked_table_blocks_costs_no_attempt(
    dsn: str, bus: CommandBus
) -> None:
    """The handler has returned in order; its effects are rolled back, and it runs again."""
    gate = Gate(leave_effect)
    ladder = Timeouts(statement=0.5, pool=2, lease=2, thread=15, watchdog=30)
    registry = handling(gate, retry=ONCE)
    with running(dsn, registry, timeouts=ladder), psycopg.connect(dsn) as stranger:
        id_ = bus.send("payments", "Debit")
        gate.wait_for(1)
        stranger.execute("LOCK TABLE cmdbus.finished IN ACCESS EXCLUSIVE MODE")
        gate.open.set()
        await_lock_waits(dsn)
        # Beyond the statement timeout, and a lease: what was not settled is renewed meanwhile.
        stays(lambda: effects(dsn) == 0, 2.5)
        stranger.rollback()
        record = bus.wait("payments", id_)
    assert (record.status, record.attempts) == ("COMPLETED", 1)
    assert effects(dsn) == 1
    codes = [event.code for event in bus.audit("payments", id_) if event.code]
    assert codes == ["SETTLEMENT_BLOCKED"]


def fill_disk(admin: psycopg.Connection, state: str) -> None:
    admin.execute(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE {state}; END $$;"
        " CREATE TRIGGER fill BEFORE INSERT ON cmdbus.finished FOR EACH ROW"
        " EXECUTE FUNCTION fill()".encode()
    )


@pytest.mark.parametrize("state", ["disk_full", "io_error"])
def test_a_full_disk_that_a_settlement_meets_charges_no_command(
    dsn: str, bus: CommandBus, state: str
) -> None:
    with connect(dsn) as admin, running(dsn, handling(leave_effect, retry=ONCE)):
        fill_disk(admin, state)
        id_ = bus.send("payments", "Debit")
        eventually(lambda: "SETTLEMENT_BLOCKED" in [e.code for e in bus.audit("payments", id_)])
        admin.execute("DROP TRIGGER fill ON cmdbus.finished")
        record = bus.wait("payments", id_)
    assert (record.status, record.attempts) == ("COMPLETED", 1)
    assert effects(dsn) == 1


def test_a_session_that_ends_at_the_rollback_counts_no_loss(dsn: str, bus: CommandBus) -> None:
    """The attempt is charged with the error that the handler has met before."""

    def deadlock(command: Command, context: Context) -> None:
        leave_effect(command, context)
        try:
            context.connection.execute("DO $$ BEGIN RAISE deadlock_detected; END $$")
        finally:
            end = "SELECT pg_terminate_backend(%s, 5000)"
            assert rows(dsn, end, context.connection.info.backend_pid) == [(True,)]

    [record] = run(dsn, bus, deadlock)
    assert (record.error_code, record.attempts) == ("DeadlockDetected", 1)
    assert rows(dsn, "SELECT losses FROM cmdbus.troubleshooting") == [(0,)]
    assert effects(dsn) == 0


def test_a_session_that_dies_after_a_full_disk_was_met_counts_no_loss(
    dsn: str, bus: CommandBus
) -> None:
    def without_rollbacks(data: bytes) -> bytes:
        if b"ROLLBACK;" in data:
            raise ConnectionResetError
        return data

    with (
        Proxy(dsn, without_rollbacks) as proxy,
        connect(dsn) as admin,
        running(proxy.dsn, handling(leave_effect, retry=ONCE)),
    ):
        fill_disk(admin, "disk_full")
        id_ = bus.send("payments", "Debit")
        eventually(lambda: rows(dsn, "SELECT code FROM cmdbus.event"))
        admin.execute("DROP TRIGGER fill ON cmdbus.finished")
        bus.wait("payments", id_)
    assert {*rows(dsn, "SELECT code FROM cmdbus.event")} == {("SETTLEMENT_BLOCKED",)}
    assert rows(dsn, "SELECT losses FROM cmdbus.finished") == [(0,)]
