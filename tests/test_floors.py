"""What a claim can never take costs it no row: where claims begin, as values and as rows that
the server walks over."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from claiming import Claimer, ended, want
from eventually import eventually
from handlers import connect, handling, running
from queries import scalar

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim import Claim, ClaimPart, ClaimResult, Finished
from cmdbus.worker.claims.floors import OVERLAP, Floors

pytestmark = pytest.mark.new_database

HIGH, NORMAL, ORDERS = ("payments", 0), ("payments", 5), ("orders", 5)
QUEUES = [HIGH, NORMAL, ORDERS]
DEBIT = SendRequest("payments", "Debit")


def claim(queue: tuple[str, int], id_: int) -> Claim:
    now = datetime.now(UTC)
    return Claim(*queue, id_, 1, UUID(int=id_), "Debit", "1", 0, 0, None, UUID(int=0), None, now, 0)


class Looks:
    """Claims one after the other, by one thread."""

    def __init__(self) -> None:
        self.floors = Floors()
        self.now = 100.0

    def look(
        self,
        *claims: Claim,
        after: float = 0.01,
        seen_to: int = 50_000,
        stopped_at: tuple[str, int] | None = None,
        pages: int = 10,
    ) -> None:
        self.now += after
        asked, below = self.floors.for_claim(self.now), self.floors.below(self.now)
        result = ClaimResult(claims, ClaimPart.FREE, seen_to, stopped_at, pages, None)
        self.floors.looked(asked, below, QUEUES, result, self.now)

    def next(self, after: float = 0.01) -> dict[tuple[str, int], int]:
        return dict(self.floors.for_claim(self.now + after))


def test_a_claim_begins_where_the_one_before_had_enough() -> None:
    looks = Looks()
    assert looks.next() == {}
    looks.look(claim(NORMAL, 7_007), claim(NORMAL, 7_005), stopped_at=NORMAL)
    assert looks.next() == {HIGH: 50_000 - OVERLAP, NORMAL: 7_004}, "orders were not looked at"


def test_after_an_empty_claim_the_next_begins_near_the_latest_id() -> None:
    """Whose row may be committed after those of later ones."""
    looks = Looks()
    looks.look()
    assert looks.next() == dict.fromkeys(QUEUES, 50_000 - OVERLAP)
    looks.look(seen_to=300)
    assert looks.next() == dict.fromkeys(QUEUES, 0), "a database was restored to an earlier point"


def test_once_a_second_a_claim_begins_at_zero_and_may_lower_a_floor() -> None:
    looks = Looks()
    looks.look()
    assert looks.next(after=0.9) and looks.next(after=1.01) == {}
    looks.look(claim(NORMAL, 3), after=1.01, stopped_at=NORMAL)
    assert looks.next()[NORMAL] == 2


def test_where_a_look_from_zero_is_cheap_an_empty_claim_always_looks_below_the_floors() -> None:
    looks = Looks()
    for _ in range(3):
        looks.look()
        assert looks.floors.below(looks.now)
        assert looks.floors.look_again_at == float("inf"), "all was seen: it may rest for long"


def test_the_more_a_look_from_zero_reads_the_longer_is_the_pause_after_it() -> None:
    looks = Looks()
    looks.look(pages=24_000)
    swept_at = looks.now
    assert not looks.floors.below(swept_at + 2.9) and looks.floors.below(swept_at + 3.1)
    assert looks.next(after=2.9) != {} and looks.next(after=3.1) == {}
    looks.look(pages=1)
    assert looks.floors.look_again_at == pytest.approx(swept_at + 3.0)
    looks.look(claim(NORMAL, 49_999), pages=1)
    assert looks.floors.look_again_at == float("inf"), "it does not rest"
    looks.look()
    assert looks.floors.look_again_at == pytest.approx(swept_at + 3.0)
    looks.look(after=3.1, pages=10_000_000)
    assert looks.floors.look_again_at == float("inf")
    assert looks.floors.below(looks.now + 5.1), "seconds, however many rows there are"


# On a server.


class Leader:
    """Settles and claims as a worker's leader does, within a second."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.statements = Claimer(connection).statements
        self.floors, self.quick_floors = Floors(), Floors()
        self.done: list[Finished] = []
        self.now = 100.0

    def settle_and_claim(
        self, free: int = 5, ahead: int = 0, quick: Sequence[str] = ()
    ) -> list[Claim]:
        self.now += 0.001
        request = want(
            free,
            prefetch=ahead,
            quick_types=quick,
            floors=self.floors.for_claim(self.now),
            below=self.floors.below(self.now),
            quick_floors=self.quick_floors.for_claim(self.now),
        )
        looks: list[ClaimResult] = []
        _, claims = self.statements.settle_and_claim(
            self.connection, self.done, request, looks.append
        )
        for result in looks:
            # Its number is that of many more rows.
            result = result._replace(pages=10_000)
            floors, asked = self.floors, request.floors
            if result.part is ClaimPart.PREFETCH:
                floors, asked = self.quick_floors, request.quick_floors
            floors.looked(asked, request.below, request.queues, result, self.now)
        self.done = [ended(each) for each in claims]
        return claims


