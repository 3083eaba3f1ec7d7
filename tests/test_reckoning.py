"""What a dead worker process has run is counted: each execution once, with the end that the
database says it had."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cmdbus import CommandBus, HandlerRegistry, SendRequest
from cmdbus.board.board import Board
from cmdbus.board.counters import OutcomeLabel, mark
from cmdbus.board.records import ExitRecord, Role
from cmdbus.board.views import SeatView
from cmdbus.errors import BusinessRuleError, PermanentCommandError, TransientCommandError
from cmdbus.retry import RetryPolicy
from cmdbus.worker.claims.claim import Claim, ClaimRequest, Finished
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.outcomes import Outcome, completed, failed, interrupted
from cmdbus.worker.in_flight import InFlight
from cmdbus.worker.steward.attribution import attribute
from cmdbus.worker.steward.reckoning import recover_counters
from cmdbus.worker.steward.rescue import rescue

pytestmark = pytest.mark.db

SEAT = 1


def connect(dsn: str, **more: str) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(dsn, **more), autocommit=True)


class Dying:
    """A worker that will be killed in the middle of what it does."""

    def __init__(self, claims: Claims, session: psycopg.Connection) -> None:
        self.claims = claims
        self.session = session
        self.board = Board.in_memory(3, 4)
        self.seat = self.board.seat(SEAT)
        self.seat.assign(Role.WORKER, number=0, generation=1, now=1)
        self.seat.enter(pid=os.getpid(), generation=1, now=1)
        self.seat.register(claims.incarnation)
        self.held = InFlight(claims, self.seat)

    def claim(self, count: int) -> list[Claim]:
        request = ClaimRequest(count, 0, ["payments"], ["payments Debit"], [], {})
        claimed = self.claims.settle_and_claim(self.session, [], request)[1]
        return self.held.take(claimed, late=lambda: False)

    def run(self, claim: Claim, *, finished: bool = True) -> None:
        self.held.start(claim)
        if finished:
            self.held.finish(claim)

    def settle(self, claim: Claim, outcome: Outcome) -> None:
        finished = Finished(claim, outcome, 3, time.monotonic())
        assert not self.claims.settle(self.session, [finished])

    def count(self, slot: int, claim: Claim, end: OutcomeLabel) -> None:
        command_type = self.seat.command_type(claim.domain, claim.type)
        self.seat.slot(slot).counters.ended(command_type.index, end, mark(claim.id, claim.token))

    def die(self, number: int = signal.SIGKILL, *, quarantined: bool = False) -> SeatView:
        exit_record = ExitRecord(
            generation=1, pid=os.getpid(), signal=number, quarantined=quarantined
        )
        self.seat.record_exit(0, exit_record, now=2)
        return self.view()

    def view(self) -> SeatView:
        return self.board.seat_view(SEAT)

    def counted(self) -> dict[str, int]:
        ends = self.board.counters().commands.items()
        return {end: count for (domain, type, end), count in ends}


@contextmanager
def dying(dsn: str) -> Iterator[Dying]:
    claims = Claims("cmdbus", 30)
    with connect(dsn) as connection:
        claims.register(connection, "dying")
    with connect(dsn, application_name=claims.application_name) as session:
        yield Dying(claims, session)


@pytest.fixture
def sent(dsn: str) -> list[UUID]:
    with CommandBus(dsn) as bus:
        return bus.send_many([SendRequest("payments", "Debit", {}) for _ in range(10)])


def handed_back(dsn: str, dying: Dying, dead: SeatView) -> None:
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with connect(dsn) as connection:
        steward = Claims("cmdbus", 30)
        steward.register(connection, "steward")
        assert dead.exit is not None
        assert rescue(
            connection, steward, registry, attribute(dead, dead.exit, ""), within=5
        ).sessions_ended
        recover_counters(connection, steward, dying.board, dead, registry.domains)


def error(error: Exception) -> Outcome:
    return failed(
        error, "", attempt=1, max_attempts=3, policy=RetryPolicy(), retry_after=None, rand=0.5
    )


def test_what_was_settled_and_not_counted_is_counted_as_it_ended(
    dsn: str, sent: list[UUID]
) -> None:
    """M022, H16: whatever the outcome; and what had not been settled is lost."""
    outcomes = [
        completed({"a": 1}),
        error(BusinessRuleError("NO", "never")),
        error(TransientCommandError("LATER", "again")),
        error(PermanentCommandError("BAD", "a person")),
        interrupted("DATABASE_AWAY", "gone", 1.0, lost=False),
    ]
    with dying(dsn) as worker:
        claims = worker.claim(8)
        for claim, outcome in zip(claims, outcomes, strict=False):
            worker.run(claim)
            worker.settle(claim, outcome)
        worker.run(claims[5], finished=False)
        worker.run(claims[6])
        handed_back(dsn, worker, worker.die())
        assert worker.counted() == {
            "completed": 1,
            "failed": 1,
            "retry": 1,
            "trouble": 1,
            "interrupted": 1,
            "lost": 2,
        }
        assert worker.view().claims == ()
        handed_back(dsn, worker, worker.view())
        assert sum(worker.counted().values()) == 7


def test_what_ran_beyond_the_named_domains_is_counted_by_the_domains_of_the_app(
    dsn: str, sent: list[UUID]
) -> None:
    with dying(dsn) as worker:
        for number in range(64):
            worker.seat.command_type(f"domain{number}", "Debit")
        claims = worker.claim(2)
        for claim in claims:
            worker.run(claim)
        worker.settle(claims[0], completed(None))
        handed_back(dsn, worker, worker.die())
        assert worker.counted() == {"completed": 1, "lost": 1}
        assert worker.view().claims == ()


def test_who_is_charged_for_a_crash_is_counted_like_any_other(dsn: str, sent: list[UUID]) -> None:
    """H16: by the steward's settlement, which nobody else knows of."""
    with dying(dsn) as worker:
        [claim] = worker.claim(1)
        worker.run(claim, finished=False)
        handed_back(dsn, worker, worker.die(signal.SIGSEGV, quarantined=True))
        assert worker.counted() == {"trouble": 1}


