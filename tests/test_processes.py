"""Process managers: a process takes its steps, each once, and undoes them if one fails."""

import threading

import psycopg
import pytest
from eventually import eventually
from handlers import effects, running
from trips import (
    ALL,
    RULE,
    Booking,
    await_end,
    await_status,
    booked,
    registry_of,
    taken,
    traveling,
)

from cmdbus import BusinessRuleError, Command, CommandBus, Context


def test_a_process_takes_its_steps_in_order_and_completes(dsn: str, bus: CommandBus) -> None:
    """Its commands have its id as their correlation id, and reply to its domain."""
    with traveling(dsn, bus) as process_id:
        record = await_end(bus, process_id)
    assert (record.status, record.step, record.error) == ("COMPLETED", "CAR", None)
    assert record.state == {"city": "Oslo", "seen": ALL}
    assert taken(bus, process_id) == ALL
    assert effects(dsn) == 3
    for step in bus.process_steps(process_id):
        command = bus.get(step.domain, step.command_id)
        assert command is not None and step.attempts == 1
        assert (command.correlation_id, command.reply_to) == (process_id, "trips")
        assert command.data == {"city": "Oslo"}


def test_a_started_process_waits_for_a_worker_as_a_part_of_its_senders_transaction(
    bus: CommandBus, sender: psycopg.Connection
) -> None:
    """None of the manager's code runs: there is no manager here."""
    process_id = booked(bus, connection=sender)
    record = bus.get_process(process_id, connection=sender)
    assert record is not None
    assert (record.status, record.step, record.state["city"]) == ("PENDING", None, "Oslo")
    assert [command.type for command in bus.query("trips", connection=sender)] == ["process:start"]
    sender.rollback()
    assert bus.get_process(process_id) is None and bus.query("trips") == []


def test_a_state_can_be_a_dict(dsn: str, bus: CommandBus) -> None:
    with running(dsn, registry_of()):
        process_id = bus.start_process("trips", "Booking", {"city": "Rome"})
        default = bus.start_process("trips", "Booking")
        assert await_end(bus, process_id).state["city"] == "Rome"
        assert await_end(bus, default).state["city"] == "Oslo"


def test_the_audit_trail_has_a_pair_for_each_step_in_order(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus, Car=RULE) as process_id:
        await_end(bus, process_id)
    audit = bus.process_audit(process_id)
    assert [event.kind for event in audit] == [
        "STARTED",
        *["SENT", "RECEIVED"] * 3,
        *["COMPENSATION_SENT", "COMPENSATION_RECEIVED"],
        "COMPENSATED",
    ]
    assert [event.at for event in audit] == sorted(event.at for event in audit)
    received = [event for event in audit if event.kind == "RECEIVED"]
    assert [event.code for event in received] == ["SUCCESS", "SUCCESS", "FAILED"]
    assert received[2].message == "CAR: FULL: no room is free"
    assert all(0 <= event.details["seconds"] < 10 for event in received)


def test_a_failed_step_undoes_the_completed_ones_the_latest_first(
    dsn: str, bus: CommandBus
) -> None:
    """Steps without a compensation are skipped, and the state has seen the failure."""
    with traveling(dsn, bus, Car=RULE) as process_id:
        record = await_end(bus, process_id)
    assert record.status == "COMPENSATED" and record.error == "CAR: FULL: no room is free"
    assert record.state["seen"][-1] == "CAR FAILED"
    assert taken(bus, process_id) == [*ALL[:2], "CAR FAILED", "-FLIGHT SUCCESS"]
    assert [step.undone for step in bus.process_steps(process_id)] == [
        "SUCCESS",
        "SKIPPED",
        None,
        None,
    ]


def test_a_process_whose_first_step_fails_is_compensated_although_nothing_was_done(
    dsn: str, bus: CommandBus
) -> None:
    with traveling(dsn, bus, Flight=RULE) as process_id:
        assert await_end(bus, process_id).status == "COMPENSATED"
    assert taken(bus, process_id) == ["FLIGHT FAILED"]


class Reversible(Booking):
    """Each step can be undone."""

    def compensation(self, step, state):  # type: ignore[no-untyped-def]  # as in an application
        return super().compensation(step, state) or super().compensation(self.Step.CAR, state)


def test_a_failed_compensation_stops_no_other_and_is_sent_again_by_a_retry(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """The hotel's fails; the flight's is sent all the same."""
    refuses = threading.Event()
    refuses.set()

    def cancel_hotel(command: Command, context: Context) -> None:
        if refuses.is_set():
            raise BusinessRuleError("LATE", "too late")

    with traveling(dsn, bus, Reversible(), Car=RULE, CancelCar=cancel_hotel) as process_id:
        record = await_end(bus, process_id)
        assert record.status == "FAILED"
        assert record.error == (
            "CAR: FULL: no room is free; the compensation of HOTEL failed: LATE: too late"
        )
        assert taken(bus, process_id)[3:] == ["-HOTEL FAILED", "-FLIGHT SUCCESS"]
        [line] = [r.getMessage() for r in caplog.records if " is FAILED: " in r.getMessage()]
        assert line == f"process {process_id} (trips/Booking) is FAILED: {record.error}"
        bus.retry_process(process_id, operator="bob")
        eventually(lambda: taken(bus, process_id)[5:] == ["-HOTEL FAILED"])
        assert await_status(bus, process_id, "FAILED").error == record.error
        refuses.clear()
        bus.retry_process(process_id, operator="ann", reason="it works now")
        assert await_status(bus, process_id, "COMPENSATED").finished_at is not None
    assert taken(bus, process_id)[6:] == ["-HOTEL SUCCESS"]
    retried = [event for event in bus.process_audit(process_id) if event.kind == "RETRIED"]
    assert [(event.operator, event.message) for event in retried][1:] == [("ann", "it works now")]
