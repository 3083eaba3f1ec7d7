"""Races of a worker, held open at a named point until the other side has moved."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from handlers import connect, leave_effect, running

from cmdbus import CommandBus, Context, HandlerRegistry, RetryPolicy, SendRequest, Status
from cmdbus import failpoints as points
from cmdbus.database.session_names import PATTERN
from cmdbus.worker.claims.claim import ClaimRequest, Finished
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.connections import ThreadConnection, Unpooled
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, completed
from cmdbus.worker.pipeline.in_flight import ROW_LOCKED, InFlight
from cmdbus.worker.pipeline.unsettled import Unsettled
from cmdbus.worker.worker import _telemetry_of_one

OF_WORKERS = (
    points.AFTER_CLAIM,
    points.BEFORE_EFFECT,
    points.BEFORE_COMMIT,
    points.AFTER_COMMIT,
    points.AFTER_RETURN,
    points.SETTLED,
    points.PROMOTED,
)
SESSIONS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ '"
    + PATTERN
    + "'"
)


@pytest.fixture
def registry() -> HandlerRegistry:
    made = HandlerRegistry()
    retry = RetryPolicy(max_attempts=3, backoff=(0.05,), jitter=0)
    made.register("payments", "Debit", leave_effect, retry=retry)
    made.register("payments", "Noop", lambda command, context: None)
    return made


class Held:
    """The first that passes a point stays there until it is let go."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._first = threading.Lock()
        self._there, self._go = threading.Event(), threading.Event()

    def reached(self, point: str) -> None:
        if point == self._point and self._first.acquire(blocking=False):
            self._there.set()
            assert self._go.wait(20)

    def wait(self) -> None:
        assert self._there.wait(10), f"nobody has reached {self._point}"

    def let_go(self) -> None:
        self._go.set()


@contextmanager
def held(point: str) -> Iterator[Held]:
    hold = Held(point)
    points.set_failpoint_action(hold.reached)
    try:
        yield hold
    finally:
        hold.let_go()
        points.set_failpoint_action(None)


def effects(dsn: str, ids: list[UUID]) -> list[int]:
    with connect(dsn) as connection:
        rows = connection.execute(
            "SELECT count(e.command_id) FROM unnest(%s::uuid[]) c (id)"
            " LEFT JOIN effect e ON e.command_id = c.id GROUP BY c.id",
            (ids,),
        )
        return [count for (count,) in rows]


def end_sessions_of_workers(connection: psycopg.Connection) -> None:
    """All at once: a command that went over to a session that ends later would meet two ends."""
    ended = connection.execute(f"SELECT pid, pg_terminate_backend(pid) {SESSIONS}").fetchall()
    left = f"SELECT pid {SESSIONS} AND pid = ANY (%s)"
    pids = [pid for pid, _ in ended]
    eventually(lambda: not connection.execute(left, (pids,)).fetchall())


