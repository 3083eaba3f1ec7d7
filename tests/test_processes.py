"""Process managers: a process takes its steps, each once, and undoes them if one fails."""

import threading
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, effects, leave_effect, running
from queries import count, rows
from trips import (
    Booking,
    ShortBooking,
    Trip,
    await_end,
    await_status,
    awaited,
    booked,
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
    InvalidOperationError,
    PermanentCommandError,
    ProcessNotFoundError,
    ProcessRequest,
    QueueFullError,
    ShutdownError,
)
from cmdbus.producer.process_starts import ProcessStart, start
from cmdbus.producer.store import Store

RULE = raising(BusinessRuleError("FULL", "no room is free"))
PERMANENT = raising(PermanentCommandError("BROKEN", "an operator must look"))
ALL = ["FLIGHT SUCCESS", "HOTEL SUCCESS", "CAR SUCCESS"]


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
        assert await_end(bus, process_id).state["city"] == "Rome"


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
    dsn: str, bus: CommandBus
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
        refuses.clear()
        bus.retry_process(process_id, operator="ann", reason="it works now")
        assert await_status(bus, process_id, "COMPENSATED").finished_at is not None
    assert taken(bus, process_id)[5:] == ["-HOTEL SUCCESS"]
    retried = [event for event in bus.process_audit(process_id) if event.kind == "RETRIED"]
    assert [(event.operator, event.message) for event in retried] == [("ann", "it works now")]


# Operators.


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


def test_a_cancel_undoes_also_the_step_that_has_just_ended(dsn: str, bus: CommandBus) -> None:
    """Its reply is there, and no worker has handled it yet."""
    registry = HandlerRegistry()
    registry.register("bookings", "Flight", leave_effect)
    everything = registry_of()
    with running(dsn, everything, domains=["trips"]):
        process_id = booked(bus)
        await_status(bus, process_id, "WAITING_FOR_REPLY")
    with running(dsn, registry):
        eventually(lambda: bus.query("trips", "PENDING", "Reply"))
    bus.cancel_process(process_id, operator="ann")
    with running(dsn, everything):
        assert await_end(bus, process_id).status == "CANCELED"
        eventually(lambda: bus.snapshot("trips")["depth"] == 0)
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "-FLIGHT SUCCESS"]


def test_a_process_that_lost_its_reply_goes_on_after_a_retry(dsn: str, bus: CommandBus) -> None:
    """An operator has canceled the reply."""
    everything = registry_of()
    with running(dsn, everything, domains=["trips"]):
        process_id = booked(bus)
        await_status(bus, process_id, "WAITING_FOR_REPLY")
    registry = HandlerRegistry()
    registry.register("bookings", "Flight", leave_effect)
    with running(dsn, registry):
        [reply] = eventually(lambda: bus.query("trips", "PENDING", "Reply"))
    bus.cancel("trips", reply.command_id)
    with running(dsn, everything):
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


