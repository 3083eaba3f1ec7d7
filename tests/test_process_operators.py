"""What operators do about processes: commands in troubleshooting, cancels and retries."""

import threading
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, effects, leave_effect, running
from trips import (
    ALL,
    PERMANENT,
    Booking,
    Trip,
    answered,
    await_end,
    await_status,
    awaited,
    booked,
    registry_of,
    taken,
    traveling,
)

from cmdbus import (
    Command,
    CommandBus,
    Context,
    InvalidOperationError,
    PermanentCommandError,
    ProcessManager,
    Reply,
)


def test_a_process_whose_command_waits_for_an_operator_is_seen_to_wait(
    dsn: str, bus: CommandBus
) -> None:
    """A completion by the operator goes on, with the operator's result."""
    with traveling(dsn, bus, Hotel=PERMANENT) as process_id:
        record = await_status(bus, process_id, "WAITING_FOR_TSQ")
        assert bus.query_processes(status="WAITING_FOR_TSQ") == [record]
        command = awaited(bus, process_id)
        bus.troubleshooting.complete("bookings", command.command_id, operator="ann")
        assert await_end(bus, process_id).status == "COMPLETED"
    assert taken(bus, process_id) == ALL


def test_an_operators_cancel_of_a_command_compensates(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus, Hotel=PERMANENT) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        command = awaited(bus, process_id)
        bus.troubleshooting.cancel(
            "bookings", command.command_id, operator="ann", reason="no hotel"
        )
        record = await_end(bus, process_id)
    assert (record.status, record.error) == ("COMPENSATED", "HOTEL: CANCELED: no hotel")
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL CANCELED", "-FLIGHT SUCCESS"]


def test_a_retry_takes_the_awaited_command_out_of_troubleshooting(
    dsn: str, bus: CommandBus
) -> None:
    tries: list[UUID] = []

    def fail_once(command: Command, context: Context) -> None:
        tries.append(command.command_id)
        if len(tries) == 1:
            raise PermanentCommandError("BROKEN", "an operator must look")

    with traveling(dsn, bus, Hotel=fail_once) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        bus.retry_process(process_id, operator="ann")
        assert await_end(bus, process_id).status == "COMPLETED"
    assert len(tries) == 2 and len(set(tries)) == 1


def test_a_canceled_process_ends_what_runs_and_undoes_what_is_done(
    dsn: str, bus: CommandBus
) -> None:
    """Nothing of the running handler lands."""
    gate = Gate(leave_effect)
    with traveling(dsn, bus, Hotel=gate) as process_id:
        gate.wait_for(1)
        bus.cancel_process(process_id, operator="ann", reason="rain")
        gate.open.set()
        record = await_end(bus, process_id)
        eventually(lambda: gate.inside == 0)
    assert (record.status, record.error) == ("CANCELED", "CANCELED: rain")
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL CANCELED", "-FLIGHT SUCCESS"]
    assert effects(dsn) == 2
    with pytest.raises(InvalidOperationError, match="cannot be canceled: it is CANCELED"):
        bus.cancel_process(process_id, operator="ann")


def test_a_process_can_be_canceled_while_its_command_is_in_troubleshooting(
    dsn: str, bus: CommandBus
) -> None:
    with traveling(dsn, bus, Hotel=PERMANENT) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        bus.cancel_process(process_id, operator="ann", reason="rain")
        assert await_end(bus, process_id).status == "CANCELED"
    assert bus.troubleshooting.count() == 0


def test_a_pending_process_is_canceled_at_once_and_never_begins(dsn: str, bus: CommandBus) -> None:
    process_id = booked(bus)
    bus.cancel_process(process_id, operator="ann")
    record = bus.get_process(process_id)
    assert record is not None and record.status == "CANCELED" and record.finished_at is not None
    with running(dsn, registry_of()):
        eventually(lambda: bus.query("trips", "COMPLETED"))
    assert taken(bus, process_id) == []


