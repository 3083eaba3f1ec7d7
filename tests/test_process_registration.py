"""Managers are registered once, and checked when they are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import psycopg
import pytest
from eventually import eventually
from handlers import running
from trips import Booking, Trip, await_end, await_status, booked, registry_of

from cmdbus import (
    CommandBus,
    HandlerAlreadyRegisteredError,
    HandlerRegistry,
    ProcessManager,
    Reply,
    SendRequest,
)

S = TypeVar("S")


class Cruise(Booking):
    domain, type = "trips", "Cruise"


def test_managers_of_one_domain_share_its_replies(dsn: str, bus: CommandBus) -> None:
    registry = registry_of()
    registry.register_process(Cruise())
    with running(dsn, registry):
        both = [booked(bus), bus.start_process("trips", "Cruise", Trip())]
        assert [await_end(bus, each).status for each in both] == ["COMPLETED"] * 2
    with pytest.raises(HandlerAlreadyRegisteredError, match=r"trips/Cruise is handled by .*Cruise"):
        registry.register_process(Cruise())


def test_a_process_starts_once_a_worker_has_its_manager(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """As while a new manager is deployed."""
    process_id = bus.start_process("trips", "Cruise", Trip())
    canceled = bus.start_process("trips", "Cruise", Trip())
    bus.cancel_process(canceled, operator="ann")
    with running(dsn, registry_of()):
        eventually(lambda: [c.error_code for c in bus.query("trips", "PENDING")] == ["NO_MANAGER"])
        eventually(lambda: len(bus.query("trips", "COMPLETED")) == 1)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")
    registry = registry_of()
    registry.register_process(Cruise())
    with running(dsn, registry):
        assert await_end(bus, process_id).status == "COMPLETED"


def without(name: str, value: object = None) -> Callable[[], object]:
    """Makes a manager that lacks something, or has something else there."""

    class Step(StrEnum):
        ONLY = "ONLY"

    parts = {"domain": "trips", "type": "Odd", "Step": Step, name: value}
    if value is None:
        del parts[name]
    return lambda: type("Odd", (ProcessManager,), parts)()


@dataclass
class Computed:
    city: str
    country: str = field(init=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            without("state_type", Computed),
            "Odd cannot read its states again: field country of Computed has init=False",
        ),
        (without("domain"), "Odd has no domain: give its class domain = '...'"),
        (without("type"), "Odd has no type: give its class type = '...'"),
        (without("Step"), r"Odd has no steps: give it a class Step\(StrEnum\)"),
        (without("type", "no type"), "type of Odd must be a letter"),
        (without("version", 0), "version of Odd must be a whole number from 1"),
        (lambda: Booking, "register_process takes an instance of a ProcessManager, not <class"),
        (lambda: 5, "register_process takes an instance of a ProcessManager, not 5"),
    ],
)
def test_what_is_no_manager_is_refused_in_one_sentence(
    make: Callable[[], Any], message: str
) -> None:
    registry = HandlerRegistry()
    with pytest.raises(ValueError, match=message):
        registry.register_process(make())
    assert len(registry) == 0


class Base(ProcessManager[S]):
    """A base of managers, with methods of its own."""

    def check(self) -> None:
        raise AssertionError("this is called by its author only")

    load = step_of = handlers = check


class Voyage(Base[Trip]):
    domain, type = "trips", "Voyage"

    class Step(StrEnum):
        FLIGHT = "FLIGHT"

    def first_step(self, state: Trip) -> Step:
        return self.Step.FLIGHT

    def build_command(self, step: Step, state: Trip) -> SendRequest:
        return SendRequest("bookings", "Flight", {"city": state.city})

    def next_step(self, state: Trip, step: Step, reply: Reply) -> None:
        pass


def test_a_manager_may_have_a_base_and_methods_of_its_own(dsn: str, bus: CommandBus) -> None:
    registry = registry_of()
    registry.register_process(Voyage())
    with running(dsn, registry):
        process_id = bus.start_process("trips", "Voyage", Trip())
        record = await_status(bus, process_id, "COMPLETED", "WAITING_FOR_TSQ")
    assert (record.status, record.state["city"]) == ("COMPLETED", "Oslo")


def test_a_domain_whose_replies_are_handled_takes_no_manager() -> None:
    registry = HandlerRegistry()
    registry.register("trips", "Reply", lambda command, context: None)
    with pytest.raises(HandlerAlreadyRegisteredError, match="trips/Reply is handled by"):
        registry.register_process(Booking())
    assert len(registry) == 1
