"""Breakers in a worker: what counts, what an open one keeps from the other side, and what becomes
of the commands."""

import logging

import psycopg
import pytest
from eventually import eventually, stays
from handlers import Gate, await_rest, found, kinds, running
from other_side import (
    LATER,
    OtherSide,
    await_notifications,
    await_state,
    bound_to,
    break_it,
    calling,
    scalar_of,
    send,
    state,
)
from test_breaker_states import end_cooldown, report, take

from cmdbus import (
    Breaker,
    BreakerOpenError,
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    SendRequest,
    Timeouts,
)
from cmdbus.worker.pipeline import local_queue
from cmdbus.worker.pipeline.in_flight import Entry, EntryState


@pytest.fixture
def other() -> OtherSide:
    return OtherSide()


@pytest.mark.parametrize("type", ["Charge", "Ask"])
def test_calls_are_not_made_while_it_is_open_and_are_made_again_after_a_good_probe(
    dsn: str, bus: CommandBus, other: OtherSide, type: str
) -> None:
    other.fail()
    with calling(dsn, other, cooldown=600) as worker:
        ids = bus.send_many([SendRequest("payments", type)] * 12)
        await_state(dsn, "OPEN")
        await_notifications(dsn, [worker])
        bus.wait("payments", bus.send("payments", "Noop"), 20)

        def are_kept() -> bool:
            records = [found(bus, id_) for id_ in ids]
            met_it = [each.error_code or type == "Charge" for each in records]
            return all(met_it) and {each.status for each in records} == {"PENDING"}

        eventually(are_kept)
        made = len(other.calls)
        assert 3 <= made <= 8
        stays(lambda: len(other.calls) == made, 0.1)
        waiting = [found(bus, id_) for id_ in ids if found(bus, id_).attempts == 0]
        assert len(waiting) == 12 - made
        other.error = None
        bus.breakers.set("stripe", cooldown=0.1)
        eventually(lambda: len(bus.query(status="COMPLETED", type=type)) == 12 - made)
        assert state(dsn) == "CLOSED"
        assert {found(bus, r.command_id).attempts for r in waiting} == {1}
        if type == "Ask":
            assert worker.metrics()["cmdbus_breaker_denied_total"] >= 12 - made  # type: ignore[operator]


@pytest.mark.parametrize("closing", ["close", "reset", "probe", "set"])
def test_what_was_kept_runs_as_soon_as_an_operator_or_a_probe_lets_it(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection, closing: str
) -> None:
    with calling(dsn, other, cooldown=600) as worker:
        break_it(dsn, bus, other, worker)
        deferred, bound = bus.send("payments", "Ask"), bus.send("payments", "Charge")
        eventually(lambda: found(bus, deferred).error_code == "BREAKER_OPEN")
        assert kinds(bus, deferred) == ["SENT", "RECEIVED"]
        other.error = None
        if closing == "probe":
            end_cooldown(connection)
            report(connection, probes=[take(connection)], verdicts=["SUCCESS"])
        elif closing == "set":
            bus.breakers.set("stripe", cooldown=0.1)
        else:
            getattr(bus.breakers, closing)("stripe")
        for each in (bound, deferred):
            bus.wait("payments", each, 20)
            assert found(bus, each).attempts == 1


def test_a_node_logs_once_that_a_breaker_opens_and_once_that_it_is_closed_again(
    dsn: str, bus: CommandBus, other: OtherSide, caplog: pytest.LogCaptureFixture
) -> None:
    def logged(level: int) -> list[str]:
        found = [each for each in caplog.records if "the breaker" in each.message]
        return [each.message for each in found if each.levelno == level]

    caplog.set_level(logging.INFO)
    with calling(dsn, other, cooldown=0.1) as worker:
        break_it(dsn, bus, other, worker)
        eventually(lambda: logged(logging.WARNING))
        send(bus, count=3)
        eventually(lambda: len(bus.breakers.audit("stripe")) >= 5)
        other.error = None
        send(bus)
        eventually(lambda: logged(logging.INFO))
        [opened], [closed] = logged(logging.WARNING), logged(logging.INFO)
        assert opened.startswith("the breaker stripe is open: 3 failures since ")
        assert closed.startswith("the breaker stripe is closed again, after ")
        bus.breakers.open("stripe", operator="ann", reason="maintenance")
        eventually(lambda: len(logged(logging.WARNING)) == 2)
        assert logged(logging.WARNING)[1].endswith("is open: opened by ann: maintenance")


