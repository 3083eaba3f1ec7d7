"""Steps of several commands."""

import threading
from typing import Any
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, beside, effects, leave_effect, running
from queries import await_lock_waits, rows
from trips import (
    HOTEL,
    Booking,
    Trip,
    await_end,
    await_status,
    booked,
    pass_deadline,
    raising,
    registry_of,
    taken,
    traveling,
)

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    Reply,
    SendRequest,
)


class Hotels(Booking):
    """Its second step books several hotels, and can be undone."""

    def __init__(self, count: int = 5) -> None:
        self.count = count
        self.replies: list[Any] = []

    def build_command(self, step: Any, state: Trip) -> SendRequest | list[SendRequest]:
        if step != HOTEL:
            return super().build_command(step, state)
        return [SendRequest("bookings", "Hotel", {"number": n}) for n in range(self.count)]

    def update_state(self, state: Trip, step: Any, reply: Reply) -> Trip:
        if step == HOTEL:
            self.replies.append(reply.result)
        return super().update_state(state, step, reply)

    def compensation(self, step: Any, state: Trip) -> SendRequest | None:
        if step != HOTEL:
            return super().compensation(step, state)
        return SendRequest("bookings", "CancelCar", {"city": state.city})


class HurriedHotels(Hotels):
    """See `pass_deadline`."""

    def deadline(self, step: Any) -> float | None:
        return 60 if step == HOTEL else None


def fail_some(command: Command, context: Context) -> None:
    if command.data["number"] in (1, 3):
        raise BusinessRuleError("FULL", f"hotel {command.data['number']} is full")
    leave_effect(command, context)


UNDONE = ["-HOTEL SUCCESS", "-FLIGHT SUCCESS"]


def test_a_step_of_several_commands_is_over_when_all_are(dsn: str, bus: CommandBus) -> None:
    """They have the process's id as their correlation id."""
    manager = Hotels()
    with traveling(dsn, bus, manager) as process_id:
        assert await_end(bus, process_id).status == "COMPLETED"
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL SUCCESS", "CAR SUCCESS"]
    assert effects(dsn) == 7
    [batch] = bus.list_batches()
    assert (batch.name, batch.status, batch.total) == ("Booking HOTEL", "COMPLETED", 5)
    commands = bus.batch_commands(batch.batch_id)
    assert {command.correlation_id for command in commands} == {process_id}
    assert manager.replies == [
        {
            "batch_id": str(batch.batch_id),
            **{"total": 5, "completed": 5, "failed": 0, "canceled": 0, "failures": []},
        }
    ]


def test_a_list_that_failed_in_part_is_undone_before_the_steps_that_preceded_it(
    dsn: str, bus: CommandBus
) -> None:
    """The reply names what has failed."""
    manager = Hotels()
    with traveling(dsn, bus, manager, Hotel=fail_some) as process_id:
        record = await_end(bus, process_id)
    assert record.status == "COMPENSATED"
    assert record.error == "HOTEL: 3 of 5 commands were completed"
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL FAILED", *UNDONE]
    [result] = manager.replies
    assert (result["completed"], result["failed"], result["canceled"]) == (3, 2, 0)
    failures = [(each["status"], each["code"], each["message"]) for each in result["failures"]]
    assert sorted(failures) == [
        ("FAILED", "FULL", "hotel 1 is full"),
        ("FAILED", "FULL", "hotel 3 is full"),
    ]


def test_the_reply_names_the_first_hundred_failures(dsn: str, bus: CommandBus) -> None:
    manager = Hotels(150)
    rule = raising(BusinessRuleError("FULL", "no room is free"))
    with traveling(dsn, bus, manager, Hotel=rule) as process_id:
        assert await_end(bus, process_id, within=20).status == "COMPENSATED"
    [result] = manager.replies
    assert result["failed"] == 150 and len(result["failures"]) == 100


