"""A process manager for tests: a trip of three bookings, with commands that undo two of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from eventually import eventually
from handlers import ONCE, SOON, Function, leave_effect, running
from queries import rows

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    CommandRecord,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    ProcessManager,
    ProcessRecord,
    ProcessStatus,
    Reply,
    SendRequest,
)

FLIGHT, HOTEL, CAR = "FLIGHT", "HOTEL", "CAR"
STEPS = [FLIGHT, HOTEL, CAR]
#: What `taken` returns of a trip that is completed.
ALL = [f"{step} SUCCESS" for step in STEPS]


@dataclass
class Trip:
    city: str = "Oslo"
    seen: list[str] = field(default_factory=list)


class Booking(ProcessManager[Trip]):
    domain, type = "trips", "Booking"

    class Step(StrEnum):
        FLIGHT = "FLIGHT"
        HOTEL = "HOTEL"
        CAR = "CAR"

    def first_step(self, state: Trip) -> Step:
        return self.Step.FLIGHT

    def build_command(self, step: Step, state: Trip) -> SendRequest | list[SendRequest]:
        return SendRequest("bookings", step.capitalize(), {"city": state.city})

    def update_state(self, state: Trip, step: Step, reply: Reply) -> Trip:
        state.seen.append(f"{step} {reply.outcome}")
        return state

    def next_step(self, state: Trip, step: Step, reply: Reply) -> Step | None:
        return {FLIGHT: self.Step.HOTEL, HOTEL: self.Step.CAR}.get(step)

    def compensation(self, step: Step, state: Trip) -> SendRequest | None:
        """A hotel need not be canceled."""
        if step == HOTEL:
            return None
        return SendRequest("bookings", f"Cancel{step.capitalize()}", {"city": state.city})

    def on_signal(self, state: Trip, name: str, data: Any) -> Trip:
        state.seen.append(f"{name} {data}")
        return state


class ShortBooking(Booking):
    """Its hotel must answer within a minute; see `pass_deadline`."""

    def deadline(self, step: str) -> float | None:
        return 60 if step == HOTEL else None


TYPES = ["Flight", "Hotel", "Car", "CancelFlight", "CancelCar"]


def registry_of(manager: Booking | None = None, **functions: Function) -> HandlerRegistry:
    """With handlers of all types, each of which leaves an effect, unless another one is given."""
    registry = HandlerRegistry()
    registry.register_process(manager or Booking())
    for type_ in TYPES:
        registry.register("bookings", type_, functions.get(type_, leave_effect), retry=ONCE)
    return registry


def raising(error: Exception) -> Function:
    def fail(command: Command, context: Context) -> None:
        raise error

    return fail


RULE = raising(BusinessRuleError("FULL", "no room is free"))
PERMANENT = raising(PermanentCommandError("BROKEN", "an operator must look"))


def booked(bus: CommandBus, **more: Any) -> UUID:
    return bus.start_process("trips", "Booking", Trip(), **more)


def await_status(
    bus: CommandBus, process_id: UUID, *statuses: str, within: float = 10.0
) -> ProcessRecord:
    def found() -> ProcessRecord | None:
        record = bus.get_process(process_id)
        return record if record is not None and record.status in statuses else None

    record = eventually(found, within)
    assert record is not None
    return record


def await_end(bus: CommandBus, process_id: UUID, within: float = 10.0) -> ProcessRecord:
    terminal = [status for status in ProcessStatus if status.terminal]
    return await_status(bus, process_id, *terminal, within=within)


def taken(bus: CommandBus, process_id: UUID) -> list[str]:
    """Its steps with their outcomes, those that undo others with a minus."""
    return [
        f"{'' if step.undoes is None else '-'}{step.step} {step.outcome}"
        for step in bus.process_steps(process_id)
    ]


def awaited(bus: CommandBus, process_id: UUID) -> CommandRecord:
    """The command of its latest step."""
    step = bus.process_steps(process_id)[-1]
    record = bus.get(step.domain, step.command_id)
    assert record is not None
    return record


@contextmanager
def traveling(
    dsn: str, bus: CommandBus, manager: Booking | None = None, **functions: Function
) -> Iterator[UUID]:
    """A trip that a worker runs."""
    with running(dsn, registry_of(manager, **functions), poll_interval=0.5):
        yield booked(bus)


def pass_deadline(dsn: str) -> None:
    """That of the only step that has one."""
    due = "UPDATE cmdbus.scheduled SET due_at = clock_timestamp() WHERE type = 'process:deadline'"
    assert rows(dsn, f"{due} RETURNING 1") == [(1,)]
    rows(dsn, "SELECT cmdbus.wake_at(clock_timestamp())")


def answered(dsn: str, bus: CommandBus) -> UUID:
    """A trip whose first reply is there, and has not been handled."""
    with running(dsn, registry_of(), domains=["trips"]):
        process_id = booked(bus)
        await_status(bus, process_id, "WAITING_FOR_REPLY")
    registry = HandlerRegistry()
    registry.register("bookings", "Flight", leave_effect)
    with running(dsn, registry):
        eventually(lambda: bus.query("trips", "PENDING", "Reply"))
    return process_id


def soon(registry: HandlerRegistry) -> HandlerRegistry:
    """The handlers of processes retry at once."""
    for handler in registry:
        if handler.domain == "trips":
            object.__setattr__(handler, "policy", SOON)
    return registry


def reply(bus: CommandBus, process_id: UUID | None, command_id: UUID | None = None) -> UUID:
    """A reply that some program has sent."""
    data = {"command_id": str(command_id or uuid4()), "type": "Flight"}
    data |= {"outcome": "SUCCESS", "result": None}  # type: ignore[dict-item]
    return bus.send("trips", "Reply", data, correlation_id=process_id)
