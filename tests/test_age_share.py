"""A share of the claims takes the oldest command, so that none of a low priority starves."""

import threading

import psycopg
import pytest
from claiming import Claimer, ended, want
from handlers import await_drained, await_rest, connect, handling, running
from lane_claimer import Limit, declare
from queries import scalar
from test_floors import ROWS_READ

from cmdbus import Command, CommandBus, Context, SendRequest
from cmdbus.worker import Worker
from cmdbus.worker.claims.claim import Claim, ClaimPart, ClaimResult, Finished
from cmdbus.worker.claims.floors import OVERLAP, Floors
from cmdbus.worker.pipeline.age_share import AgeShare


def debits(priority: int, count: int, type: str = "Debit") -> list[SendRequest]:
    return [SendRequest("payments", type, priority=priority)] * count


@pytest.mark.parametrize("free", [1, 3, 8])
@pytest.mark.parametrize("percent", [0, 1, 7, 10, 33, 50, 99, 100])
def test_the_share_is_exact_in_the_long_run(percent: int, free: int) -> None:
    share, total, longest, pause = AgeShare(percent), 0, 0, 0
    for _ in range(100):
        oldest = share.of(free, 0)
        assert oldest <= free
        share.claimed(free, oldest)
        total += oldest
        pause = 0 if oldest else pause + free
        longest = max(longest, pause)
    assert total == percent * free
    assert not percent or longest < 100 / percent


def test_claims_ahead_of_threads_count_and_take_none_of_the_oldest() -> None:
    share = AgeShare(10)
    assert share.of(1, 40) == 1
    share.claimed(41, 1)
    assert [share.of(2, 0), share.of(8, 0)] == [2, 3], "3.1 were due"


def test_a_claim_that_took_less_than_it_could_carries_over_the_rest() -> None:
    """As it had enough bytes; and what waits in vain is not due for ever."""
    share = AgeShare(50)
    share.claimed(1, 1)
    assert [share.of(1, 0), share.of(2, 0)] == [0, 0]
    for _ in range(1000):
        share.claimed(8, 0)
    assert share.of(10_000, 0) == 100 + 5_000


# On a server.


class Leader:
    """Settles and claims by age, within a second."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection, self.statements = connection, Claimer(connection).statements
        self.floors, self.oldest_floors = Floors(), Floors()
        self.done: list[Finished] = []
        self.now = 100.0

    def claim(self, free: int, oldest: int, **more: object) -> list[Claim]:
        self.now += 0.001
        asked = self.oldest_floors.for_claim(self.now)
        request = want(
            free,
            oldest=oldest,
            oldest_floors=asked,
            floors=self.floors.for_claim(self.now),
            below=self.floors.below(self.now),
            **more,
        )
        results: list[ClaimResult] = []
        _, claims = self.statements.settle_and_claim(
            self.connection, self.done, request, results.append
        )
        for result in results:
            result = result._replace(pages=10_000)
            if result.part is ClaimPart.OLDEST:
                self.oldest_floors.looked_by_age(asked, result, self.now)
            elif result.part is ClaimPart.FREE:
                self.floors.looked(request.floors, request.below, request.queues, result, self.now)
        self.done = [ended(each) for each in claims]
        return claims


def priorities(claims: list[Claim]) -> list[int]:
    return [claim.priority for claim in claims]


def test_the_oldest_come_first_and_then_the_most_urgent(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    for priority in (9, 5, 9, 0, 0, 5, 3):
        bus.send_many(debits(priority, 1))
    leader = Leader(connection)
    assert priorities(leader.claim(4, 2)) == [9, 5, 0, 0]
    assert priorities(leader.claim(1, 1)) == [9]
    assert priorities(leader.claim(3, 3)) == [5, 3]
    assert leader.claim(1, 1) == []


def test_what_cannot_be_claimed_is_none_of_the_oldest(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    bus.send("orders", "Ship", priority=9)
    bus.pause("orders")
    bus.send_many([*debits(8, 1, "Typo"), *debits(7, 2), *debits(0, 3)])
    connection.execute("UPDATE cmdbus.ready SET expires_at = now() WHERE id = 3")
    claims = Leader(connection).claim(2, 1, domains=["orders", "payments"])
    assert priorities(claims) == [7, 0]


def test_claims_by_age_have_bytes_to_keep_within(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send_many([SendRequest("payments", "Debit", "x" * 1000, priority=n) for n in range(10)])
    leader = Leader(connection)
    assert len(leader.claim(9, 9, bytes=5000)) == 4, "half of the bytes for each of two claims"
    assert len(leader.claim(9, 9, bytes=1)) == 1


def test_claims_by_age_walk_once_over_what_they_cannot_run(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """In the queues of all priorities."""
    with connection.transaction():
        leader = Leader(connection)
        bus.send_many([*debits(9, 3000, "Typo"), *debits(0, 3000, "Typo")], connection=connection)
        leader.claim(2, 1)
        before = scalar(connection, ROWS_READ.format("xact_"))
        for number in range(20):
            bus.send_many(debits(number % 11, 1), connection=connection)
            assert len(leader.claim(2, 1)) == 1
        rows_read = scalar(connection, ROWS_READ.format("xact_")) - before
        assert rows_read < 20 * 2 * (OVERLAP + 100)


@pytest.mark.parametrize(("percent", "limited"), [(10, False), (10, True), (100, True)])
def test_an_old_command_starts_soon_while_urgent_ones_keep_its_worker_busy(
    dsn: str, bus: CommandBus, percent: int, limited: bool
) -> None:
    """Also where another type waits at a limit."""
    started: list[int] = []
    stopping = threading.Event()

    def debit(command: Command, context: Context) -> None:
        started.append(priority := int(command.data))
        if priority == 0 and not stopping.is_set():
            bus.send("payments", "Debit", 0, priority=0)
        if priority == 9 or len(started) > 500:
            stopping.set()

    if limited:
        with connect(dsn) as connection:
            declare(connection, Limit("payments Noop", concurrency=1))
        bus.send_many(debits(5, 50, "Noop"))
    bus.send("payments", "Debit", 9, priority=9)
    bus.send_many([SendRequest("payments", "Debit", 0, priority=0)] * 60)
    with running(dsn, handling(debit), concurrency=1, age_share=percent) as worker:
        await_drained(bus)
        await_rest(worker, 0.1)
    assert started.index(9) < 100 / percent


def test_commands_that_wait_at_a_limit_run_beside_claims_by_age(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """The claim that finds nothing by age is followed by one in lanes."""
    declare(connection, Limit("payments Debit", concurrency=1))
    with running(dsn, handling(), concurrency=2, age_share=100, poll_interval=60) as worker:
        await_rest(worker, 0.1)
        for _ in range(3):
            bus.wait("payments", bus.send("payments", "Debit"), 20)
            await_rest(worker, 0.1)


@pytest.mark.parametrize("share", [-1, 101, 0.5, True])
def test_what_is_no_percentage_is_refused(share: int) -> None:
    with pytest.raises(ValueError, match="age_share must be a whole number from 0 to 100"):
        Worker("", handling(), age_share=share)


def test_as_many_ids_are_read_again_as_floors_expect(
    connection: psycopg.Connection,
) -> None:
    """What claim_oldest reports as walked over is above what a later commit may add."""
    source = scalar(connection, "SELECT prosrc FROM pg_proc WHERE proname = 'claim_oldest'")
    assert f"overlap constant integer := {OVERLAP};" in source
