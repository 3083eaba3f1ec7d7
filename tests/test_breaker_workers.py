"""Breakers in a worker: what counts, what an open one keeps from the other side, and what becomes
of the commands."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from eventually import eventually, stays
from handlers import Gate, await_rest, beside, found, kinds, running
from other_side import LATER, OtherSide, bound_to, calling
from proxy import Proxy
from queries import end_listening_sessions, rows, scalar
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
from cmdbus.clock import time


@pytest.fixture
def other() -> OtherSide:
    return OtherSide()


def state(dsn: str) -> str:
    found = rows(dsn, "SELECT state FROM cmdbus.breaker")
    return str(found[0][0]) if found else ""


def await_state(dsn: str, wanted: str) -> None:
    eventually(lambda: state(dsn) == wanted)


def send(bus: CommandBus, type: str = "Charge", count: int = 1) -> list[object]:
    return [*bus.send_many([SendRequest("payments", type)] * count)]


def break_it(dsn: str, bus: CommandBus, other: OtherSide) -> None:
    """With commands of type Charge, of which none is left waiting."""
    other.fail()
    send(bus, count=3)
    await_state(dsn, "OPEN")


@pytest.mark.parametrize("type", ["Charge", "Ask"])
def test_calls_are_not_made_while_it_is_open_and_are_made_again_after_a_good_probe(
    dsn: str, bus: CommandBus, other: OtherSide, type: str
) -> None:
    other.fail()
    with calling(dsn, other, cooldown=0.5) as worker:
        ids = bus.send_many([SendRequest("payments", type)] * 12)
        await_state(dsn, "OPEN")
        bus.wait("payments", bus.send("payments", "Noop"), 5)
        made = len(other.calls)
        assert 3 <= made <= 8
        stays(lambda: len(other.calls) == made, 0.1)
        waiting = [found(bus, id_) for id_ in ids if found(bus, id_).attempts == 0]
        assert len(waiting) == 12 - made
        other.error = None
        eventually(lambda: len(bus.query(status="COMPLETED", type=type)) == 12 - made)
        assert state(dsn) == "CLOSED"
        assert {found(bus, r.command_id).attempts for r in waiting} == {1}
        if type == "Ask":
            assert worker.metrics()["cmdbus_breaker_denied_total"] >= 12 - made  # type: ignore[operator]


@pytest.mark.parametrize("closing", ["close", "reset", "probe", "set"])
def test_what_was_kept_runs_as_soon_as_an_operator_or_a_probe_lets_it(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection, closing: str
) -> None:
    with calling(dsn, other, cooldown=600):
        break_it(dsn, bus, other)
        deferred, bound = bus.send("payments", "Ask"), bus.send("payments", "Charge")
        eventually(lambda: found(bus, deferred).error_code == "BREAKER_OPEN")
        other.error = None
        if closing == "probe":
            end_cooldown(connection)
            report(connection, probes=[take(connection)], verdicts=["SUCCESS"])
        elif closing == "set":
            bus.breakers.set("stripe", cooldown=0.1)
        else:
            getattr(bus.breakers, closing)("stripe")
        for each in (bound, deferred):
            bus.wait("payments", each, 5)
            assert found(bus, each).attempts == 1


def test_a_node_logs_once_that_a_breaker_opens_and_once_that_it_is_closed_again(
    dsn: str, bus: CommandBus, other: OtherSide, caplog: pytest.LogCaptureFixture
) -> None:
    def logged(level: int) -> list[str]:
        found = [each for each in caplog.records if "the breaker" in each.message]
        return [each.message for each in found if each.levelno == level]

    caplog.set_level(logging.INFO)
    with calling(dsn, other, cooldown=0.1):
        break_it(dsn, bus, other)
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
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    def call(command: Command, context: Context) -> object:
        if command.data == "open":
            board = worker._telemetry.board
            changes = board.breaker_changes
            bus.breakers.open("stripe")
            eventually(lambda: board.breaker_changes > changes)
        return other()

    with running(dsn, bound_to(other, call), concurrency=1) as worker:
        data = [*range(100), "open", *range(100)]
        ids = bus.send_many([SendRequest("payments", "Charge", each) for each in data])
        bus.wait("payments", ids[100], 5)
        eventually(lambda: not bus.query(status="IN_PROGRESS"))
        assert len(other.calls) == 101
        assert {kind for id_ in ids[101:] for kind in kinds(bus, id_)} == {"SENT"}
        assert {found(bus, id_).attempts for id_ in ids[101:]} == {0}
        denied = worker.metrics()["cmdbus_breaker_denied_total"]
        assert isinstance(denied, int) and denied > 0
        bus.breakers.close("stripe")
        eventually(lambda: len(bus.query(status="COMPLETED", limit=300)) == 201)


def test_an_open_breaker_leaves_the_process_at_rest(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, cooldown=600) as worker:
        break_it(dsn, bus, other)
        send(bus, count=5)

        eventually(lambda: not bus.query(status="IN_PROGRESS"))
        bus.wait("payments", bus.send("payments", "Noop"), 5)
        await_rest(worker, 0.2)


def test_a_process_is_at_rest_once_it_is_closed_again_or_nothing_waits_behind_it(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, cooldown=0.2) as worker:
        break_it(dsn, bus, other)
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
    with calling(dsn, other, cooldown=0.2):
        send(bus, count=6)
        eventually(lambda: len(other.calls) == 6)
        assert state(dsn) == "CLOSED"
        break_it(dsn, bus, other)
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


def scalar_of(dsn: str, expression: str) -> object:
    """Of the breaker; None before it is declared."""
    found = rows(dsn, f"SELECT {expression} FROM cmdbus.breaker")
    return found[0][0] if found else None


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


def test_the_end_of_a_canceled_command_counts_as_nothing_and_a_probe_gives_its_place_back(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    def cancel_one(number: int) -> None:
        other.answers.clear()
        sent = bus.send("payments", "Charge")
        eventually(lambda: len(other.calls) == number)
        bus.cancel("payments", sent, running=True)
        other.answers.set()

    with calling(dsn, other, failures=1, cooldown=0.2):
        other.fail()
        cancel_one(1)
        bus.wait("payments", bus.send("payments", "Noop"), 5)
        stays(lambda: state(dsn) == "CLOSED", 0.3)
        send(bus)
        await_state(dsn, "OPEN")
        other.error = None
        cancel_one(3)
        eventually(lambda: scalar_of(dsn, "state = 'HALF_OPEN'"))
        eventually(lambda: rows(dsn, "SELECT count(*) FROM cmdbus.breaker_probe") == [(0,)])
        assert state(dsn) == "HALF_OPEN"
        send(bus)
        await_state(dsn, "CLOSED")


def test_a_probe_that_the_database_cuts_off_gives_its_place_back(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    cut = threading.Event()

    def call(command: Command, context: Context) -> object:
        if other.error is None and not cut.is_set():
            cut.set()
            pid = context.connection.info.backend_pid
            rows(dsn, "SELECT pg_terminate_backend(%s, 5000)", pid)
            context.connection.execute("SELECT 1")
        return other()

    with running(dsn, bound_to(other, call, cooldown=0.2), concurrency=2):
        break_it(dsn, bus, other)
        other.error = None
        send(bus, count=2)
        await_state(dsn, "CLOSED")
    assert [event.kind for event in bus.breakers.audit("stripe")] == [
        *("OPENED", "HALF_OPENED", "CLOSED")
    ]


def test_as_many_probes_run_at_a_time_as_its_terms_say(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """In all processes together, bound or inside a block."""
    with calling(dsn, other, 4, probes=2) as _, calling(dsn, other, 4, probes=2) as _:
        break_it(dsn, bus, other)
        stays(lambda: state(dsn) == "OPEN", 0.1)  # Both have heard of it.
        made = len(other.calls)
        other.answers.clear()
        send(bus, count=10)
        send(bus, "Ask", 10)
        eventually(lambda: len(other.calls) == made + 2)
        stays(lambda: len(other.calls) == made + 2, 0.4)
        other.error = None
        other.answers.set()
        began = time.monotonic()
        eventually(lambda: len(bus.query(status="COMPLETED", type="Charge")) == 10)
        assert time.monotonic() - began < 1.0
        eventually(lambda: len(bus.query(status="COMPLETED", limit=50)) == 20)


def test_threads_of_a_handler_need_a_place_each(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection
) -> None:
    denied: list[BaseException] = []

    def call(command: Command, context: Context) -> None:
        def one(_: int) -> None:
            try:
                with context.breaker("stripe"):
                    other()
            except BreakerOpenError as error:
                denied.append(error)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(one, range(4)))

    registry = HandlerRegistry()
    registry.breaker(Breaker("stripe"))
    registry.register("payments", "Many", call)
    with running(dsn, registry):
        await_state(dsn, "CLOSED")
        report(connection, failed_ago=[0] * 5)
        end_cooldown(connection)
        other.answers.clear()
        sent = bus.send("payments", "Many")
        eventually(lambda: len(denied) == 3)
        assert len(other.calls) == 1
        other.answers.set()
        bus.wait("payments", sent, 5)
        await_state(dsn, "CLOSED")


def test_a_handler_may_go_on_without_the_call(dsn: str, bus: CommandBus, other: OtherSide) -> None:
    def call(command: Command, context: Context) -> object:
        if command.type == "Fallback":
            try:
                with context.breaker("stripe"), context.breaker("stripe"):
                    return other()
            except BreakerOpenError:
                return "later"
        return other()

    registry = bound_to(other, call)
    registry.register("payments", "Fallback", call)
    with running(dsn, registry):
        assert bus.call("payments", "Fallback") == "answered"
        break_it(dsn, bus, other)
        made = len(other.calls)
        assert bus.call("payments", "Fallback") == "later"
        assert len(other.calls) == made


def test_a_probe_inside_a_transaction_takes_its_place_on_another_session(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    def call(command: Command, context: Context) -> object:
        if command.type == "Ask":
            context.connection.execute("SELECT 1")
        return other()

    def ask(command: Command, context: Context) -> object:
        context.connection.execute("SELECT 1")
        with context.breaker("stripe"):
            return other()

    registry = bound_to(other, call, cooldown=0.2)
    registry.register("payments", "Within", ask, retry=LATER)
    with running(dsn, registry, concurrency=2):
        break_it(dsn, bus, other)
        other.error = None
        sent = bus.send("payments", "Within")
        assert bus.wait("payments", sent, 5).result == "answered"
    assert state(dsn) == "CLOSED"


def test_an_unknown_breaker_is_said_at_the_call(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    def call(command: Command, context: Context) -> None:
        context.breaker("stirpe")

    with running(dsn, bound_to(other, call)):
        sent = bus.send("payments", "Charge", max_attempts=5)
        record = bus.wait("payments", sent, 5)
    assert (record.error_code, record.attempts) == ("UNKNOWN_BREAKER", 1)
    assert record.error_message == (
        "context.breaker('stirpe') is a breaker that the registry does not declare: did you mean "
        "'stripe'?"
    )


def test_a_change_that_no_session_heard_of_is_read_after_the_next_one_listens(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection
) -> None:
    with calling(dsn, other):
        bus.wait("payments", bus.send("payments", "Charge"), 5)
        # As if its notification was lost.
        connection.execute("SET cmdbus.notify = off")
        connection.execute("SELECT cmdbus.steer_breaker('stripe', 'OPEN', 'ann', NULL)")
        end_listening_sessions(dsn)
        made = len(other.calls)

        def is_kept() -> bool:
            sent = bus.send("payments", "Charge")
            bus.wait("payments", bus.send("payments", "Noop"), 5)
            return found(bus, sent).status == "PENDING"

        eventually(is_kept)
        made = len(other.calls)
        send(bus, count=3)
        stays(lambda: len(other.calls) == made, 0.2)


def test_while_the_database_is_away_a_call_is_decided_by_what_was_seen_last(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """Soon, also where a cooldown has ended and a probe's place cannot be had."""
    gates, decided = {name: Gate() for name in ("open", "closed")}, list[str]()
    registry = HandlerRegistry()
    for name in gates:
        registry.breaker(Breaker(name, cooldown=0.3))

    def call(command: Command, context: Context) -> None:
        gates[command.data](command, context)
        began = time.monotonic()
        try:
            with context.breaker(command.data):
                decided.append(f"{command.data}: called")
        except BreakerOpenError:
            decided.append(f"{command.data}: denied")
        assert time.monotonic() - began < 5

    registry.register("payments", "Ask", call, retry=LATER)
    with Proxy(dsn) as proxy, running(proxy.dsn, registry, concurrency=2):
        eventually(lambda: len(bus.breakers.list()) == 2)
        with psycopg.connect(dsn, autocommit=True) as connection:
            report(connection, name="open", failed_ago=[0] * 5)
        bus.send_many([SendRequest("payments", "Ask", name) for name in gates])
        for gate in gates.values():
            gate.wait_for(1)
        eventually(lambda: scalar_of(dsn, "count(*) FILTER (WHERE retry_at < now())") == 1)
        with proxy.away():
            for gate in gates.values():
                gate.open.set()
            eventually(lambda: len(decided) == 2)
            assert sorted(decided) == ["closed: called", "open: denied"]
        eventually(lambda: len(bus.query(status="COMPLETED")) == 2, 20)


