"""Replies to processes, and errors of their managers: what is dropped, retried, refused."""

import logging
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, await_drained, running
from trips import (
    ALL,
    Booking,
    Trip,
    await_end,
    await_status,
    awaited,
    booked,
    registry_of,
    reply,
    soon,
    taken,
    traveling,
)

from cmdbus import (
    BusinessRuleError,
    CommandBus,
    CommandRecord,
    ProcessManager,
    SendRequest,
)


def await_dropped(
    bus: CommandBus, caplog: pytest.LogCaptureFixture, command_id: UUID, why: str
) -> logging.LogRecord:
    assert bus.wait("trips", command_id, 10).status == "COMPLETED"
    line = f"dropped a command: {why} command={command_id} type=trips/Reply "
    [record] = [each for each in caplog.records if each.getMessage().startswith(line)]
    return record


# The five ways of a reply that nothing awaits.


def test_a_reply_to_an_unknown_process_is_dropped_with_a_warning(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = uuid4()
    with running(dsn, registry_of()):
        record = await_dropped(
            bus, caplog, reply(bus, unknown), f"domain trips has no process {unknown}"
        )
    assert record.levelno == logging.WARNING


def test_a_reply_to_a_process_without_a_manager_here_is_dropped_with_an_error(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    other = bus.start_process("trips", "Cruise", {})
    with running(dsn, registry_of()):
        why = f"process {other} (trips/Cruise) has no manager here"
        record = await_dropped(bus, caplog, reply(bus, other), why)
    assert record.levelno == logging.ERROR


def test_a_reply_without_a_correlation_id_is_dropped_with_a_warning(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    with running(dsn, registry_of()):
        await_dropped(bus, caplog, reply(bus, None), "it has no correlation id")
        unclear = {"command_id": str(uuid4()), "type": "Flight", "outcome": "?", "result": None}
        for data in (["not", "a", "reply"], unclear):
            odd = bus.send("trips", "Reply", data, correlation_id=uuid4())
            await_dropped(bus, caplog, odd, "it has not the data of a reply")


def test_a_reply_that_is_not_awaited_is_dropped_and_moves_nothing(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """That of an older step, and one that comes again."""
    gate = Gate()
    with traveling(dsn, bus, Hotel=gate) as process_id:
        gate.wait_for(1)
        first = bus.process_steps(process_id)[0].command_id
        for command_id in (first, uuid4()):
            why = f"process {process_id} (trips/Booking) does not await command {command_id} now"
            await_dropped(bus, caplog, reply(bus, process_id, command_id), why)
        assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL None"]
        gate.open.set()
        await_end(bus, process_id)
    assert taken(bus, process_id) == ALL


def test_an_error_of_the_manager_is_retried_and_then_needs_an_operator(
    dsn: str, bus: CommandBus
) -> None:
    """The error names the process. Nothing of the failed tries is there; a retry goes on."""
    tries: list[str] = []

    class Failing(Booking):
        def update_state(self, state: Trip, step: Any, reply: Any) -> Trip:
            tries.append(step)
            if len(tries) <= 3:
                raise KeyError("rating")
            return super().update_state(state, step, reply)

    with running(dsn, soon(registry_of(Failing()))):
        process_id = booked(bus)
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        [trouble] = bus.troubleshooting.list("trips")
        assert (trouble.type, trouble.attempts, trouble.error_code) == ("Reply", 3, "KeyError")
        where = f"process {process_id} (trips/Booking), step FLIGHT: update_state: 'rating'"
        assert trouble.error_message == where
        assert taken(bus, process_id) == ["FLIGHT None"]
        bus.retry_process(process_id, operator="ann")
        assert await_end(bus, process_id).state["seen"] == ALL
    details = [event.details for event in bus.audit("trips", trouble.command_id) if event.details]
    assert "in update_state" in str(details)


def test_a_reply_that_two_workers_handle_at_once_moves_the_process_once(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Both have the same data: one waits for the other, and finds another step."""
    with running(dsn, registry_of(), domains=["trips"]):
        process_id = booked(bus)
        await_status(bus, process_id, "WAITING_FOR_REPLY")
    command = awaited(bus, process_id)
    for _ in range(8):
        reply(bus, process_id, command.command_id)
    with running(dsn, registry_of(), domains=["trips"], concurrency=8):
        await_drained(bus, domain="trips")
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL None"]
    assert len(bus.query("bookings")) == 2


# What managers must not return.


def refused(dsn: str, bus: CommandBus, manager: Booking) -> CommandRecord:
    """The command whose manager's error needs an operator at once; the process has not moved."""
    with running(dsn, registry_of(manager)):
        process_id = booked(bus)
        record = await_status(bus, process_id, "WAITING_FOR_TSQ")
    [trouble] = bus.troubleshooting.list("trips")
    assert trouble.error_message is not None
    assert trouble.error_message.startswith(f"process {process_id} (trips/Booking)")
    assert record.step is None and bus.process_steps(process_id) == []
    return trouble


def returning(method: str, value: object) -> Booking:
    """A manager whose method returns this, or calls it."""

    def replacement(self: Booking, *_: object) -> object:
        return value() if callable(value) else value

    return type("Odd", (Booking,), {method: replacement})()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("first_step", "TRAIN", "first_step of Odd gave 'TRAIN', which is no step of Odd: FLIGHT"),
        ("first_step", None, "first_step of Odd gave None, which is no step of Odd"),
        ("build_command", "Flight", "build_command: it must return a SendRequest, not str"),
        (
            "build_command",
            SendRequest("bookings", "Flight", reply_to="orders"),
            "build_command: its SendRequest has a reply_to or a correlation_id",
        ),
        (
            "build_command",
            SendRequest("bookings", "Flight", unique="flight"),
            "build_command: its SendRequest has a unique key",
        ),
        (
            "build_command",
            SendRequest("bookings", "Flight", priority="urgent"),
            "build_command: priority must be 'high', 'normal', 'low', or a whole number",
        ),
        ("build_command", SendRequest("bookings", "Flight", {1}), "data is of type set"),
        ("deadline", -1, "deadline: it must be more than 0 seconds"),
    ],
)
def test_what_a_manager_must_not_return_is_refused_in_one_sentence(
    dsn: str, bus: CommandBus, method: str, value: object, message: str
) -> None:
    trouble = refused(dsn, bus, returning(method, value))
    assert message in str(trouble.error_message)
    assert bus.query("bookings") == []


def test_a_business_rule_of_a_manager_needs_an_operator_and_does_not_strand_the_process(
    dsn: str, bus: CommandBus
) -> None:
    def refuse() -> None:
        raise BusinessRuleError("NO_TRIPS", "not in this city")

    trouble = refused(dsn, bus, returning("first_step", refuse))
    assert trouble.error_code == "NO_TRIPS"


def test_an_id_that_a_manager_brings_is_taken_once(dsn: str, bus: CommandBus) -> None:
    taken_id = bus.send("bookings", "Other", command_id=uuid4())
    request = SendRequest("bookings", "Flight", command_id=taken_id)
    trouble = refused(dsn, bus, returning("build_command", request))
    assert trouble.error_code == "DUPLICATE_COMMAND"
    assert f"command {taken_id} of step FLIGHT was sent before" in str(trouble.error_message)


def test_a_signal_that_no_manager_takes_needs_an_operator(dsn: str, bus: CommandBus) -> None:
    class Deaf(Booking):
        on_signal = ProcessManager.on_signal

    gate = Gate()
    with traveling(dsn, bus, Deaf(), Flight=gate) as process_id:
        gate.wait_for(1)
        bus.signal_process(process_id, "hello")
        [trouble] = eventually(lambda: bus.troubleshooting.list("trips"))
        gate.open.set()
        await_status(bus, process_id, "WAITING_FOR_TSQ", "COMPLETED")
    assert "on_signal: Deaf takes no signals, and got 'hello'" in str(trouble.error_message)


def test_a_method_that_returns_no_state_leaves_the_stored_one(dsn: str, bus: CommandBus) -> None:
    class Forgetful(Booking):
        def update_state(self, state: Trip, step: Any, reply: Any) -> Trip:
            state.seen.append(step)
            return None  # type: ignore[return-value]  # the state was changed in place

        def build_command(self, step: Any, state: Trip) -> SendRequest:
            return SendRequest("bookings", step.capitalize())

    with traveling(dsn, bus, Forgetful()) as process_id:
        record = await_status(bus, process_id, "WAITING_FOR_TSQ")
    [trouble] = bus.troubleshooting.list("trips")
    assert "update_state: it must return a Trip, not None" in str(trouble.error_message)
    assert record.state == {"city": "Oslo", "seen": []}
