"""`expires` comes with every kind of send, and wakes a steward that would read its timers later."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest
from cli import done, here
from handlers import found, handling, running
from queries import claim_by_hand, scalar
from roles import role
from stewards import READS_AT, Steward
from trips import Booking, Trip, await_end, booked, registry_of

from cmdbus import (
    Command,
    CommandBus,
    CommandFailedError,
    Context,
    InvalidOperationError,
    SendRequest,
)

HOUR = timedelta(hours=1)
EARLY = "expires must be later than delay or run_at: the command would never start"


def seconds_of(connection: psycopg.Connection, command_id: UUID) -> float:
    """From its send to its expiry."""
    query = (
        "SELECT extract(epoch FROM expires_at - created_at)::float8 FROM cmdbus.command"
        " WHERE command_id = %s"
    )
    return float(scalar(connection, query, command_id))


@pytest.mark.parametrize("delay", [None, 60])
@pytest.mark.parametrize("expires", [3600, 3600.0, HOUR, datetime.now(UTC) + 2 * HOUR])
def test_each_kind_of_send_takes_seconds_or_a_time(
    bus: CommandBus, connection: psycopg.Connection, expires: Any, delay: float | None
) -> None:
    request = SendRequest("payments", "Debit", delay=delay, expires=expires)
    plain = SendRequest("payments", "Debit", delay=delay)
    sent = [
        bus.send("payments", "Debit", delay=delay, expires=expires),
        bus.send_many([plain, request])[1],
        bus.batch_commands(bus.create_batch("payments", [request]))[0].command_id,
    ]
    for id_ in sent:
        if isinstance(expires, datetime):
            assert found(bus, id_).expires_at == expires
        else:
            assert seconds_of(connection, id_) == pytest.approx(3600, abs=5)
    assert len(bus.query()) == 4
    assert sum(record.expires_at is not None for record in bus.query()) == 3


def test_seconds_are_seconds_when_the_clocks_change(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """A session's day may have 23 hours, and a zone's times are compared as the clock shows
    them."""
    year = timedelta(days=365)
    for expires in (year, year.total_seconds()):
        assert seconds_of(connection, bus.send("payments", "Debit", expires=expires)) == (
            pytest.approx(year.total_seconds(), abs=5)
        )
    sql = "SELECT cmdbus.send('payments', 'Debit', p_expires => '365 days')"
    assert seconds_of(connection, scalar(connection, sql)) == pytest.approx(365 * 86400, abs=5)
    zone = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2030, 10, 27, 2, 30, fold=fold, tzinfo=zone) for fold in (0, 1))
    bus.send("payments", "Debit", run_at=first, expires=second)
    with pytest.raises(ValueError, match=EARLY):
        bus.send("payments", "Debit", run_at=second, expires=first)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"expires": 0}, "expires must be more than 0 seconds and at most 36525 days, not 0"),
        ({"expires": -1.5}, "expires must be more than 0 seconds"),
        ({"expires": float("nan")}, "expires must be more than 0 seconds"),
        ({"expires": timedelta(days=36526)}, "expires must be more than 0 seconds"),
        ({"expires": True}, "expires must be seconds, a timedelta or an aware datetime, not True"),
        ({"expires": "1h"}, "expires must be seconds, a timedelta or an aware datetime, not '1h'"),
        ({"expires": datetime(2030, 1, 1)}, "expires must be an aware datetime"),
        ({"expires": 60, "delay": 60}, EARLY),
        ({"expires": 60, "delay": timedelta(hours=1)}, EARLY),
        ({"expires": datetime.now(UTC) + HOUR, "run_at": datetime.now(UTC) + 2 * HOUR}, EARLY),
        ({"expires": datetime.now(UTC) + HOUR, "delay": 7200}, EARLY),
        ({"expires": datetime.now(UTC) + HOUR, "delay": 7200, "unique": "daily"}, EARLY),
        ({"expires": 3600, "run_at": datetime.now(UTC) + 2 * HOUR}, EARLY),
    ],
)
def test_what_is_no_time_of_expiry_gets_one_sentence(
    dsn: str, bus: CommandBus, sender: psycopg.Connection, values: Any, sentence: str
) -> None:
    request = SendRequest("payments", "Debit", **values)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("", lambda: bus.send("payments", "Debit", **values)),
        ("", lambda: bus.send("payments", "Debit", **values, connection=sender)),
        ("request 2 of 2: ", lambda: bus.send_many([SendRequest("payments", "Debit"), request])),
        ("request 1 of 1: ", lambda: bus.create_batch("payments", [request])),
    ]
    for position, call in calls:
        with pytest.raises(ValueError) as refused:
            call()
        assert str(refused.value).startswith(f"{position}{sentence}")
    sender.commit()
    assert bus.query() == []


def test_what_has_expired_when_it_is_sent_is_accepted_and_never_runs(
    dsn: str, bus: CommandBus
) -> None:
    """A deadline that has passed meanwhile is no mistake of the sender's."""
    past = datetime.now(UTC) - HOUR
    with running(dsn, handling()):
        ids = [bus.send("payments", "Debit", expires=past)]
        ids += bus.send_many([SendRequest("payments", "Debit", expires=past)])
        assert {bus.wait("payments", id_, 10).error_code for id_ in ids} == {"EXPIRED"}


