"""Due commands are promoted, and each look returns when the next one is due."""

from collections.abc import Iterator

import psycopg
import pytest
from crowd import crowded
from eventually import eventually
from handlers import claim
from queries import count, scalar

from cmdbus import CommandBus
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.timers import GRACE_SECONDS, Timers, seconds_to_reading

HOUR = 3600.0
TYPE = "payments Debit"


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def timers() -> Timers:
    return Timers(ClaimStatements("cmdbus", 30), ["payments"], [TYPE])


def due_now(connection: psycopg.Connection) -> None:
    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")


def claimed(connection: psycopg.Connection, lease: float) -> ClaimStatements:
    """All of it, by some other worker."""
    statements = ClaimStatements("cmdbus", lease)
    statements.register(connection, "other")
    claim(statements, connection, 100)
    return statements


@pytest.mark.parametrize(
    ("due", "seconds"),
    [
        (float("-inf"), 0.0),
        (-HOUR, 0.0),
        (0.0, 0.0),
        (0.001, 0.001),
        (GRACE_SECONDS, GRACE_SECONDS),
        (2 * GRACE_SECONDS, GRACE_SECONDS),
        (1.0, 0.95),
        (60.0, 59.95),
        (60.0 + GRACE_SECONDS, 60.0),
        (HOUR, 60.0),
        (1e300, 60.0),
        (float("inf"), 60.0),
    ],
)
def test_the_timers_are_read_ahead_of_the_earliest_and_at_its_time(
    due: float, seconds: float
) -> None:
    assert GRACE_SECONDS == 0.05
    assert seconds_to_reading(due, fallback=60.0) == pytest.approx(seconds, abs=1e-9)
    assert seconds_to_reading(due, fallback=0.0) == 0.0


def test_with_nothing_scheduled_there_is_nothing_to_wait_for(
    connection: psycopg.Connection, timers: Timers
) -> None:
    assert timers.promote_and_read(connection, leases=True) == float("inf")


def test_the_ends_of_more_leases_than_can_be_read_keep_nothing_else_from_being_looked_at(
    connection: psycopg.Connection, bus: CommandBus
) -> None:
    statements = ClaimStatements("cmdbus", 30)
    timers = Timers(statements, ["payments"], [TYPE])
    connection.execute("INSERT INTO cmdbus.lease VALUES (1, '30 s', clock_timestamp())")

    def read_all() -> None:
        Timers(statements, ["payments"], [TYPE]).promote_and_read(connection, leases=True)

    with crowded(connection, "payments", read_all):
        bus.send("payments", "Debit", delay=HOUR)
        assert timers.promote_and_read(connection, leases=True) == pytest.approx(HOUR, abs=10.0)
        assert 0 < timers.promote_and_read(connection, leases=True) <= 60.0
        due_now(connection)
        assert timers.promote_and_read(connection, leases=True) == 0.0
    assert count(connection, "cmdbus.scheduled") == 0


def test_a_look_returns_the_time_until_the_earliest_command(
    connection: psycopg.Connection, bus: CommandBus, timers: Timers
) -> None:
    for delay in (2 * HOUR, HOUR, 3 * HOUR):
        bus.send("payments", "Debit", delay=delay)
    assert HOUR - 30 < timers.promote_and_read(connection, leases=False) <= HOUR
    assert count(connection, "cmdbus.ready") == 0


def test_what_is_due_is_moved_and_the_next_one_is_not_forgotten(
    connection: psycopg.Connection, bus: CommandBus, timers: Timers
) -> None:
    """And the second of two timers."""
    bus.send("payments", "Debit")
    bus.send("payments", "Debit", delay=HOUR)
    due_now(connection)
    bus.send("payments", "Debit", delay=2 * HOUR)
    newest = "SELECT max(id) FROM cmdbus.ready"
    before = scalar(connection, newest)
    assert timers.promote_and_read(connection, leases=False) == 0.0
    assert count(connection, "cmdbus.ready") == 2 and count(connection, "cmdbus.scheduled") == 1
    assert scalar(connection, newest) > before, "a new id: no claim reads below the floor"
    assert 2 * HOUR - 30 < timers.promote_and_read(connection, leases=False) <= 2 * HOUR


