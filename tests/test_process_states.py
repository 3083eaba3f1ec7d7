"""The states of processes: their sizes, their versions, and how steps are stored."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import psycopg
import pydantic
import pytest
from eventually import eventually
from handlers import Gate, running
from trips import (
    ALL,
    Booking,
    Trip,
    await_end,
    await_status,
    booked,
    registry_of,
    reply,
    taken,
    traveling,
)

from cmdbus import (
    CommandBus,
    HandlerRegistry,
    PermanentCommandError,
    ProcessManager,
    Reply,
    SendRequest,
)
from cmdbus.processes.managers import load_state


def test_a_process_goes_on_with_a_state_and_signals_of_any_allowed_size(
    dsn: str, bus: CommandBus
) -> None:
    gate = Gate()
    with (
        CommandBus(dsn, max_bytes=4 * 2**20) as large,
        running(dsn, registry_of(Flight=gate)),
    ):
        process_id = large.start_process("trips", "Booking", Trip("Oslo", ["x" * 1_200_000]))
        gate.wait_for(1)
        large.signal_process(process_id, "y" * 2_500_000)
        eventually(lambda: "SIGNALED" in [e.kind for e in bus.process_audit(process_id)])
        gate.open.set()
        assert await_end(bus, process_id).status == "COMPLETED"


class Later(Booking):
    """Its states are of another form."""

    version = 2

    def upgrade(self, data: dict[str, Any], version: int) -> dict[str, Any]:
        assert version == 1
        return {**data, "city": f"{data['city']}, Norway"}


def test_a_state_of_an_older_version_is_upgraded(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """And written in today's form."""
    with running(dsn, registry_of(), domains=["trips"]):
        process_id = booked(bus)
        await_status(bus, process_id, "WAITING_FOR_REPLY")
    with running(dsn, registry_of(Later())):
        assert await_end(bus, process_id).state["city"] == "Oslo, Norway"
    versions = connection.execute("SELECT version FROM cmdbus.managed_process").fetchall()
    assert versions == [(2,)]


def test_a_state_that_cannot_be_upgraded_is_named_with_both_versions(
    dsn: str, bus: CommandBus
) -> None:
    """It may have today's form, and was started without its version."""

    class Renamed(Booking):
        version = 2

        def upgrade(self, data: dict[str, Any], version: int) -> dict[str, Any]:
            return {"city": data["town"]}

    with running(dsn, registry_of(Renamed())):
        booked(bus)
        failed = eventually(lambda: [r for r in bus.query("trips") if r.error_code])
    assert failed[0].error_code == "KeyError"
    assert "its state, from version 1 to 2: 'town'" in str(failed[0].error_message)


