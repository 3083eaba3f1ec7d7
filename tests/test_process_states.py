"""The states of processes: their sizes, their versions, and how steps are stored."""

from enum import StrEnum
from functools import partial
from typing import Any

import psycopg
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
)


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
            connection.execute("SELECT cmdbus.wake('trips')")
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