UNKNOWN = 5_000


#: Of ready: by a session and not yet reported, and by all sessions.
ROWS_READ = (
    "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_{}user_tables"
    " WHERE relid = 'cmdbus.ready'::regclass"
)


@contextmanager
def reading_little(connection: psycopg.Connection, claims: int) -> Iterator[None]:
    """Asserts that these claims walk over hardly more than the overlap of two looks."""
    before = scalar(connection, ROWS_READ.format("xact_"))
    yield
    assert scalar(connection, ROWS_READ.format("xact_")) - before < claims * (OVERLAP + 100)


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed when empty"])
@pytest.mark.parametrize("priority", ["high", "normal", "low"])
def test_claims_walk_once_over_what_they_cannot_run(
    bus: CommandBus, connection: psycopg.Connection, priority: str, analysed: bool
) -> None:
    """In front of what they can, in a queue of its own before that, or behind it."""
    if analysed:
        connection.execute("ANALYZE cmdbus.ready")
    unknown = SendRequest("payments", "Typo", priority=priority)
    with connection.transaction():
        leader = Leader(connection)
        bus.send_many([unknown] * UNKNOWN, connection=connection)
        leader.settle_and_claim()
        with reading_little(connection, 20):
            for number in range(20):
                known = [DEBIT] * (number % 3)
                bus.send_many([unknown, *known], connection=connection)
                assert len(leader.settle_and_claim()) == len(known)
        assert bus.snapshot("payments", connection=connection)["depth"] == UNKNOWN + 20


def test_full_claims_walk_once_over_a_queue_before_theirs(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    with connection.transaction():
        leader = Leader(connection)
        unknown = [SendRequest("payments", "Typo", priority="high")] * UNKNOWN
        bus.send_many(unknown + [DEBIT] * 200, connection=connection)
        leader.settle_and_claim()
        with reading_little(connection, 20):
            for _ in range(20):
                assert len(leader.settle_and_claim()) == 5


def test_what_is_claimed_ahead_walks_once_over_slow_types(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    with connection.transaction():
        leader = Leader(connection)
        bus.send_many([DEBIT] * UNKNOWN, connection=connection)
        leader.settle_and_claim(1, 5, ["payments Ship"])
        with reading_little(connection, 20):
            for _ in range(20):
                bus.send("payments", "Ship", connection=connection)
                types = [claim.type for claim in leader.settle_and_claim(1, 5, ["payments Ship"])]
                assert types == ["Debit", "Ship"]


def test_claims_walk_once_over_what_others_are_running(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    with connection.transaction():
        other, leader = Leader(connection), Leader(connection)
        bus.send_many([DEBIT] * UNKNOWN, connection=connection)
        assert len(other.settle_and_claim(UNKNOWN)) == UNKNOWN
        leader.settle_and_claim()
        with reading_little(connection, 20):
            for _ in range(20):
                bus.send("payments", "Debit", connection=connection)
                assert len(leader.settle_and_claim()) == 1


def test_a_worker_behind_an_unhandled_type_is_quick_and_reads_little(
    dsn: str, bus: CommandBus
) -> None:
    """Each arrival of an unknown type wakes it, too. It looks at all rows, and at all leases,
    less than 10 times a second."""
    arrivals, unknown = 100, 50_000
    bus.send_many([SendRequest("payments", "Typo")] * unknown)
    began = time.monotonic()
    with running(dsn, handling()):
        for _ in range(arrivals):
            bus.send("payments", "Typo")
            bus.wait("payments", bus.send("payments", "Debit"), 20)
    walks = 10 + 2 * 10 * (time.monotonic() - began)
    with connect(dsn) as watcher:
        assert scalar(watcher, ROWS_READ.format("")) < walks * unknown
    assert bus.snapshot("payments")["depth"] == unknown + arrivals


def test_what_comes_below_the_floors_is_found_though_looking_there_is_expensive(
    dsn: str, bus: CommandBus
) -> None:
    """Committed late, or given back: nothing else wakes the worker after that."""
    ran = threading.Event()
    bus.send_many([SendRequest("payments", "Typo")] * 20_000)
    registry = handling(lambda command, context: ran.set())
    with running(dsn, registry, poll_interval=60), connect(dsn) as other:
        bus.wait("payments", bus.send("payments", "Debit"), 5)
        ran.clear()
        for _ in range(3):  # the worker has just looked at everything, and rests
            bus.send("payments", "Typo")
        other.execute("DELETE FROM cmdbus.ready WHERE id = 1")
        other.execute(
            "INSERT INTO cmdbus.ready (id, domain, priority, command_id, correlation_id, type,"
            " data) OVERRIDING SYSTEM VALUE VALUES (1, 'payments', 5, %s, %s, 'Debit', '1')",
            (uuid4(), uuid4()),
        )
        eventually(ran.is_set, 10)
