"""Processes are found, kept for a time, and refused where a start is wrong."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import leave_effect, running
from queries import count, rows, scalar
from test_process_lists import Hotels
from trips import Trip, await_end, booked, registry_of, traveling

from cmdbus import (
    CommandBus,
    HandlerRegistry,
    InvalidOperationError,
    ProcessNotFoundError,
    ProcessRequest,
    QueueFullError,
    ShutdownError,
)
from cmdbus.producer.process_starts import ProcessStart, start
from cmdbus.producer.requests import SendRules
from cmdbus.producer.store import Store

pytestmark = pytest.mark.new_database


def test_processes_are_found_by_each_condition(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus) as done:
        record = await_end(bus, done)
    pending = booked(bus)
    other = bus.start_process("journeys", "Cruise", {})
    found = bus.query_processes
    assert [each.process_id for each in found()] == [other, pending, done]
    assert [each.process_id for each in found(limit=1, offset=1)] == [pending]
    assert [each.process_id for each in found("Booking")] == [pending, done]
    assert [each.process_id for each in found(domain="journeys")] == [other]
    assert [each.process_id for each in found(status="PENDING")] == [other, pending]
    assert found(status="COMPLETED") == [record]
    assert found(since=record.created_at, until=record.created_at + timedelta(microseconds=1)) == [
        record
    ]
    with pytest.raises(ValueError, match="status must be one of PENDING, IN_PROGRESS, "):
        found(status="DONE")


def test_a_finished_process_is_kept_as_long_as_the_history_of_its_domain(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """With its steps and events."""
    with traveling(dsn, bus) as done:
        bus.signal_process(done, "hello")
        await_end(bus, done)
    pending = booked(bus)
    bus.configure("trips", keep=timedelta(days=1))
    query = "SELECT cmdbus.retain_processes(10)"
    assert connection.execute(query).fetchone() == (0,)
    connection.execute(
        "UPDATE cmdbus.managed_process SET finished_at = finished_at - interval '25 hours'"
    )
    assert connection.execute(query).fetchone() == (1,)
    assert bus.get_process(done) is None and bus.get_process(pending) is not None
    assert count(connection, "cmdbus.process_step") == 0
    assert count(connection, "cmdbus.process_event") == 0


def test_retention_reads_no_process_that_its_domain_keeps(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """However many finished before those that go."""
    bus.configure("trips", keep=timedelta(days=3650))
    insert = (
        "INSERT INTO cmdbus.managed_process (process_id, start_id, version, domain, type, state,"
        " status, finished_at) SELECT gen_random_uuid(), gen_random_uuid(), 1, %s, 'Booking', '{}',"
        " 'COMPLETED', clock_timestamp() - %s::interval FROM generate_series(1, %s)"
    )
    for domain, age, times in (
        ("trips", "1 year", 3000),
        ("cruises", "8 days", 15),
        ("x", "8 d", 1),
    ):
        connection.execute(insert, (domain, age, times))
    connection.execute("ANALYZE cmdbus.managed_process")
    reads = (
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
        " WHERE relid = 'cmdbus.managed_process'::regclass"
    )
    with connection.transaction():
        before = scalar(connection, reads)
        removed = [scalar(connection, "SELECT cmdbus.retain_processes(10)") for _ in range(3)]
        assert scalar(connection, reads) - before < 200
    assert (sum(removed), removed[-1]) == (16, 0)


GROW = """
INSERT INTO cmdbus.ready (domain, priority, command_id, correlation_id, type, data, batch_id)
SELECT 'shop', 5, gen_random_uuid(), gen_random_uuid(), 'Debit', 'null', gen_random_uuid()
FROM generate_series(1, 5000);
INSERT INTO cmdbus.managed_process (process_id, start_id, version, domain, type, state)
SELECT gen_random_uuid(), gen_random_uuid(), 1, 'shop', 'Booking', '{}'
FROM generate_series(1, 5000)
"""


def test_operators_read_no_whole_table_with_plans_of_a_small_one(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """A session plans for good after some calls."""
    registry = HandlerRegistry()
    registry.register("bookings", "Flight", leave_effect)
    with running(dsn, registry_of(Hotels(1)), domains=["trips"]), running(dsn, registry):
        waiting = [booked(bus) for _ in range(8)]
        eventually(lambda: len(bus.query("bookings", type="Hotel")) == 8)
    connection.execute("ANALYZE cmdbus.ready, cmdbus.managed_process, cmdbus.batch_state")
    reads = (
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"
        " WHERE schemaname = 'cmdbus'"
    )
    for process_id in waiting:
        if process_id == waiting[-1]:
            connection.execute(GROW.encode())
        with connection.transaction():
            before = scalar(connection, reads)
            with pytest.raises(InvalidOperationError):
                bus.retry_process(process_id, operator="ann", connection=connection)
            bus.signal_process(process_id, "hello", connection=connection)
            assert scalar(connection, "SELECT cmdbus.expire_step(%s, 1)", process_id) is None
            bus.cancel_process(process_id, operator="ann", connection=connection)
            read = scalar(connection, reads) - before
    assert read < 500


# Wrong arguments.


def test_an_id_starts_one_process(bus: CommandBus) -> None:
    process_id = uuid4()
    assert booked(bus, process_id=process_id) == process_id
    with pytest.raises(InvalidOperationError, match="was started before: an id is taken once"):
        bus.start_process("trips", "Booking", Trip("Rome"), process_id=process_id)
    assert len(bus.query("trips")) == 1


def test_a_start_that_is_repeated_after_its_connection_died_starts_one_process(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    store, process = (
        Store("cmdbus"),
        ProcessStart.of(ProcessRequest("trips", "Booking", {}), SendRules.of(None, 100)),
    )
    assert [start(store, connection, process).refusal for _ in range(2)] == [None, "repeated"]
    assert len(bus.query("trips")) == 1


def test_a_full_or_closed_domain_starts_no_process(dsn: str, bus: CommandBus) -> None:
    bus.configure("trips", max_depth=1)
    started = booked(bus)
    with pytest.raises(QueueFullError):
        booked(bus)
    with pytest.raises(QueueFullError):
        bus.signal_process(started, "hello")
    bus.configure("trips", max_depth=None, accepting=False)
    with pytest.raises(ShutdownError):
        booked(bus)
    assert rows(dsn, "SELECT count(*) FROM cmdbus.managed_process") == [(1,)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trips", "Booking", Trip(city=object())), "state.city is of type object: JSON has no"),  # type: ignore[arg-type]
        (("trips", "Booking", [1]), "state must be a dataclass, a model or a dict, not list"),
        (("trips", "Booking", Trip), "state must be a dataclass, a model or a dict, not type"),
        (("tr ips", "Booking"), "domain must be a letter"),
        (("trips", ""), "type must be a letter"),
    ],
)
def test_a_wrong_start_is_refused_in_one_sentence(
    bus: CommandBus, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bus.start_process(*arguments)
    assert bus.query_processes() == []


def test_calls_about_an_unknown_process_say_so(bus: CommandBus) -> None:
    process_id = uuid4()
    assert bus.get_process(process_id) is None
    assert bus.process_steps(process_id) == [] == bus.process_audit(process_id)
    message = f"there is no process {process_id}"
    with pytest.raises(ProcessNotFoundError, match=message):
        bus.cancel_process(process_id, operator="ann")
    with pytest.raises(ProcessNotFoundError, match=message):
        bus.retry_process(process_id, operator="ann")
    with pytest.raises(ProcessNotFoundError, match=message):
        bus.signal_process(process_id, "hello")