def test_a_state_of_a_newer_version_waits_for_newer_workers(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """However often older ones try; they drop what is not awaited."""
    process_id = booked(bus, version=3)
    with running(dsn, registry_of()):
        [start] = bus.query("trips")

        def tried(times: int) -> bool:
            return len(bus.audit("trips", start.command_id)) > times

        for times in range(1, 5):
            eventually(partial(tried, times))
            connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")
            connection.execute("SELECT cmdbus.wake_at(clock_timestamp())")
        assert bus.wait("trips", reply(bus, process_id), 10).status == "COMPLETED"
    [late] = bus.query("trips", type="process:start")
    assert (late.status, late.attempts, late.error_code) == ("PENDING", 0, "STATE_TOO_NEW")
    assert str(process_id) in str(late.error_message)

    class Latest(Booking):
        version = 3

    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")
    with running(dsn, registry_of(Latest())):
        assert await_end(bus, process_id).status == "COMPLETED"


def test_a_state_that_does_not_fit_its_class_needs_an_operator(dsn: str, bus: CommandBus) -> None:
    with running(dsn, registry_of()):
        process_id = bus.start_process("trips", "Booking", {"town": "Oslo"})
        await_status(bus, process_id, "WAITING_FOR_TSQ")
    [trouble] = bus.troubleshooting.list("trips")
    assert "the stored state does not fit Trip" in str(trouble.error_message)
    assert "raise version, and write upgrade" in str(trouble.error_message)


def test_a_step_that_prints_as_something_else_is_stored_by_its_value(
    dsn: str, bus: CommandBus
) -> None:
    class Labeled(StrEnum):
        FLIGHT = "FLIGHT"
        HOTEL = "HOTEL"
        CAR = "CAR"

        def __str__(self) -> str:
            return self.name.title()

    manager = type("Odd", (Booking,), {"Step": Labeled})()
    with traveling(dsn, bus, manager) as process_id:
        assert await_end(bus, process_id).status == "COMPLETED"
    assert taken(bus, process_id) == ALL


class Ride(TypedDict):
    to: str
    stops: NotRequired[list[date]]


@dataclass
class Fare:
    price: Decimal
    day: date


@dataclass
class Tour:
    guide: UUID
    fares: list[Fare] = field(default_factory=list)


class Stay(pydantic.BaseModel):
    city: str = pydantic.Field(alias="inCity")
    until: date | None = None


def manager_of(state_type: Any, first: Callable[[Any], object] = lambda state: None) -> Any:
    """A manager whose processes end with their first step."""

    class Going(ProcessManager[state_type]):
        domain, type = "goings", "Going"
        Step = StrEnum("Step", ["ONLY"])

        def first_step(self, state: Any) -> Any:
            first(state)
            return self.Step.ONLY

        def build_command(self, step: Any, state: Any) -> SendRequest:
            return SendRequest("bookings", "Flight")

        def next_step(self, state: Any, step: Any, reply: Reply) -> None:
            first(state)

    return Going()


DAY, GUIDE = date(2026, 1, 2), UUID(int=1)


@pytest.mark.parametrize(
    ("state_type", "state", "read"),
    [
        (Tour, Tour(GUIDE, [Fare(Decimal("1.5"), DAY)]), Tour(GUIDE, [Fare(Decimal("1.5"), DAY)])),
        (Ride, {"to": "Oslo", "stops": [DAY]}, {"to": "Oslo", "stops": [DAY]}),
        (Stay, Stay(inCity="Oslo", until=DAY), Stay(inCity="Oslo", until=DAY)),
        (dict[str, Any], {"on": DAY}, {"on": "2026-01-02"}),
    ],
)
def test_a_state_is_read_again_as_the_type_that_its_manager_declares(
    dsn: str, bus: CommandBus, state_type: Any, state: Any, read: object
) -> None:
    seen: list[object] = []
    registry = registry_of()
    registry.register_process(manager_of(state_type, lambda state: seen.append(deepcopy(state))))
    with running(dsn, registry):
        process_id = bus.start_process("goings", "Going", state)
        assert await_end(bus, process_id).status == "COMPLETED"
    assert seen == [read, read]


@pytest.mark.parametrize(
    ("state_type", "state", "problem"),
    [
        (Tour, {"guide": str(GUIDE), "fares": [{"day": "x"}]}, "Tour (state.fares[0].price is mis"),
        (Tour, {"guide": str(GUIDE), "bus": 1}, "Tour (state.bus is no field of Tour)"),
        (Ride, {"to": 5}, "Ride (state.to must be text, and is a number)"),
        (Stay, {"city": "Oslo"}, "Stay (state.inCity does not fit: Field required)"),
    ],
)
def test_a_stored_state_that_does_not_fit_its_type_is_named_with_its_field(
    state_type: Any, state: object, problem: str
) -> None:
    with pytest.raises(PermanentCommandError) as refused:
        load_state(manager_of(state_type), json.dumps(state), 1)
    assert f"the stored state does not fit {problem}" in refused.value.message


def test_a_type_that_no_state_can_be_read_as_is_an_error_of_the_registration() -> None:
    @dataclass
    class Odd:
        tags: set[str]

    @dataclass
    class Late:
        next: "NotDefinedAnywhere"  # type: ignore[name-defined]  # noqa: F821

    registry = HandlerRegistry()
    with pytest.raises(ValueError, match=r"Going cannot read its states again: Odd\.tags: set"):
        registry.register_process(manager_of(Odd))
    registry.register_process(manager_of(Late))
    with pytest.raises(ValueError, match=r"'NotDefinedAnywhere' is not defined; define or import"):
        registry.declarations()