def test_an_operator_keeps_it_open_until_one_closes_it(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, cooldown=0.1):
        await_state(dsn, "CLOSED")
        bus.breakers.open("stripe", operator="ann", reason="maintenance")
        sent = bus.send("payments", "Charge")
        stays(lambda: not other.calls, 0.5)
        assert bus.explain("payments", sent) == (
            "It waits: the breaker stripe is open until an operator closes it."
        )
        bus.breakers.close("stripe", operator="ann")
        assert bus.wait("payments", sent, 5).status == "COMPLETED"


def test_a_suspect_can_be_the_probe_and_does_not_run_while_its_breaker_is_open(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection
) -> None:
    """The check for suspects, by which a fleet starts its quarantine process."""
    query = "SELECT cmdbus.suspect_waits(cmdbus.let_through(%s), 2::smallint, NULL)"
    with calling(dsn, other, cooldown=600):
        break_it(dsn, bus, other)
        bus.send("payments", "Charge")
        connection.execute("UPDATE cmdbus.ready SET losses = 2")
        assert not scalar(connection, query, ["payments Charge"])
        connection.execute("UPDATE cmdbus.breaker SET retry_at = clock_timestamp()")
        assert scalar(connection, query, ["payments Charge"])


def test_limits_and_breakers_of_one_type_hold_together(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    registry = HandlerRegistry()
    registry.breaker(Breaker("stripe", failures=3, cooldown=0.3))
    gate = Gate()

    def charge(command: Command, context: Context) -> object:
        return gate(command, context) if other.error is None else other()

    registry.register(
        "payments", "Charge", charge, breaker="stripe", concurrency=1, fair=True, retry=LATER
    )
    with running(dsn, registry, concurrency=4):
        break_it(dsn, bus, other)
        other.error = None
        bus.send_many([SendRequest("payments", "Charge", key=key) for key in "aabbcc"])
        gate.wait_for(1)
        stays(lambda: gate.inside == 1, 0.3)
        gate.open.set()
        eventually(lambda: len(bus.query(status="COMPLETED")) == 6)
    assert gate.most <= 3


def test_a_worker_stops_while_a_breaker_is_open(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    with calling(dsn, other, cooldown=600) as worker:
        break_it(dsn, bus, other)
        send(bus, count=5)
        with beside(worker.stop):
            pass
    assert rows(dsn, "SELECT count(*) FROM cmdbus.ready WHERE claimer IS NOT NULL") == [(0,)]
