"""Processes that are parts of batches."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from eventually import eventually
from handlers import running
from senders import race
from trips import Booking, Trip, await_end, await_status, booked, raising, registry_of, traveling

from cmdbus import (
    BatchNotFoundError,
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    InvalidOperationError,
    PermanentCommandError,
    ProcessRequest,
    SendRequest,
)

TRIP = ProcessRequest("trips", "Booking", Trip())
NEW = uuid4()


def test_a_batch_is_over_when_its_processes_are(dsn: str, bus: CommandBus) -> None:
    """With its commands: what they are sent for is sent then."""
    batch_id = bus.create_batch(
        "trips",
        [SendRequest("bookings", "Car")] * 3,
        processes=[TRIP] * 20,
        on_complete=SendRequest("closing", "Close"),
    )
    batch = bus.get_batch(batch_id)
    assert batch is not None and (batch.total, batch.remaining) == (23, 23)
    with running(dsn, registry_of(), concurrency=8):
        batch = bus.wait_batch(batch_id, 20)
    assert (batch.status, batch.completed, batch.remaining) == ("COMPLETED", 23, 0)
    assert [command.type for command in bus.query("closing")] == ["Close"]
    kinds = [event.kind for event in bus.batch_audit(batch_id)]
    assert kinds == ["BATCH_CREATED", "BATCH_STARTED", "BATCH_COMPLETED"]
    processes = bus.query_processes(batch_id=batch_id)
    assert len(processes) == 20 and {each.status for each in processes} == {"COMPLETED"}


def test_each_end_of_a_process_counts_once(dsn: str, bus: CommandBus) -> None:
    """A failed one that an operator retries was counted already."""
    refuses = [True]

    def fail(command: Command, context: Context) -> None:
        if command.data["city"] != "Oslo":
            raise BusinessRuleError("FULL", "no room is free")

    def undo(command: Command, context: Context) -> None:
        if command.data["city"] == "Bonn" and refuses[0]:
            raise BusinessRuleError("LATE", "too late")

    cities = ["Oslo", "Rome", "Bonn"]
    requests = [ProcessRequest("trips", "Booking", Trip(city), uuid4()) for city in cities]
    batch_id = bus.create_batch("trips", [], processes=requests)
    extra = booked(bus, batch_id=batch_id)
    bus.cancel_process(extra, operator="ann")
    with running(dsn, registry_of(Car=fail, CancelFlight=undo)):
        batch = bus.wait_batch(batch_id, 20)
        counts = (batch.completed, batch.failed, batch.canceled)
        assert (batch.status, *counts) == ("COMPLETED_WITH_FAILURES", 1, 2, 1)
        [bonn] = bus.query_processes(status="FAILED")
        refuses[0] = False
        bus.retry_process(bonn.process_id, operator="ann")
        await_status(bus, bonn.process_id, "COMPENSATED")
        eventually(lambda: bus.snapshot("trips")["depth"] == 0)
    again = bus.get_batch(batch_id)
    assert again is not None
    assert (again.completed, again.failed, again.canceled, again.remaining) == (*counts, 0)


def test_a_process_that_waits_for_an_operator_keeps_its_batch_open(
    dsn: str, bus: CommandBus
) -> None:
    batch_id = bus.create_batch("trips", [], processes=[TRIP])
    trouble = raising(PermanentCommandError("BROKEN", "an operator must look"))
    with running(dsn, registry_of(Hotel=trouble)):
        [process] = bus.query_processes(batch_id=batch_id)
        await_status(bus, process.process_id, "WAITING_FOR_TSQ")
        with pytest.raises(TimeoutError):
            bus.wait_batch(batch_id, 0.2)
        bus.troubleshooting.cancel_all(operator="ann")
        assert bus.wait_batch(batch_id, 10).failed == 1


def test_a_canceled_batch_cancels_the_processes_that_have_not_begun(
    dsn: str, bus: CommandBus
) -> None:
    batch_id = bus.create_batch("trips", [], processes=[TRIP] * 3)
    bus.cancel_batch(batch_id, reason="rain", operator="ann")
    assert {each.status for each in bus.query_processes(batch_id=batch_id)} == {"CANCELED"}
    with running(dsn, registry_of()):
        batch = bus.wait_batch(batch_id, 10)
    assert (batch.status, batch.canceled) == ("CANCELED", 3)


def test_a_batch_that_is_over_takes_no_process(dsn: str, bus: CommandBus) -> None:
    """Nothing is written."""
    batch_id = bus.create_batch("trips", [], processes=[TRIP])
    with running(dsn, registry_of()):
        bus.wait_batch(batch_id, 10)
    message = f"batch {batch_id} takes no further processes: it is COMPLETED"
    with pytest.raises(InvalidOperationError, match=message):
        booked(bus, batch_id=batch_id)
    canceling = bus.create_batch("trips", [SendRequest("bookings", "Other")], processes=[TRIP])
    with traveling(dsn, bus) as process_id:
        await_end(bus, process_id)
        bus.cancel_batch(canceling)
    with pytest.raises(InvalidOperationError, match="takes no further processes: it is "):
        booked(bus, batch_id=canceling)
    with pytest.raises(BatchNotFoundError):
        booked(bus, batch_id=uuid4())
    assert bus.query("trips", "PENDING", "process:start") == []


def test_batches_that_share_ids_of_processes_do_not_deadlock(bus: CommandBus) -> None:
    for _ in range(5):
        requests = [replace(TRIP, process_id=uuid4()) for _ in range(50)]

        def create(step: int, requests: list[ProcessRequest] = requests) -> UUID:
            return bus.create_batch("trips", [], processes=requests[::step])

        results = race([lambda s=step: create(s) for step in (1, -1, 2, 3)])  # type: ignore[misc]
        assert sum(isinstance(result, UUID) for result in results) == 1, results
        assert sum(isinstance(r, InvalidOperationError) for r in results) == 3, results


def test_a_batch_is_created_with_all_of_its_processes_or_not_at_all(bus: CommandBus) -> None:
    known = booked(bus)
    requests = [TRIP, ProcessRequest("trips", "Booking", Trip(), known)]
    with pytest.raises(InvalidOperationError, match="was started before"):
        bus.create_batch("trips", [SendRequest("bookings", "Car")], processes=requests)
    with pytest.raises(InvalidOperationError, match=f"process {NEW} is in this call twice"):
        bus.create_batch("trips", [], processes=[TRIP, replace(TRIP, process_id=NEW)] * 2)
    with pytest.raises(ValueError, match="processes must be ProcessRequests, not Booking"):
        bus.create_batch("trips", [], processes=[Booking()])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="processes must be an iterable of ProcessRequests, not "):
        bus.create_batch("trips", [], processes=TRIP)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Batch must contain at least one command"):
        bus.create_batch("trips", [])
    assert bus.list_batches() == [] == bus.query("bookings")
    assert len(bus.query_processes()) == 1