def test_a_process_that_needs_no_operator_cannot_be_retried(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with traveling(dsn, bus, Hotel=gate) as process_id:
        gate.wait_for(1)
        with pytest.raises(InvalidOperationError, match="cannot be retried: it is WAITING"):
            bus.retry_process(process_id, operator="ann")
        gate.open.set()
        await_end(bus, process_id)


# Deadlines and signals.


def test_a_deadline_fails_a_step_whose_handler_still_runs(dsn: str, bus: CommandBus) -> None:
    """Nothing of it lands, and nothing is undone before."""
    gate = Gate(leave_effect)
    with traveling(dsn, bus, ShortBooking(), Hotel=gate) as process_id:
        gate.wait_for(1)
        record = await_end(bus, process_id)
        gate.open.set()
        eventually(lambda: gate.inside == 0)
    assert record.status == "COMPENSATED"
    assert record.error == "DEADLINE: the deadline of step HOTEL has passed"
    assert taken(bus, process_id) == ["FLIGHT SUCCESS", "HOTEL CANCELED", "-FLIGHT SUCCESS"]
    assert effects(dsn) == 2
    kinds = [event.kind for event in bus.process_audit(process_id)]
    assert kinds.index("DEADLINE") < kinds.index("COMPENSATION_SENT")


def test_a_deadline_cancels_a_command_in_troubleshooting(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus, ShortBooking(), Hotel=PERMANENT) as process_id:
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
    assert connection.execute("SELECT cmdbus.expire_step(%s, 0)", (late,)).fetchone() == (False,)


def test_a_reply_that_is_under_way_counts_more_than_the_deadline(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    everything = registry_of()
    with running(dsn, everything, domains=["trips"]):
        process_id = booked(bus)
        await_status(bus, process_id, "WAITING_FOR_REPLY")
    registry = HandlerRegistry()
    registry.register("bookings", "Flight", leave_effect)
    with running(dsn, registry):
        eventually(lambda: bus.query("trips", "PENDING", "Reply"))
    fired = connection.execute("SELECT cmdbus.expire_step(%s, 1)", (process_id,)).fetchone()
    assert fired == (False,)
    with running(dsn, everything):
        assert await_end(bus, process_id).status == "COMPLETED"


def test_a_signal_changes_the_state(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with traveling(dsn, bus, Hotel=gate) as process_id:
        gate.wait_for(1)
        bus.signal_process(process_id, "upgrade", {"class": 1})

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


# Reading and retention.


def test_processes_are_found_by_each_condition(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus) as done:
        record = await_end(bus, done)
    pending = booked(bus)
    other = bus.start_process("journeys", "Cruise", {})
    found = bus.query_processes
    assert [each.process_id for each in found()] == [other, pending, done]
    assert [each.process_id for each in found(limit=1, offset=1)] == [pending]
    assert [each.process_id for each in found("Booking")] == [pending, done]
    assert [each.process_id for each in found(domain="journeys")] == [other]
    assert [each.process_id for each in found(status="pending".upper())] == [other, pending]
    assert found(status="COMPLETED") == [record]
    assert found(since=record.created_at, until=record.created_at + timedelta(microseconds=1)) == [
        record
    ]
    with pytest.raises(ValueError, match="status must be one of PENDING, IN_PROGRESS, "):
        found(status="DONE")


def test_a_finished_process_is_kept_as_long_as_the_history_of_its_domain(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """With its steps and events."""
    with traveling(dsn, bus) as done:
        bus.signal_process(done, "hello")
        await_end(bus, done)
    pending = booked(bus)
    bus.configure("trips", keep=timedelta(days=1))
    query = "SELECT cmdbus.retain_processes(10)"
    assert connection.execute(query).fetchone() == (0,)
    connection.execute(
        "UPDATE cmdbus.managed_process SET finished_at = finished_at - interval '25 hours'"
    )
    assert connection.execute(query).fetchone() == (1,)
    assert bus.get_process(done) is None and bus.get_process(pending) is not None
    assert count(connection, "cmdbus.process_step") == 0
    assert count(connection, "cmdbus.process_event") == 0


# Wrong arguments.


def test_an_id_starts_one_process(bus: CommandBus) -> None:
    process_id = uuid4()
    assert booked(bus, process_id=process_id) == process_id
    with pytest.raises(InvalidOperationError, match="was started before: an id is taken once"):
        bus.start_process("trips", "Booking", Trip("Rome"), process_id=process_id)
    assert len(bus.query("trips")) == 1


def test_a_start_that_is_repeated_after_its_connection_died_starts_one_process(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    store, process = Store("cmdbus"), ProcessStart.of(ProcessRequest("trips", "Booking", {}), 100)
    assert [start(store, connection, process).refusal for _ in range(2)] == [None, "repeated"]
    assert len(bus.query("trips")) == 1


def test_a_full_or_closed_domain_starts_no_process(dsn: str, bus: CommandBus) -> None:
    bus.configure("trips", max_depth=1)
    started = booked(bus)
    with pytest.raises(QueueFullError):
        booked(bus)
    with pytest.raises(QueueFullError):
        bus.signal_process(started, "hello")
    bus.configure("trips", max_depth=None, accepting=False)
    with pytest.raises(ShutdownError):
        booked(bus)
    assert rows(dsn, "SELECT count(*) FROM cmdbus.managed_process") == [(1,)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trips", "Booking", Trip(city=object())), "state.city is of type object: JSON has no"),  # type: ignore[arg-type]
        (("trips", "Booking", {1}), "state is of type set: JSON has no"),
        (("tr ips", "Booking"), "domain must be a letter"),
        (("trips", ""), "type must be a letter"),
    ],
)
def test_a_wrong_start_is_refused_in_one_sentence(
    bus: CommandBus, arguments: tuple[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bus.start_process(*arguments)
    assert bus.query_processes() == []


def test_calls_about_an_unknown_process_say_so(bus: CommandBus) -> None:
    process_id = uuid4()
    assert bus.get_process(process_id) is None
    assert bus.process_steps(process_id) == [] == bus.process_audit(process_id)
    message = f"there is no process {process_id}"
    with pytest.raises(ProcessNotFoundError, match=message):
        bus.cancel_process(process_id, operator="ann")
    with pytest.raises(ProcessNotFoundError, match=message):
        bus.retry_process(process_id, operator="ann")
    with pytest.raises(ProcessNotFoundError, match=message):
        bus.signal_process(process_id, "hello")