def test_sql_and_the_shell_send_with_an_expiry(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    query = "SELECT cmdbus.send('payments', 'Debit', p_expires => '1 hour')"
    for id_ in (
        scalar(connection, query),
        UUID(done(here("send", "payments", "Debit", "--expires", "1h", CMDBUS_DSN=dsn)).strip()),
    ):
        assert seconds_of(connection, id_) == pytest.approx(3600, abs=5)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    shell = here("send", "payments", "Debit", "--expires", at.isoformat(), CMDBUS_DSN=dsn)
    assert found(bus, UUID(done(shell).strip())).expires_at == at
    wrong = here("send", "payments", "Debit", "--expires", "soon", CMDBUS_DSN=dsn)
    assert "2026-12-31T08:00:00+01:00, not 'soon', or like 5m, 2h" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("p_expires => '0'", "p_expires must be more than 0, and at most 100 years"),
        ("p_expires => '-1 s'", "p_expires must be more than 0, and at most 100 years"),
        ("p_expires => '101 years'", "p_expires must be more than 0, and at most 100 years"),
        ("p_expires => '1 h', p_delay => '1 h'", "p_expires must be longer than p_delay: the"),
    ],
)
def test_what_is_no_expiry_in_sql_gets_one_sentence(
    connection: psycopg.Connection, arguments: str, sentence: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=sentence):
        scalar(connection, f"SELECT cmdbus.send('payments', 'Debit', {arguments})")


def test_what_a_batch_sends_at_its_end_expires_after_that(dsn: str, bus: CommandBus) -> None:
    with running(dsn, handling()):
        for delay in (None, 1800):
            after = SendRequest("orders", "Sum", expires=3600, delay=delay)
            batch_id = bus.create_batch(
                "payments", [SendRequest("payments", "Debit")], on_complete=after
            )
            bus.wait_batch(batch_id)
            [record] = [r for r in bus.query("orders") if r.correlation_id == batch_id]
            assert record.expires_at is not None
            assert (record.expires_at - record.created_at).total_seconds() == pytest.approx(3600, 1)


def test_a_handler_adds_commands_that_expire_to_its_batch(dsn: str, bus: CommandBus) -> None:
    def add(command: Command, context: Context) -> None:
        assert context.batch is not None
        context.batch.add([SendRequest("orders", "Ship", expires=0.2)])

    with running(dsn, handling(add)):
        batch_id = bus.create_batch("payments", [SendRequest("payments", "Debit")])
        assert bus.wait_batch(batch_id, 10).status == "COMPLETED_WITH_FAILURES"