def test_a_deadline_cancels_what_is_left_of_a_list(dsn: str, bus: CommandBus) -> None:
    """What waits, what runs and what needs an operator; nothing of it lands afterwards."""
    gate = Gate(leave_effect)

    def book(command: Command, context: Context) -> None:
        if command.data["number"] == 0:
            raise PermanentCommandError("BROKEN", "an operator must look")
        if command.data["number"] == 1:
            leave_effect(command, context)
        else:
            gate(command, context)

    manager = HurriedHotels(6)
    with running(dsn, registry_of(manager, Hotel=book), concurrency=8):
        process_id = booked(bus)
        gate.wait_for(4)
        eventually(lambda: (bus.troubleshooting.count(), effects(dsn)) == (1, 2))
        pass_deadline(dsn)
        record = await_end(bus, process_id)
        gate.open.set()
        eventually(lambda: gate.inside == 0)
    assert record.error == "DEADLINE: the deadline of step HOTEL has passed"
    assert record.status == "COMPENSATED"
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL CANCELED", *UNDONE]
    [result] = manager.replies
    assert (result["completed"], result["canceled"]) == (1, 5)
    assert effects(dsn) == 4
    assert bus.troubleshooting.count() == 0


def test_a_deadline_does_not_wait_for_a_handler_that_has_added_to_the_list(
    dsn: str, bus: CommandBus
) -> None:
    """What it has added is gone with what it has done."""
    gate = Gate(leave_effect)

    def add(command: Command, context: Context) -> None:
        assert context.batch is not None
        context.batch.add([SendRequest("bookings", "Hotel", {"number": 9})])
        gate(command, context)

    with traveling(dsn, bus, HurriedHotels(1), Hotel=add) as process_id:
        gate.wait_for(1)
        pass_deadline(dsn)
        record = await_end(bus, process_id)
        gate.open.set()
        eventually(lambda: gate.inside == 0)
    assert record.status == "COMPENSATED"
    [batch] = bus.list_batches()
    assert (batch.total, batch.canceled, len(bus.query("bookings", type="Hotel"))) == (1, 1, 1)


def test_a_canceled_process_cancels_its_list(dsn: str, bus: CommandBus) -> None:
    gate = Gate(leave_effect)
    with traveling(dsn, bus, Hotels(), Hotel=gate) as process_id:
        gate.wait_for(1)
        bus.cancel_process(process_id, operator="ann", reason="rain")
        gate.open.set()
        record = await_end(bus, process_id)
        eventually(lambda: gate.inside == 0)
    assert (record.status, record.error) == ("CANCELED", "CANCELED: rain")
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL CANCELED", *UNDONE]


def sent(dsn: str, bus: CommandBus, manager: Hotels) -> UUID:
    """A trip whose list of hotels waits."""
    registry = HandlerRegistry()
    registry.register("bookings", "Flight", leave_effect)
    with running(dsn, registry_of(manager), domains=["trips"]), running(dsn, registry):
        process_id = booked(bus)
        eventually(lambda: len(bus.process_steps(process_id)) == 2)
    return process_id


def test_a_canceled_list_is_locked_as_settlements_lock_it(dsn: str, bus: CommandBus) -> None:
    """In order of priority, not of age: else the two deadlock."""

    class Urgent(Hotels):
        def build_command(self, step: Any, state: Trip) -> SendRequest | list[SendRequest]:
            sent = super().build_command(step, state)
            if isinstance(sent, list):
                sent[-1].priority = "high"
            return sent

    process_id = sent(dsn, bus, Urgent())
    order = "SELECT id FROM cmdbus.ready WHERE batch_id IS NOT NULL ORDER BY priority, id"
    ids = [each for (each,) in rows(dsn, order)]
    lock = "SELECT FROM cmdbus.ready WHERE id = ANY (%s) FOR UPDATE NOWAIT"
    with psycopg.connect(dsn) as settling:
        settling.execute(lock, (ids[:1],))
        with beside(lambda: bus.cancel_process(process_id, operator="ann")):
            await_lock_waits(dsn)
            settling.execute(lock, (ids,))
            settling.rollback()


