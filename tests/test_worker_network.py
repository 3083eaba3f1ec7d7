"""A worker whose network fails: replies that are lost, servers that fall silent. What a step
had claimed runs at once and once, what it had settled is counted once."""

import gc
import logging
import os
import signal
import time
from contextlib import nullcontext
from threading import Event
from threading import enumerate as enumerate_threads

import pytest
from eventually import eventually
from handlers import Gate, beside, handling, leave_effect, running, seat_of
from proxy import Proxy
from queries import rows

from cmdbus import Command, CommandBus, Context, SendRequest, Timeouts
from cmdbus.board.health import Health
from cmdbus.board.records import Phase
from cmdbus.worker import Worker

#: A lease that no test waits for.
PATIENT = Timeouts(statement=900, pool=900, lease=1000, thread=2000, watchdog=3000)
#: A round trip is given up 5 s after its statement's time.
HASTY = Timeouts(statement=0.2, pool=1, lease=1000, thread=2000, watchdog=3000)


def threads_of(worker: Worker) -> list[int | None]:
    """Their sessions."""
    return [slot.backend_pid for slot in seat_of(worker).slots if slot.number >= 0]


def session_of(worker: Worker, phase: Phase) -> int:
    """That of a thread in this phase, once there is one."""

    def found() -> list[int | None]:
        slots = [slot for slot in seat_of(worker).slots if slot.number >= 0]
        has_leader = any(slot.phase is Phase.RESTING for slot in slots)
        return [s.backend_pid for s in slots if has_leader and s.phase is phase and s.backend_pid]

    [pid] = eventually(found)
    assert pid is not None
    return pid


def ends(worker: Worker) -> dict[str, int]:
    counted = worker.metrics()["cmdbus_commands_total"]
    assert isinstance(counted, dict)
    return {end: count for (*_, end), count in counted.items()}


def test_what_a_step_claimed_whose_reply_was_lost_runs_at_once_and_once(
    dsn: str, bus: CommandBus
) -> None:
    """It is adopted, not claimed again; and what was settled with it is not lost."""
    gate = Gate()
    registry = handling(gate)
    with Proxy(dsn) as proxy, running(proxy.dsn, registry, concurrency=1, timeouts=PATIENT) as one:
        first = bus.send("payments", "Debit")
        gate.wait_for(1)
        bus.send_many([SendRequest("payments", "Debit")] * 3)
        proxy.mute()
        gate.open.set()
        claimed = "SELECT 1 FROM cmdbus.ready WHERE claimer IS NOT NULL"
        eventually(lambda: bus.wait("payments", first) and rows(dsn, claimed))
        proxy.cut()
        gate.wait_for(3)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
        eventually(lambda: seat_of(one).claims == ())
        assert ends(one) == {"completed": 4}
        assert one.metrics()["cmdbus_lost_leases_total"] == 0
    # Not by the first claim for certain: what has not begun goes back when a new listening
    # session begins, which may have missed a pause.
    finished = "SELECT count(*), max(attempts), max(losses) FROM cmdbus.finished"
    assert rows(dsn, finished) == [(4, 1, 0)], "adopted, and not taken over when a lease ended"


@pytest.mark.parametrize("silent", [True, False])
def test_a_stop_is_unfinished_if_a_claim_whose_reply_was_lost_cannot_be_released(
    dsn: str, bus: CommandBus, silent: bool
) -> None:
    with (
        Proxy(f"{dsn} connect_timeout=2") as proxy,
        running(proxy.dsn, handling(), timeouts=PATIENT) as worker,
    ):
        eventually(lambda: seat_of(worker).parked and worker._telemetry.board.armed)
        bus.wait("payments", bus.send("payments", "Debit"))  # after the claim that ends an arming
        eventually(lambda: seat_of(worker).parked)
        proxy.mute()
        bus.send("payments", "Debit")
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
        if silent:
            proxy.freeze(new_ones=True)
        with nullcontext() if silent else proxy.away():
            worker.stop(0.5)
    assert (worker.abandoned, bus.snapshot("payments")["ready"]) == (1, 0)


def test_a_session_that_does_not_end_holds_up_no_further_claim(dsn: str, bus: CommandBus) -> None:
    """Its server's process waits for a disk, or for a debugger; it may still claim."""
    with running(dsn, handling(), timeouts=HASTY) as worker:
        leading = session_of(worker, Phase.RESTING)
        os.kill(leading, signal.SIGSTOP)
        try:
            assert bus.wait("payments", bus.send("payments", "Debit"), 20)
            ids = bus.send_many([SendRequest("payments", "Debit")] * 500)
            eventually(lambda: bus.snapshot("payments")["ready"] == 0)
        finally:
            os.kill(leading, signal.SIGCONT)
        assert bus.wait("payments", ids[-1], 10)


def test_a_thread_that_cannot_prepare_says_nothing_of_the_database(
    dsn: str, bus: CommandBus
) -> None:
    """The leader waits for work meanwhile: nothing would call the database back."""
    with running(dsn, handling(), concurrency=2, timeouts=HASTY) as worker:
        idle = session_of(worker, Phase.IDLE)
        os.kill(idle, signal.SIGSTOP)
        try:
            worker.set_concurrency(1)
            eventually(lambda: len(threads_of(worker)) == 1)
            worker.set_concurrency(2)
            # Another one, whose session is another.
            eventually(lambda: all(threads := threads_of(worker)) and len(threads) == 2)
        finally:
            os.kill(idle, signal.SIGCONT)
        assert worker.health.health is Health.HEALTHY