@pytest.mark.parametrize("listed", [False, True], ids=["command", "batch"])
@pytest.mark.parametrize("expires", [0.3, HOUR])
def test_a_command_of_a_process_expires(
    dsn: str, bus: CommandBus, listed: bool, expires: float | timedelta
) -> None:
    """Its process goes on as after a cancel."""

    class Impatient(Booking):
        def build_command(self, step: Any, state: Trip) -> SendRequest | list[SendRequest]:
            domain = "nowhere" if isinstance(expires, float) else "bookings"
            sent = SendRequest(domain, step.capitalize(), expires=expires)
            return [sent] if listed else sent

    with running(dsn, registry_of(Impatient())):
        status = await_end(bus, booked(bus)).status
    assert status == ("COMPENSATED" if isinstance(expires, float) else "COMPLETED")


def test_a_call_that_nobody_takes_fails_when_its_command_expires(dsn: str, bus: CommandBus) -> None:
    """Its timeout is another time."""
    with running(dsn, handling()):
        with pytest.raises(CommandFailedError, match="EXPIRED: it expired before"):
            bus.call("orders", "Ship", timeout=20, expires=0.3)
        with pytest.raises(TimeoutError):
            bus.call("orders", "Ship", timeout=0.3, expires=HOUR)


def test_a_producer_may_send_what_expires(dsn: str, bus: CommandBus) -> None:
    with role(dsn, "producer") as producer:
        bus.send("payments", "Debit", expires=HOUR, connection=producer)
        bus.send_many([SendRequest("payments", "Debit", expires=HOUR)], connection=producer)
        producer.execute("SELECT cmdbus.send('payments', 'Debit', p_expires => '1 h')")
    assert len(bus.query()) == 3


@pytest.mark.parametrize("within", [True, False])
def test_a_send_that_expires_before_the_timers_are_read_notifies(
    bus: CommandBus, steward: Steward, within: bool
) -> None:
    steward.step(reads_at=READS_AT)
    assert READS_AT - steward.now > 30
    expires = 10 if within else HOUR
    heard = ["cmdbus_due"] if within else []
    sends: list[Callable[[], object]] = [
        lambda: bus.send("orders", "Ship", expires=expires),
        lambda: bus.send_many(
            [
                SendRequest("orders", "Ship", expires=HOUR),
                SendRequest("orders", "Ship", expires=expires),
            ]
        ),
        lambda: steward.connection.execute(
            "SELECT cmdbus.send('orders', 'Ship', p_expires => %s * interval '1 s')",
            (10 if within else 3600,),
        ),
    ]
    for send in sends:
        send()
        assert steward.heard() == heard


def test_a_fleet_cancels_what_expires_soon_though_nothing_else_happens(
    dsn: str, bus: CommandBus
) -> None:
    """A busy machine may be late: so one of several is looked at."""

    def seconds_late() -> float:
        record = bus.wait("orders", bus.send("orders", "Ship", expires=1.5), 20)
        assert record.error_code == "EXPIRED"
        assert record.finished_at is not None and record.expires_at is not None
        assert record.finished_at >= record.expires_at
        return (record.finished_at - record.expires_at).total_seconds()

    with running(dsn, handling(), poll_interval=60.0):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        assert any(seconds_late() < 1 for _ in range(3))


def test_a_command_is_not_rescheduled_beyond_its_expiry(dsn: str, bus: CommandBus) -> None:
    sentence = r"cannot be rescheduled: it expires by then, and would never start$"
    for delay in (None, 10):
        id_ = bus.send("payments", "Debit", delay=delay, expires=60)
        before = bus.get("payments", id_)
        for time in (
            {"delay": 61},
            {"delay": timedelta(minutes=2), "priority": "high"},
            {"run_at": datetime.now(UTC) + timedelta(hours=1)},
        ):
            with pytest.raises(InvalidOperationError, match=sentence):
                bus.reschedule("payments", id_, **time)
        assert bus.get("payments", id_) == before
        bus.reschedule("payments", id_, delay=30)
        bus.reschedule("payments", id_, priority="high")
        assert bus.explain("payments", id_)


def test_a_command_that_has_begun_is_rescheduled_to_any_time(dsn: str, bus: CommandBus) -> None:
    id_ = bus.send("payments", "Debit", expires=60)
    claim_by_hand(dsn, id_, "-1 second")
    bus.reschedule("payments", id_, delay=120)