def test_a_locked_command_is_looked_for_less_and_less_often(
    connection: psycopg.Connection, bus: CommandBus, timers: Timers, dsn: str
) -> None:
    """Promotion waits for no lock, and is no loop without a pause."""
    bus.send("payments", "Debit", delay=HOUR)
    due_now(connection)
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT * FROM cmdbus.scheduled FOR UPDATE")
        waits = [timers.promote_and_read(connection, leases=False) for _ in range(15)]
        holder.rollback()
    assert waits[:4] == [0.002, 0.004, 0.008, 0.016] and waits[-2:] == [5.0, 5.0]
    assert timers.promote_and_read(connection, leases=False) == 0.0
    bus.send("payments", "Debit", delay=HOUR)
    assert timers.promote_and_read(connection, leases=False) > HOUR - 30
    due_now(connection)
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT * FROM cmdbus.scheduled FOR UPDATE")
        assert timers.promote_and_read(connection, leases=False) == 0.002, "it begins again"
        holder.rollback()


def test_a_locked_command_hides_none_that_is_due_after_it(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, timers: Timers
) -> None:
    bus.send("payments", "Debit", delay=HOUR)
    due_now(connection)
    later = bus.send("payments", "Debit", delay=HOUR)
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT FROM cmdbus.scheduled WHERE due_at <= clock_timestamp() FOR UPDATE")
        for _ in range(15):
            wait = timers.promote_and_read(connection, leases=False)
        assert wait == 5.0, "for the row alone"
        bus.reschedule("payments", later, delay=4.9)
        assert 0 <= timers.promote_and_read(connection, leases=False) <= 4.9
        bus.reschedule("payments", later, delay=HOUR)
        now = "UPDATE cmdbus.scheduled SET due_at = clock_timestamp() WHERE command_id = %s"
        connection.execute(now, (later,))
        eventually(lambda: timers.promote_and_read(connection, leases=False) == 0.0)
        assert count(connection, "cmdbus.scheduled") == 1


def test_a_lease_of_another_worker_is_a_timer_of_an_idle_node(
    connection: psycopg.Connection, bus: CommandBus, timers: Timers
) -> None:
    """An idle node takes over a dead one's commands on time; until then it
    shows at the pace of renewals that it could renew."""
    bus.send("payments", "Debit")
    claimed(connection, lease=HOUR)
    assert timers.promote_and_read(connection, leases=False) == float("inf")
    assert count(connection, "cmdbus.node") == 0
    assert timers.promote_and_read(connection, leases=True) == 10
    assert count(connection, "cmdbus.node") == 1
    connection.execute("UPDATE cmdbus.lease SET ends_at = clock_timestamp() + '9 s'")
    assert 0 < timers.promote_and_read(connection, leases=True) <= 9
    bus.send("payments", "Debit", delay=3)
    assert timers.promote_and_read(connection, leases=True) <= 3


def test_a_lease_of_what_we_have_no_handler_for_is_none_of_our_timers(
    connection: psycopg.Connection, bus: CommandBus
) -> None:
    bus.send("payments", "Debit")
    claimed(connection, lease=HOUR)
    connection.execute("UPDATE cmdbus.lease SET ends_at = clock_timestamp()")
    for domains, types in ((["mail"], ["mail Post"]), (["payments"], ["payments Credit"])):
        timers = Timers(ClaimStatements("cmdbus", 30), domains, types)
        assert timers.promote_and_read(connection, leases=True) == float("inf")


def test_rows_are_read_for_leases_only_when_a_claimer_may_have_let_one_end(
    connection: psycopg.Connection, bus: CommandBus, timers: Timers
) -> None:
    """A renewal moves its time, and retention forgets a claimer without claims."""
    bus.send("payments", "Debit")
    [held] = claimed(connection, lease=30).of(incarnation(connection)).claimed(connection)
    connection.execute("UPDATE cmdbus.ready SET lease_until = clock_timestamp() + '9 s'")
    timers.promote_and_read(connection, leases=True)
    assert timers.seen.pages == 0
    connection.execute("UPDATE cmdbus.lease SET ends_at = clock_timestamp()")
    assert 0 < timers.promote_and_read(connection, leases=True) <= 9
    assert timers.seen.pages > 0
    ClaimStatements("cmdbus", 30).renew(connection, {incarnation(connection): [held]})
    assert timers.promote_and_read(connection, leases=True) == 10
    assert timers.seen.pages == 0
    connection.execute("UPDATE cmdbus.lease SET ends_at = clock_timestamp() - '1 h'::interval")
    forget = "SELECT cmdbus.retain_incarnations('{}')"
    connection.execute(forget)
    assert count(connection, "cmdbus.lease") == 1
    connection.execute("TRUNCATE cmdbus.ready")
    connection.execute(forget)
    assert count(connection, "cmdbus.lease") == 0


def incarnation(connection: psycopg.Connection) -> int:
    return int(scalar(connection, "SELECT claimer FROM cmdbus.lease"))
