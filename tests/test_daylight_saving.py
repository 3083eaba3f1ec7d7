"""A duration has the same seconds in every time zone, also when clocks change meanwhile."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psycopg
from handlers import run
from queries import scalar

from cmdbus import CommandBus, CommandRecord, SendRequest
from cmdbus.worker.claims.claim_statements import ClaimStatements

BERLIN = ZoneInfo("Europe/Berlin")
#: A command is created and due by two readings of the server's clock.
READINGS = timedelta(seconds=5)


def across_a_change() -> timedelta:
    """Days after which the clocks of Berlin differ from now, by an hour."""
    now = datetime.now(UTC)
    offset = now.astimezone(BERLIN).utcoffset()
    return next(
        days
        for days in map(timedelta, range(30, 330, 30))
        if (now + days).astimezone(BERLIN).utcoffset() != offset
    )


def waits(record: CommandRecord | None) -> timedelta:
    assert record is not None
    return record.due_at - record.created_at


def test_a_delay_across_a_change_of_clocks_is_exact(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    delay = across_a_change()
    assert connection.execute("SHOW timezone").fetchone() == ("Europe/Berlin",)
    one = bus.send("payments", "Debit", delay=delay)
    [many] = bus.send_many([SendRequest("payments", "Debit", delay=delay)])
    row = connection.execute(
        "SELECT cmdbus.send('payments', 'Debit', p_delay => %s)", (delay,)
    ).fetchone()
    assert row is not None
    for sent in (one, many, row[0]):
        assert abs(waits(bus.get("payments", sent)) - delay) < READINGS
    bus.reschedule("payments", one, delay=delay)
    assert abs(waits(bus.get("payments", one)) - delay) < READINGS


def test_a_time_means_the_same_in_bulk_as_alone(bus: CommandBus) -> None:
    """Once a year an hour comes twice, and `fold` marks the second one."""
    runs_at = datetime(2099, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)
    one = bus.send("payments", "Debit", run_at=runs_at)
    [many] = bus.send_many([SendRequest("payments", "Debit", run_at=runs_at)])
    for sent in (one, many):
        record = bus.get("payments", sent)
        assert record is not None and record.due_at == runs_at.astimezone(UTC)


def test_a_lease_of_days_is_exact(connection: psycopg.Connection) -> None:
    days = across_a_change()
    statements = ClaimStatements("cmdbus", days.total_seconds())
    query = "SELECT extract(epoch FROM clock_timestamp() + %s - clock_timestamp())"
    assert abs(float(scalar(connection, query, statements.lease)) - days.total_seconds()) < 1.0


def test_a_handler_sees_times_in_utc(dsn: str, bus: CommandBus) -> None:
    [record] = run(dsn, bus, lambda command, context: str(command.created_at.tzinfo))
    assert record.result == "UTC"