def test_who_saw_the_flag_down_and_commits_before_its_barrier_is_found(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    """Of a worker that has no steward: that sender is no writer any more."""
    with (
        psycopg.connect(dsn) as sender,
        held(points.ARMED) as arming,
        running(dsn, registry, poll_interval=600),
    ):
        id_ = bus.send("payments", "Noop", connection=sender)
        arming.wait()
        sender.commit()
        arming.let_go()
        bus.wait("payments", id_, 5)


def test_what_commits_below_the_floor_of_a_busy_worker_is_found(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    """Its id was drawn before those that are claimed by now."""
    going = threading.Event()

    def again(command: object, context: object) -> None:
        if not going.wait(0.002):
            bus.send("payments", "Again")

    registry.register("payments", "Again", again)
    with running(dsn, registry, poll_interval=600), psycopg.connect(dsn) as slow:
        below = bus.send("payments", "Noop", connection=slow)
        bus.send_many([SendRequest("payments", "Again")] * 20)
        bus.wait("payments", bus.send("payments", "Noop"), 5)
        slow.commit()
        bus.wait("payments", below, 5)
        going.set()


def test_a_claim_that_comes_after_the_stop_goes_back_uncharged(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    ids = bus.send_many([SendRequest("payments", "Debit")] * 3)
    with held(points.AFTER_CLAIM) as claiming, running(dsn, registry) as worker:
        claiming.wait()
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        eventually(lambda: worker._threads is not None and worker._threads._stopping.is_set())
        claiming.let_go()
        stopping.join(10)
    for id_ in ids:
        record = bus.get("payments", id_)
        assert record is not None
        assert (record.status, record.attempts) == (Status.PENDING, 0)
    assert effects(dsn, ids) == [0, 0, 0]


def test_sessions_that_end_at_a_point_cost_no_command_and_double_none(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    """4 and 6: nor do they charge one. No command sees more than two of the rounds, because
    one that is interrupted three times waits for a person."""
    debits: list[UUID] = []
    others: list[UUID] = []
    latest: list[UUID] = []
    with connect(dsn) as stranger, ExitStack() as stack:
        arming = stack.enter_context(held(points.ARMED))
        worker = stack.enter_context(running(dsn, registry))

        def end_sessions(hold: Held) -> None:
            debits.extend(bus.send_many([SendRequest("payments", "Debit")] * 3))
            debits.extend(bus.send_many([SendRequest("payments", "Debit", delay=0.05)] * 2))
            others.extend(bus.send_many([SendRequest("payments", "Noop")] * 3))
            hold.wait()
            end_sessions_of_workers(stranger)
            hold.let_go()
            await_completed(latest)
            latest[:] = [*debits[-5:], *others[-3:]]

        def await_completed(ids: list[UUID]) -> None:
            for id_ in ids:
                record = bus.wait("payments", id_, 15)
                assert (record.status, record.attempts) == (Status.COMPLETED, 1)

        def counted() -> int:
            counts = worker.metrics()["cmdbus_commands_total"]
            assert isinstance(counts, dict)
            return sum(n for (*_, end), n in counts.items() if end == "completed")

        end_sessions(arming)
        for point in OF_WORKERS:
            with held(point) as hold:
                end_sessions(hold)
        await_completed(latest)
        assert set(effects(dsn, debits)) == {1} and set(effects(dsn, others)) == {0}
        eventually(lambda: counted() == len(debits) + len(others))


def test_a_session_that_ended_between_two_commands_costs_neither(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    """The thread finds out when the next command begins its transaction."""
    together = threading.Barrier(3)

    def meet(command: object, context: Context) -> None:
        context.connection.execute("SELECT")
        together.wait(10)

    registry.register("payments", "Meet", meet)
    with connect(dsn) as stranger, running(dsn, registry, concurrency=3):
        for _ in range(2):
            ids = bus.send_many([SendRequest("payments", "Meet")] * 3)
            for id_ in ids:
                assert bus.wait("payments", id_, 15).status is Status.COMPLETED
            end_sessions_of_workers(stranger)
        losses = "SELECT max(losses), max(attempts) FROM cmdbus.finished"
        assert stranger.execute(losses).fetchall() == [(0, 1)]


def test_an_outcome_that_cannot_be_settled_holds_up_no_other(dsn: str, bus: CommandBus) -> None:
    """One that the server refuses goes to a person, and one whose row a stranger holds
    is settled when he lets it go."""
    ids = bus.send_many([SendRequest("payments", "Debit")] * 4)
    claims, telemetry = Claims("cmdbus", 30), _telemetry_of_one()
    held_claims = InFlight(claims, telemetry.seat)
    unsettled = Unsettled(claims, telemetry, held_claims)
    slot = telemetry.acquire_slot()

    def patient() -> psycopg.Connection:
        return psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=50ms")

    def status(index: int) -> Status:
        found = bus.get("payments", ids[index])
        assert found is not None
        return found.status

    with patient() as connection, psycopg.connect(dsn) as stranger:
        claims.register(connection, "tester")
        _, claimed = claims.settle_and_claim(
            connection, [], ClaimRequest(4, 0, ["payments"], ["payments Debit"], [], {})
        )
        for entry in held_claims.take(claimed, lambda: False):
            held_claims.start(entry)
            held_claims.finish(entry)
        refused = Outcome(kind=OutcomeKind.COMPLETED, result="{")
        for claim in claimed:
            is_second = claim.command_id == ids[1]
            unsettled.add(Finished(claim, refused if is_second else completed(None), 3, 0.0))
        stranger.execute("SELECT FROM cmdbus.ready WHERE command_id = %s FOR UPDATE", (ids[2],))
        hand = ThreadConnection(Unpooled(patient))
        unsettled.settle(hand, slot, unsettled.take())
        unsettled.settle(hand, slot, unsettled.take())
        assert [status(index) for index in (0, 3)] == [Status.COMPLETED] * 2
        assert status(1) is Status.IN_TROUBLESHOOTING_QUEUE
        assert status(2) is Status.IN_PROGRESS and held_claims.in_state(ROW_LOCKED)
        stranger.rollback()
        unsettled.settle_all(hand, slot)
        assert status(2) is Status.COMPLETED
        assert not held_claims.known()
        hand.close()