def test_a_commit_whose_reply_was_lost_is_counted_as_what_it_was(dsn: str, bus: CommandBus) -> None:
    """The handler's own transaction."""
    gate = Gate()

    def debit(command: Command, context: Context) -> None:
        context.connection.execute("INSERT INTO effect (attempt) VALUES (1)")
        if command.data == "last":
            gate(command, context)
            # The settlement is seen, its COMMIT is not: from here on nothing is heard.
            original = context.connection.execute

            def execute(query: bytes, *args: object, **more: object) -> object:
                if b"COMMIT" in query:
                    proxy.mute()
                return original(query, *args, **more)  # type: ignore[call-overload]

            context.connection.execute = execute  # type: ignore[method-assign,assignment]

    registry = handling(debit)
    with Proxy(dsn) as proxy, running(proxy.dsn, registry, concurrency=1, timeouts=PATIENT) as one:
        last = bus.send("payments", "Debit", "last")
        gate.wait_for(1)
        gate.open.set()
        assert bus.wait("payments", last).status == "COMPLETED"
        proxy.cut()
        assert bus.wait("payments", bus.send("payments", "Debit")).status == "COMPLETED"
        eventually(lambda: ends(one) == {"completed": 2})
        eventually(lambda: seat_of(one).claims == ())
    assert rows(dsn, "SELECT count(*) FROM effect") == [(2,)]


def test_a_round_trip_whose_server_is_silent_is_given_up_and_another_thread_leads(
    dsn: str, bus: CommandBus
) -> None:
    """Its outcomes are settled, and there is one leader afterwards."""
    gate = Gate()
    with (
        Proxy(dsn) as proxy,
        # The listening session is silent, too.
        running(proxy.dsn, handling(gate), concurrency=2, timeouts=HASTY, poll_interval=0.1) as one,
    ):
        bus.send_many([SendRequest("payments", "Debit")] * 2)
        gate.wait_for(2)
        later = bus.send("payments", "Debit")
        proxy.freeze()
        gate.open.set()
        assert bus.wait("payments", later).status == "COMPLETED"
        eventually(lambda: ends(one) == {"completed": 3})
        eventually(lambda: seat_of(one).claims == ())

        def leaders() -> int:
            phases = [slot.phase for slot in seat_of(one).slots if slot.number >= 0]
            return phases.count(Phase.RESTING) + phases.count(Phase.LEADING)

        eventually(lambda: leaders() == 1)
        for _ in range(5):
            bus.wait("payments", bus.send("payments", "Debit"))
        eventually(lambda: leaders() == 1)
    # Not each by its first claim: what has not begun goes back when a new listening session begins.
    finished = "SELECT count(*), max(attempts), max(losses) FROM cmdbus.finished"
    assert rows(dsn, finished) == [(8, 1, 0)]


@pytest.mark.parametrize("new_ones", [False, True], ids=["old sessions", "all"])
def test_a_worker_whose_server_is_silent_stops_in_time(
    dsn: str, bus: CommandBus, new_ones: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it waits for."""
    # A captured line keeps its error, and that the socket of its connection.
    caplog.set_level(logging.CRITICAL, "psycopg.pool")
    gate = Gate()
    with (
        Proxy(f"{dsn} connect_timeout=2") as proxy,
        running(proxy.dsn, handling(gate), concurrency=2, timeouts=PATIENT) as one,
    ):
        bus.send_many([SendRequest("payments", "Debit")] * 2)
        gate.wait_for(2)
        proxy.freeze(new_ones)
        gate.open.set()
        eventually(lambda: Phase.LEADING in [slot.phase for slot in seat_of(one).slots])
        with beside(one.stop, 0.5):
            pass  # Within the time that a thread has.
        # The pool cannot end a connection that is being made; what is left of it is a cycle.
        eventually(lambda: not any("worker-worker" in t.name for t in enumerate_threads()))
        gc.collect()


@pytest.mark.parametrize(
    "seconds",
    [2, *(pytest.param(n, marks=[pytest.mark.long, pytest.mark.timeout(200)]) for n in (70, 135))],
)
def test_after_an_outage_a_worker_goes_on_at_once(
    dsn: str, bus: CommandBus, seconds: float
) -> None:
    """However many attempts to connect have failed meanwhile."""
    with (
        Proxy(dsn) as proxy,
        running(proxy.dsn, handling(leave_effect), concurrency=4, poll_interval=0.5) as worker,
    ):
        bus.wait("payments", bus.send("payments", "Debit"))
        with proxy.away():
            eventually(lambda: worker.health.health == "DATABASE_AWAY")
            Event().wait(seconds)
            ids = bus.send_many([SendRequest("payments", "Debit")] * 20)
        back = time.monotonic()
        assert bus.wait("payments", ids[0]).status == "COMPLETED"
        assert time.monotonic() - back < 20, "growing pauses are as long as the outage"
        for id_ in ids:
            assert bus.wait("payments", id_).status == "COMPLETED"
