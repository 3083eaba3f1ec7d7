"""Deadlines of steps, and signals."""

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, effects, leave_effect, running
from trips import (
    ALL,
    PERMANENT,
    ShortBooking,
    answered,
    await_end,
    await_status,
    booked,
    pass_deadline,
    registry_of,
    taken,
    traveling,
)

from cmdbus import CommandBus, InvalidOperationError


def test_a_deadline_fails_a_step_whose_handler_still_runs(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it lands, and nothing is undone before."""
    gate = Gate(leave_effect)
    with traveling(dsn, bus, ShortBooking(), Hotel=gate) as process_id:
        gate.wait_for(1)
        pass_deadline(dsn)
        record = await_end(bus, process_id)
        gate.open.set()
        eventually(lambda: gate.inside == 0)
    assert record.status == "COMPENSATED"
    assert record.error == "DEADLINE: the deadline of step HOTEL has passed"
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL CANCELED", "-FLIGHT SUCCESS"]
    assert effects(dsn) == 2
    kinds = [event.kind for event in bus.process_audit(process_id)]
    assert f"process {process_id}: the deadline of step HOTEL has passed" in caplog.messages
    assert kinds.index("DEADLINE") < kinds.index("COMPENSATION_SENT")


def test_a_deadline_cancels_a_command_in_troubleshooting(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus, ShortBooking(), Hotel=PERMANENT) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        pass_deadline(dsn)
        assert await_end(bus, process_id).status == "COMPENSATED"
    assert bus.troubleshooting.count() == 0


def test_the_deadline_of_a_step_that_has_ended_does_nothing(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Its timer is ended with it; one that fires all the same finds another step."""
    with traveling(dsn, bus, ShortBooking()) as process_id:
        assert await_end(bus, process_id).status == "COMPLETED"
    [timer] = bus.query("trips", type="process:deadline")
    assert timer.status == "CANCELED"
    assert bus.process_steps(process_id)[1].deadline_at is not None
    late = booked(bus)
    assert connection.execute("SELECT cmdbus.expire_step(%s, 0)", (late,)).fetchone() == (None,)


def test_a_reply_that_is_under_way_counts_more_than_the_deadline(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    process_id = answered(dsn, bus)
    fired = connection.execute("SELECT cmdbus.expire_step(%s, 1)", (process_id,)).fetchone()
    assert fired == (None,)
    with running(dsn, registry_of()):
        assert await_end(bus, process_id).status == "COMPLETED"


def test_a_signal_changes_the_state(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with traveling(dsn, bus, Hotel=gate) as process_id:
        gate.wait_for(1)
        data = {"class": 1}
        bus.signal_process(process_id, "upgrade", data, operator="ann", reason="she paid")

        def seen() -> bool:
            record = bus.get_process(process_id)
            return record is not None and "upgrade {'class': 1}" in record.state["seen"]

        eventually(seen)
        gate.open.set()
        record = await_end(bus, process_id)
    assert record.state["seen"][1:] == ["upgrade {'class': 1}", *ALL[1:]]
    with pytest.raises(InvalidOperationError, match=r"cannot be signaled: it is over \(COMPLETED"):
        bus.signal_process(process_id, "upgrade")
    [signaled] = [event for event in bus.process_audit(process_id) if event.kind == "SIGNALED"]
    assert signaled.details == {"name": "upgrade", "data": {"class": 1}}
    [sent] = [event for event in bus.process_audit(process_id) if event.operator]
    assert (sent.kind, sent.operator, sent.message) == ("SIGNAL_SENT", "ann", "she paid")
    assert sent.details == {"name": "upgrade"} and sent.at <= signaled.at