def test_what_was_claimed_ahead_goes_back_uncharged_and_without_an_event(
    dsn: str, bus: CommandBus, other: OtherSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command behind which others are claimed opens the breaker."""
    # However long the notification takes, what is claimed waits for the end of that command.
    monkeypatch.setattr(local_queue, "_STARTED_WITHIN", 600.0)
    ahead: list[Entry] = []

    def call(command: Command, context: Context) -> object:
        threads = worker._concurrency.threads
        assert threads
        queued = [] if ahead else threads.in_flight.in_state(EntryState.QUEUED)
        if queued:
            board = worker._telemetry.board
            changes = board.breaker_changes
            bus.breakers.open("stripe")
            eventually(lambda: board.breaker_changes > changes)
            ahead.extend(queued)
        return other()

    with running(dsn, bound_to(other, call), concurrency=1) as worker:
        ids = bus.send_many([SendRequest("payments", "Charge")] * 201)
        eventually(lambda: ahead)
        eventually(lambda: not bus.query(status="IN_PROGRESS"))
        records = [found(bus, id_) for id_ in ids]
        done = [record for record in records if record.status == "COMPLETED"]
        kept = [record for record in records if record.status == "PENDING"]
        assert (len(done), len(done) + len(kept)) == (len(other.calls), 201)
        assert {entry.claim.command_id for entry in ahead} <= {each.command_id for each in kept}
        assert {kind for each in kept for kind in kinds(bus, each.command_id)} == {"SENT"}
        assert {each.attempts for each in kept} == {0}
        assert worker.metrics()["cmdbus_breaker_denied_total"] == len(ahead)
        bus.breakers.close("stripe")
        eventually(lambda: len(bus.query(status="COMPLETED", limit=300)) == 201)


def test_an_open_breaker_leaves_the_process_at_rest(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, cooldown=600) as worker:
        break_it(dsn, bus, other, worker)
        send(bus, count=5)

        eventually(lambda: not bus.query(status="IN_PROGRESS"))
        bus.wait("payments", bus.send("payments", "Noop"), 20)
        await_rest(worker, 0.2)


def test_a_process_is_at_rest_once_it_is_closed_again_or_nothing_waits_behind_it(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, cooldown=0.2) as worker:
        break_it(dsn, bus, other, worker)
        eventually(lambda: scalar_of(dsn, "retry_at < clock_timestamp()"))
        await_rest(worker, 0.2)
        other.error = None
        send(bus)
        await_state(dsn, "CLOSED")
        await_rest(worker, 0.2)


def test_errors_that_do_not_count_do_not_open_it_but_end_a_probe(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    other.fail(KeyError("amount"))
    with calling(dsn, other, cooldown=0.2) as worker:
        send(bus, count=6)
        eventually(lambda: len(other.calls) == 6)
        assert state(dsn) == "CLOSED"
        break_it(dsn, bus, other, worker)
        other.fail(KeyError("amount"))
        send(bus)
        eventually(lambda: len(bus.breakers.audit("stripe")) >= 3)
        [_, half_opened, opened, *_] = bus.breakers.audit("stripe")
        assert (half_opened.kind, opened.kind) == ("HALF_OPENED", "OPENED")
        assert opened.details["probe"] == "ended with an error that does not count"


def test_an_answer_between_two_failures_keeps_it_closed(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, threads=1):
        for error in (None, BusinessRuleError("POOR", "no money")):
            other.fail()
            send(bus, count=2)
            eventually(lambda: scalar_of(dsn, "cardinality(failed_at)") == 2)
            other.error = error
            send(bus)
            eventually(lambda: scalar_of(dsn, "cardinality(failed_at)") == 0)
    assert [event.kind for event in bus.breakers.audit("stripe")] == []


def test_a_timeout_of_the_command_counts_as_a_failure(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """Also inside a block, and only once: the thread comes back later."""
    other.answers.clear()
    ladder = Timeouts(statement=0.2, pool=0.3, lease=0.3, thread=0.4, watchdog=1.0)
    with running(dsn, bound_to(other, failures=2), timeouts=ladder):
        send(bus, "Ask")
        send(bus, "Charge")
        await_state(dsn, "OPEN")
        other.answers.set()
        assert scalar_of(dsn, "failures") == 2
    [opened] = [event for event in bus.breakers.audit("stripe") if event.kind == "OPENED"]
    assert opened.details["failures"] == 2


def test_a_handler_may_go_on_without_the_call(dsn: str, bus: CommandBus, other: OtherSide) -> None:
    def call(command: Command, context: Context) -> object:
        if command.type == "Fallback":
            try:
                with context.breaker("stripe"), context.breaker("stripe"):
                    return other()
            except BreakerOpenError:
                return "later"
        return other()

    registry = bound_to(other, call, cooldown=600)
    registry.register("payments", "Fallback", call)
    with running(dsn, registry) as worker:
        assert bus.call("payments", "Fallback") == "answered"
        break_it(dsn, bus, other, worker)
        made = len(other.calls)
        assert bus.call("payments", "Fallback") == "later"
        assert len(other.calls) == made


def test_an_unknown_breaker_is_said_at_the_call(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    def call(command: Command, context: Context) -> None:
        context.breaker("stirpe")

    with running(dsn, bound_to(other, call)):
        sent = bus.send("payments", "Charge", max_attempts=5)
        record = bus.wait("payments", sent, 20)
    assert (record.error_code, record.attempts) == ("UNKNOWN_BREAKER", 1)
    assert record.error_message == (
        "context.breaker('stirpe') is a breaker that the registry does not declare: did you mean "
        "'stripe'?"
    )


def test_an_operator_keeps_it_open_until_one_closes_it(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, cooldown=0.1) as worker:
        await_state(dsn, "CLOSED")
        bus.breakers.open("stripe", operator="ann", reason="maintenance")
        await_notifications(dsn, [worker])
        sent = bus.send("payments", "Charge")
        stays(lambda: not other.calls, 0.5)
        assert bus.explain("payments", sent) == (
            "It waits: the breaker stripe is open until an operator closes it."
        )
        bus.breakers.close("stripe", operator="ann")
        assert bus.wait("payments", sent, 20).status == "COMPLETED"


def test_limits_and_breakers_of_one_type_hold_together(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    registry = HandlerRegistry()
    registry.breaker(Breaker("stripe", failures=3, cooldown=0.3))
    gates = {key: Gate() for key in "abc"}

    def charge(command: Command, context: Context) -> object:
        return gates[command.data](command, context) if command.data else other()

    registry.register(
        "payments", "Charge", charge, breaker="stripe", concurrency=1, fair=True, retry=LATER
    )
    with running(dsn, registry, concurrency=4) as worker:
        break_it(dsn, bus, other, worker)
        other.error = None
        bus.send_many([SendRequest("payments", "Charge", key, key=key) for key in "aabbcc"])
        eventually(lambda: sum(gate.inside for gate in gates.values()) == 1)
        stays(lambda: sum(gate.inside for gate in gates.values()) == 1, 0.3)
        [probe] = [gate for gate in gates.values() if gate.inside]
        probe.open.set()  # Now each key has its own limit, and the breaker keeps none.
        eventually(lambda: all(gate.inside for gate in gates.values() if gate is not probe))
        for gate in gates.values():
            gate.open.set()
        eventually(lambda: len(bus.query(status="COMPLETED")) == 6)
    assert {key: gate.most for key, gate in gates.items()} == {"a": 1, "b": 1, "c": 1}