def test_a_cancel_ends_a_list_whose_last_command_has_ended_unseen(
    dsn: str, bus: CommandBus
) -> None:
    """Workers that look whether it is over skip its row while a cancel has locked it."""
    process_id = sent(dsn, bus, Hotels(1))
    [command] = bus.query("bookings", type="Hotel")
    registry = HandlerRegistry()
    registry.register("bookings", "Hotel", leave_effect)
    with psycopg.connect(dsn) as canceling:
        canceling.execute("SELECT FROM cmdbus.batch_state FOR UPDATE")
        with running(dsn, registry):
            bus.wait("bookings", command.command_id, 10)
    bus.cancel_process(process_id, operator="ann")
    [batch] = bus.list_batches()
    assert (batch.status, batch.completed) == ("CANCELED", 1)


def ended(dsn: str, bus: CommandBus, manager: Hotels) -> UUID:
    """A trip whose list of hotels is over; its end has not been handled."""
    process_id = sent(dsn, bus, manager)
    registry = HandlerRegistry()
    registry.register("bookings", "Hotel", leave_effect)
    with running(dsn, registry):
        bus.wait_batch(bus.process_steps(process_id)[-1].command_id, 10)
    return process_id


RETAIN = """
UPDATE cmdbus.batch_state SET completed_at = completed_at - interval '8 days';
SELECT cmdbus.retain_batches(10)
"""


def test_the_batch_of_a_list_is_kept_until_the_process_has_moved_on(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    process_id = ended(dsn, bus, Hotels())
    connection.execute(RETAIN)
    with running(dsn, registry_of(Hotels())):
        assert await_end(bus, process_id).status == "COMPLETED"
    connection.execute(RETAIN)
    assert bus.list_batches() == []


def test_a_process_whose_list_is_forgotten_is_compensated_after_a_retry(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """An operator has canceled the notice of its end, and its batch was removed."""
    process_id = ended(dsn, bus, Hotels())
    [notice] = bus.query("trips", "PENDING")
    bus.cancel("trips", notice.command_id)
    connection.execute(RETAIN)
    with running(dsn, registry_of(Hotels())):
        bus.retry_process(process_id, operator="ann")
        record = await_end(bus, process_id)
    assert (record.status, record.error) == ("COMPENSATED", "HOTEL: GONE: its history is gone")
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL CANCELED", *UNDONE]


def test_a_list_waits_for_an_operator_and_goes_on_after_a_retry(dsn: str, bus: CommandBus) -> None:
    works = threading.Event()

    def book(command: Command, context: Context) -> None:
        if not works.is_set():
            raise PermanentCommandError("BROKEN", "an operator must look")

    with traveling(dsn, bus, Hotels(), Hotel=book) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        eventually(lambda: bus.troubleshooting.count() == 5)
        works.set()
        bus.retry_process(process_id, operator="ann")
        assert await_end(bus, process_id).status == "COMPLETED"


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "build_command: it returned no SendRequest"),
        ([SendRequest("bookings", "Hotel"), "Hotel"], "must return a SendRequest, not str"),
    ],
)
def test_a_list_of_something_else_is_refused(
    dsn: str, bus: CommandBus, requests: list[Any], message: str
) -> None:
    class Odd(Booking):
        def build_command(self, step: Any, state: Trip) -> SendRequest | list[SendRequest]:
            return requests

    with traveling(dsn, bus, Odd()) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
    [trouble] = bus.troubleshooting.list("trips")
    assert message in str(trouble.error_message)
    assert bus.list_batches() == [] == bus.query("bookings")


def test_the_end_of_a_list_that_its_manager_cannot_handle_needs_an_operator(
    dsn: str, bus: CommandBus
) -> None:
    works = threading.Event()

    class Picky(Hotels):
        def update_state(self, state: Trip, step: Any, reply: Reply) -> Trip:
            if step == HOTEL and not works.is_set():
                raise PermanentCommandError("BROKEN", "an operator must look")
            return super().update_state(state, step, reply)

    with traveling(dsn, bus, Picky()) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        works.set()
        bus.retry_process(process_id, operator="ann")
        assert await_end(bus, process_id).status == "COMPLETED"
    assert bus.troubleshooting.count() == 0
