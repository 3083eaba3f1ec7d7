"""Races of a worker, held open at a named point until the other side has moved."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from fault_injection.failpoints import OF_WORKERS
from handlers import beside, claim, found, handling, leave_effect, running
from queries import SESSIONS, rows

from cmdbus import CommandBus, HandlerRegistry, RetryPolicy, SendRequest, Status
from cmdbus import failpoints as points
from cmdbus.worker.claims.claim import Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, completed
from cmdbus.worker.pipeline.in_flight import ROW_LOCKED, InFlight
from cmdbus.worker.pipeline.unsettled import Unsettled
from cmdbus.worker.standalone import telemetry_of_one


@pytest.fixture
def registry() -> HandlerRegistry:
    return handling(leave_effect, retry=RetryPolicy(max_attempts=3, backoff=(0.05,), jitter=0))


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
        assert self._there.wait(10), f"no thread has reached {self._point}"

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
    query = (
        "SELECT count(e.command_id) FROM unnest(%s::uuid[]) c (id)"
        " LEFT JOIN effect e ON e.command_id = c.id GROUP BY c.id"
    )
    return [effects for (effects,) in rows(dsn, query, ids)]


def end_sessions_at_once(dsn: str) -> None:
    """A command that went over to a session that ends later would meet two ends."""
    ended = rows(dsn, f"SELECT pid, pg_terminate_backend(pid) {SESSIONS}")
    left = f"SELECT {SESSIONS} AND pid = ANY (%s)"
    eventually(lambda: not rows(dsn, left, [pid for pid, _ in ended]))


def test_a_send_that_commits_between_the_flag_and_the_barrier_is_found(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    """By a worker without a steward: the sender is no longer among the writers to wait for."""
    with (
        psycopg.connect(dsn) as sender,
        held(points.ARMED) as arming,
        running(dsn, registry, poll_interval=600),
    ):
        id_ = bus.send("payments", "Noop", connection=sender)
        arming.wait()
        sender.commit()
        arming.let_go()
        bus.wait("payments", id_)


def test_a_claim_that_comes_after_the_stop_goes_back_uncharged(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    ids = bus.send_many([SendRequest("payments", "Debit")] * 3)
    with held(points.AFTER_CLAIM) as claiming, running(dsn, registry) as worker:
        claiming.wait()
        with beside(worker.stop):
            eventually(
                lambda: (
                    worker._concurrency.threads is not None
                    and worker._concurrency.threads._stopping.is_set()
                )
            )
            claiming.let_go()
    for id_ in ids:
        assert (found(bus, id_).status, found(bus, id_).attempts) == (Status.PENDING, 0)
    assert effects(dsn, ids) == [0, 0, 0]


def test_sessions_that_end_at_a_point_cost_no_command_and_double_none(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    """Nor do they charge one. No command sees more than two of the rounds, because one that is
    interrupted three times waits for an operator."""
    debits: list[UUID] = []
    others: list[UUID] = []
    latest: list[UUID] = []
    with ExitStack() as stack:
        arming = stack.enter_context(held(points.ARMED))
        worker = stack.enter_context(running(dsn, registry))

        def end_sessions(hold: Held) -> None:
            debits.extend(bus.send_many([SendRequest("payments", "Debit")] * 3))
            debits.extend(bus.send_many([SendRequest("payments", "Debit", delay=0.05)] * 2))
            others.extend(bus.send_many([SendRequest("payments", "Noop")] * 3))
            hold.wait()
            end_sessions_at_once(dsn)
            hold.let_go()
            await_completed(latest)
            latest[:] = [*debits[-5:], *others[-3:]]

        def await_completed(ids: list[UUID]) -> None:
            for id_ in ids:
                record = bus.wait("payments", id_)
                assert (record.status, record.attempts) == (Status.COMPLETED, 1)

        def counted() -> int:
            counts = worker.metrics()["cmdbus_commands_total"]
            assert isinstance(counts, dict)
            return sum(n for (*_, end), n in counts.items() if end == "completed")

        end_sessions(arming)
        for point in (*OF_WORKERS, points.PROMOTED):
            with held(point) as hold:
                end_sessions(hold)
        await_completed(latest)
        assert set(effects(dsn, debits)) == {1} and set(effects(dsn, others)) == {0}
        eventually(lambda: counted() == len(debits) + len(others))


def test_an_outcome_that_cannot_be_settled_holds_up_no_other(dsn: str, bus: CommandBus) -> None:
    """One that the server refuses goes to troubleshooting, and one whose row another session
    has locked is settled when that ends."""
    ids = bus.send_many([SendRequest("payments", "Debit")] * 4)
    statements, telemetry = ClaimStatements("cmdbus", 30), telemetry_of_one()
    held_claims = InFlight(statements, telemetry.seat)
    unsettled = Unsettled(statements, telemetry, held_claims)
    slot = telemetry.acquire_slot()

    def patient() -> psycopg.Connection:
        return psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=50ms")

    def status(index: int) -> Status:
        return found(bus, ids[index]).status

    with patient() as connection, psycopg.connect(dsn) as stranger:
        statements.register(connection, "tester")
        claimed = claim(statements, connection, 4)
        for entry in held_claims.take(claimed, lambda: False):
            held_claims.start(entry)
            held_claims.finish(entry)
        refused = Outcome(kind=OutcomeKind.COMPLETED, result="{")
        for each in claimed:
            is_second = each.command_id == ids[1]
            unsettled.add(Finished(each, refused if is_second else completed(None), 3, 0.0))
        stranger.execute("SELECT FROM cmdbus.ready WHERE command_id = %s FOR UPDATE", (ids[2],))
        hand = ThreadConnection(patient)
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
