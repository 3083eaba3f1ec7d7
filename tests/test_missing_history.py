"""Commands that end while there is no partition of history for them, or no schema."""

from collections.abc import Callable, Iterator
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from handlers import ONCE, connect, do_nothing, effects, handling, leave_effect, running
from preflights import OK, checks
from queries import count, move_to_troubleshooting, rows, scalar

from cmdbus import Command, CommandBus, Context, SendRequest

pytestmark = pytest.mark.new_database


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with connect(dsn) as connection:
        yield connection


def drop_history(admin: psycopg.Connection) -> None:
    partitions = admin.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits"
        " WHERE inhparent = 'cmdbus.finished'::regclass"
    ).fetchall()
    for (name,) in partitions:
        admin.execute(f"DROP TABLE {name}".encode())


def test_a_partition_of_history_that_is_missing_is_made(
    dsn: str, bus: CommandBus, admin: psycopg.Connection
) -> None:
    with running(dsn, handling(leave_effect, retry=ONCE)):
        for type in ("Noop", "Debit"):
            drop_history(admin)
            record = bus.wait("payments", bus.send("payments", type))
            assert (record.status, record.attempts) == ("COMPLETED", 1)
    assert effects(dsn) == 1


def test_a_partition_of_history_that_the_server_refuses_to_make_charges_no_command(
    dsn: str, bus: CommandBus, admin: psycopg.Connection
) -> None:
    """As where changes of schemas are forbidden for a while. Nor does it keep a worker from
    starting."""
    ids = [bus.send("payments", type) for type in ("Debit", "Noop")]
    drop_history(admin)
    admin.execute(
        "CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE 'frozen'; END $$;"
        " CREATE EVENT TRIGGER frozen ON ddl_command_start EXECUTE FUNCTION public.refuse()"
    )
    tried = "SELECT 1 FROM cmdbus.event WHERE code = 'SETTLEMENT_BLOCKED'"
    with running(dsn, handling(leave_effect, retry=ONCE)):
        eventually(lambda: rows(dsn, tried))
        admin.execute("DROP EVENT TRIGGER frozen")
        records = [bus.wait("payments", id_) for id_ in ids]
    assert [(record.status, record.attempts) for record in records] == [("COMPLETED", 1)] * 2
    assert effects(dsn) == 1


def test_a_schema_that_is_away_for_a_moment_charges_no_command(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """As while it is restored."""

    def pay(command: Command, context: Context) -> None:
        leave_effect(command, context)
        if "stored" not in caplog.text:
            admin.execute("ALTER SCHEMA cmdbus RENAME TO away")

    command_id = bus.send("payments", "Debit")
    with running(dsn, handling(pay, retry=ONCE), concurrency=1):
        eventually(lambda: "cannot be stored yet" in caplog.text, 20)
        admin.execute("ALTER SCHEMA away RENAME TO cmdbus")
        record = bus.wait("payments", command_id, 15)
    assert (record.status, record.attempts, effects(dsn)) == ("COMPLETED", 1, 1)


@pytest.mark.parametrize("name", ["TABLE lease", "TABLE finished", "SEQUENCE armed"])
@pytest.mark.parametrize("handler", [leave_effect, do_nothing])
def test_a_table_that_is_away_for_a_moment_charges_no_command(
    dsn: str,
    bus: CommandBus,
    admin: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    name: str,
    handler: Callable[[Command, Context], None],
) -> None:
    """Whatever needs it: claims, or outcomes."""

    def pay(command: Command, context: Context) -> None:
        if "first" not in handled:
            handled["first"] = command.command_id
            admin.execute(f"ALTER {kind} cmdbus.{table} RENAME TO away".encode())
        handler(command, context)

    handled: dict[str, UUID] = {}
    kind, table = name.split()
    ids = bus.send_many([SendRequest("payments", "Debit")] * 9)
    with running(dsn, handling(pay, retry=ONCE), concurrency=1):
        eventually(lambda: "does not exist" in caplog.text, 20)
        admin.execute(f"ALTER {kind} cmdbus.away RENAME TO {table}".encode())
        records = [bus.wait("payments", id_, 15) for id_ in ids]
    assert {(record.status, record.attempts) for record in records} == {("COMPLETED", 1)}


def test_history_that_another_session_has_locked_keeps_no_worker_from_starting(
    dsn: str, bus: CommandBus, admin: psycopg.Connection
) -> None:
    """As ANALYZE locks it."""
    newest = "SELECT max(relname) FROM pg_class WHERE relname ~ '^finished_[0-9]{8}$'"
    for lacks in (False, True):
        if lacks:
            admin.execute(f"DROP TABLE cmdbus.{scalar(admin, newest)}".encode())
        with connect(dsn) as stranger, stranger.transaction():
            stranger.execute("LOCK TABLE cmdbus.finished IN SHARE UPDATE EXCLUSIVE MODE")
            with running(dsn, handling()):
                record = bus.wait("payments", bus.send("payments", "Debit"))
        assert record.status == "COMPLETED"


def test_the_check_before_a_start_passes_where_no_fleet_has_made_partitions_for_weeks(
    dsn: str, admin: psycopg.Connection
) -> None:
    """And leaves making them to the worker."""
    drop_history(admin)
    assert checks(dsn)["claim"].finding is OK
    assert count(admin, "pg_inherits WHERE inhparent = 'cmdbus.finished'::regclass") == 0


def test_operators_end_commands_where_no_fleet_has_made_partitions_for_weeks(
    dsn: str, bus: CommandBus, admin: psycopg.Connection
) -> None:
    id_ = bus.send("payments", "Debit")
    move_to_troubleshooting(dsn)
    waiting = [bus.send("payments", "Debit", delay=60) for _ in range(2)]
    ends: list[Callable[[], object]] = [
        lambda: bus.cancel("payments", waiting[0]),
        lambda: bus.cancel_all("payments"),
        lambda: bus.troubleshooting.complete("payments", id_, operator="ann"),
    ]
    for end in ends:
        drop_history(admin)
        end()
    # The others were dropped with their partitions.
    assert count(admin, "cmdbus.finished") == 1