def test_what_was_counted_before_its_key_was_freed_is_not_counted_again(
    dsn: str, sent: list[UUID]
) -> None:
    """H16: threads were killed between the two; what one of them had counted before that, too."""
    with dying(dsn) as worker:
        claims = worker.claim(6)
        for claim in claims:
            worker.run(claim)
            worker.settle(claim, completed(None))
        worker.count(0, claims[0], OutcomeLabel.COMPLETED)
        worker.held.free(claims[0])
        worker.count(0, claims[1], OutcomeLabel.COMPLETED)
        worker.count(2, claims[2], OutcomeLabel.COMPLETED)
        handed_back(dsn, worker, worker.die())
        assert worker.counted() == {"completed": 6}


def test_who_is_killed_while_counting_for_the_dead_is_followed_by_one_who_goes_on(
    dsn: str, sent: list[UUID]
) -> None:
    """H16: the steward dies between a count and the key's freeing."""
    with dying(dsn) as worker:
        claims = worker.claim(4)
        for claim in claims:
            worker.run(claim)
            worker.settle(claim, completed(None))
        worker.die()
        worker.count(0, claims[0], OutcomeLabel.COMPLETED)
        worker.held.free(claims[0])
        worker.count(0, claims[1], OutcomeLabel.COMPLETED)
        handed_back(dsn, worker, worker.view())
        assert worker.counted() == {"completed": 4}


def test_a_command_that_is_lost_again_is_counted_again(dsn: str, sent: list[UUID]) -> None:
    """H16: the same row, claimed anew: another token."""
    with dying(dsn) as worker:
        [claim] = worker.claim(1)
        worker.run(claim, finished=False)
        handed_back(dsn, worker, worker.die())
        worker.seat.assign(Role.WORKER, number=0, generation=2, now=3)
    with dying(dsn) as again:
        again.board = worker.board
        again.seat = worker.board.seat(SEAT)
        again.seat.enter(pid=os.getpid(), generation=1, now=1)
        again.seat.register(again.claims.incarnation)
        again.held = InFlight(again.claims, again.seat)
        claimed = again.claim(10)
        [same] = [each for each in claimed if each.id == claim.id]
        again.run(same, finished=False)
        handed_back(dsn, again, again.die())
        assert again.counted() == {"lost": 2}