def test_a_start_that_needs_an_operator_ends_with_its_process(dsn: str, bus: CommandBus) -> None:
    class Broken(Booking):
        def first_step(self, state: Trip) -> Booking.Step:
            raise PermanentCommandError("BROKEN", "an operator must look")

    with traveling(dsn, bus, Broken()) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
    bus.cancel_process(process_id, operator="ann")
    assert await_end(bus, process_id).status == "CANCELED"
    assert bus.troubleshooting.count() == 0


def test_a_reply_that_needs_an_operator_ends_with_a_canceled_process(
    dsn: str, bus: CommandBus
) -> None:
    """The step that it is about is undone."""
    works = threading.Event()

    class Broken(Booking):
        def update_state(self, state: Trip, step: str, reply: Reply) -> Trip:
            if not works.is_set():
                raise PermanentCommandError("BROKEN", "an operator must look")
            return state

    with traveling(dsn, bus, Broken()) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        works.set()
        bus.cancel_process(process_id, operator="ann")
        assert await_end(bus, process_id).status == "CANCELED"
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "-FLIGHT SUCCESS"]
    assert bus.troubleshooting.count() == 0


def test_a_cancel_undoes_also_the_step_that_has_just_ended(dsn: str, bus: CommandBus) -> None:
    """Its reply is there, and no worker has handled it yet."""
    process_id = answered(dsn, bus)
    bus.cancel_process(process_id, operator="ann")
    with running(dsn, registry_of()):
        assert await_end(bus, process_id).status == "CANCELED"
        eventually(lambda: bus.snapshot("trips")["depth"] == 0)
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "-FLIGHT SUCCESS"]


def test_a_process_that_lost_its_reply_goes_on_after_a_retry(dsn: str, bus: CommandBus) -> None:
    """An operator has canceled the reply."""
    process_id = answered(dsn, bus)
    [reply] = bus.query("trips", "PENDING", "Reply")
    bus.cancel("trips", reply.command_id)
    with running(dsn, registry_of()):
        bus.retry_process(process_id, operator="ann")
        assert await_end(bus, process_id).status == "COMPLETED"


def test_a_process_whose_start_was_canceled_begins_after_a_retry(dsn: str, bus: CommandBus) -> None:
    process_id = booked(bus)
    [start] = bus.query("trips")
    bus.cancel("trips", start.command_id)
    with running(dsn, registry_of()):
        bus.retry_process(process_id, operator="ann")
        assert await_end(bus, process_id).status == "COMPLETED"
        with pytest.raises(InvalidOperationError, match="cannot be retried: it is COMPLETED"):
            bus.retry_process(process_id, operator="ann")


def test_a_process_whose_start_is_forgotten_begins_after_a_retry(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """It was canceled, and its history is removed."""
    process_id = booked(bus)
    with pytest.raises(InvalidOperationError, match="cannot be retried: it is PENDING"):
        bus.retry_process(process_id, operator="ann")
    [start] = bus.query("trips")
    bus.cancel("trips", start.command_id)
    connection.execute("DELETE FROM cmdbus.finished")
    with running(dsn, registry_of()):
        bus.retry_process(process_id, operator="ann")
        assert await_end(bus, process_id).status == "COMPLETED"


def test_a_refused_retry_of_a_process_retries_nothing(dsn: str, bus: CommandBus) -> None:
    """Of one that is over, a signal is left in troubleshooting."""

    class Deaf(Booking):
        on_signal = ProcessManager.on_signal

    gate = Gate()
    with traveling(dsn, bus, Deaf(), Flight=gate) as process_id:
        gate.wait_for(1)
        bus.signal_process(process_id, "hello")
        eventually(bus.troubleshooting.count)
        gate.open.set()
        await_status(bus, process_id, "COMPLETED")
    with pytest.raises(InvalidOperationError, match="cannot be retried: it is COMPLETED"):
        bus.retry_process(process_id, operator="ann")
    assert bus.troubleshooting.count() == 1


def test_a_process_that_needs_no_operator_cannot_be_retried(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with traveling(dsn, bus, Hotel=gate) as process_id:
        gate.wait_for(1)
        with pytest.raises(InvalidOperationError, match="cannot be retried: it is WAITING"):
            bus.retry_process(process_id, operator="ann")
        gate.open.set()
        await_end(bus, process_id)
