"""Probes in workers: how many run at a time, and what becomes of their places."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from eventually import eventually, stays
from handlers import await_rest, found, running
from other_side import (
    LATER,
    OtherSide,
    await_state,
    bound_to,
    break_it,
    calling,
    scalar_of,
    send,
    state,
)
from queries import rows, scalar
from test_breaker_states import end_cooldown, report

from cmdbus import (
    Breaker,
    BreakerOpenError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
)
from cmdbus.worker.breakers import states


@pytest.fixture
def other() -> OtherSide:
    return OtherSide()


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
        bus.wait("payments", bus.send("payments", "Noop"), 20)
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

    with running(dsn, bound_to(other, call, cooldown=0.2), concurrency=2) as worker:
        break_it(dsn, bus, other, worker)
        other.error = None
        send(bus, count=2)
        await_state(dsn, "CLOSED")
    assert [event.kind for event in bus.breakers.audit("stripe")] == [
        *("OPENED", "HALF_OPENED", "CLOSED")
    ]


def test_as_many_probes_run_at_a_time_as_its_terms_say(
    dsn: str, bus: CommandBus, other: OtherSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all processes together, bound or inside a block."""
    # That it has closed is heard, not found out by a reading once a second.
    monkeypatch.setattr(states, "_MAX_AGE_SECONDS", 600.0)
    with calling(dsn, other, 4, probes=2) as one, calling(dsn, other, 4, probes=2) as two:
        break_it(dsn, bus, other, one, two)
        made = len(other.calls)
        other.answers.clear()
        send(bus, count=10)
        send(bus, "Ask", 10)
        eventually(lambda: len(other.calls) == made + 2)
        stays(lambda: len(other.calls) == made + 2, 0.4)
        other.error = None
        other.answers.set()
        eventually(lambda: len(bus.query(status="COMPLETED", type="Charge")) == 10)
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
        eventually(lambda: (len(denied), len(other.calls)) == (3, 1))
        other.answers.set()
        bus.wait("payments", sent, 20)
        await_state(dsn, "CLOSED")


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
    with running(dsn, registry, concurrency=2) as worker:
        break_it(dsn, bus, other, worker)
        other.error = None
        sent = bus.send("payments", "Within")
        assert bus.wait("payments", sent, 20).result == "answered"
    assert state(dsn) == "CLOSED"


def test_a_suspect_is_waited_for_only_while_its_breaker_lets_it_through(
    dsn: str, bus: CommandBus, other: OtherSide, connection: psycopg.Connection
) -> None:
    """The check for suspects, by which a fleet starts its quarantine process."""
    query = "SELECT cmdbus.suspect_waits(cmdbus.let_through(%s), 2::smallint, NULL)"
    with calling(dsn, other, cooldown=600) as worker:
        break_it(dsn, bus, other, worker)
        bus.send("payments", "Charge")
        connection.execute("UPDATE cmdbus.ready SET losses = 2")
        assert not scalar(connection, query, ["payments Charge"])
        connection.execute("UPDATE cmdbus.breaker SET retry_at = clock_timestamp()")
        assert scalar(connection, query, ["payments Charge"])


def test_threads_of_a_bound_handler_are_inside_its_call(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """So its probe is enough for all of them."""

    def call(command: Command, context: Context) -> None:
        def one(_: int) -> None:
            with context.breaker("stripe"):
                other()

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(one, range(3)))

    with running(dsn, bound_to(other, call, cooldown=0.2)) as worker:
        break_it(dsn, bus, other, worker)
        made = len(other.calls)
        other.error = None
        sent = bus.send("payments", "Charge")
        assert bus.wait("payments", sent, 20).status == "COMPLETED"
        assert len(other.calls) == made + 3
        await_state(dsn, "CLOSED")


def test_a_handler_that_has_started_is_deferred_and_not_given_back(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """Whatever it raises: it would be claimed again at once, for ever."""

    def call(command: Command, context: Context) -> None:
        other()
        raise BreakerOpenError("stripe", 60.0)

    with running(dsn, bound_to(other, call, cooldown=0.2)):
        sent = bus.send("payments", "Charge")
        eventually(lambda: found(bus, sent).error_code == "BREAKER_OPEN")
        assert len(other.calls) == 1


def test_while_a_probe_runs_others_ask_for_a_place_and_claim_nothing_else(
    dsn: str, bus: CommandBus, other: OtherSide
) -> None:
    """A claim of the other types would walk over all that waits for the breaker."""
    with calling(dsn, other, cooldown=0.2) as worker:
        break_it(dsn, bus, other, worker)
        other.answers.clear()
        made = len(other.calls)
        send(bus, count=2)
        eventually(lambda: len(other.calls) == made + 1)
        await_rest(worker, 0.15)
        claims = worker.metrics()["cmdbus_empty_receives_total"]
        stays(lambda: worker.metrics()["cmdbus_empty_receives_total"] == claims, 0.6)
        other.error = None
        other.answers.set()
        await_state(dsn, "CLOSED")
        eventually(lambda: len(bus.query(status="COMPLETED", type="Charge")) == 2)
