"""What a claim takes: in which order, from where, how much, and for whom."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import psycopg
import pytest
from claiming import Claimer, ended, want
from eventually import eventually
from handlers import connect
from proxy import Proxy
from senders import race

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim import Claim, ClaimScope
from cmdbus.worker.pipeline.narrowing import Narrowing

DEBIT = SendRequest("payments", "Debit")
SHIP = SendRequest("orders", "Ship")


def test_a_claim_takes_what_it_wants_in_order_and_no_more(
    bus: CommandBus, claimer: Claimer
) -> None:
    normal = bus.send_many([DEBIT] * 3)
    low = bus.send("payments", "Debit", priority="low")
    high = bus.send("payments", "Debit", priority="high")
    bus.send("payments", "Unknown", priority="high")
    bus.send("payments", "Debit", delay=60, priority="high")
    assert [claim.command_id for claim in claimer.claim(2)] == [high, normal[0]]
    assert [claim.command_id for claim in claimer.claim(9)] == [*normal[1:], low]
    assert claimer.claim(9) == []
    assert bus.snapshot("payments")["in_progress"] == 5


def test_ahead_of_the_free_slots_only_quick_types_are_claimed(
    bus: CommandBus, claimer: Claimer
) -> None:
    bus.send_many([DEBIT] * 5 + [SHIP] * 5)
    found = claimer.settle_and_claim(
        [], want(1, "payments", "orders", prefetch=3, quick_types=["orders Ship"])
    )
    assert [claim.type for claim in found] == ["Debit", "Ship", "Ship", "Ship"]


def test_a_claim_begins_above_its_floors(bus: CommandBus, claimer: Claimer) -> None:
    bus.send_many([DEBIT] * 4)
    first = claimer.claim_one().id
    above = want(9, floors={("payments", 5): first + 1})
    assert [claim.id for claim in claimer.settle_and_claim([], above)] == [first + 2, first + 3]
    below = [claim.id for claim in claimer.settle_and_claim([], above)]
    assert below == [first + 1], "below the floors, when nothing is above them"


def test_a_paused_domain_is_not_claimed(bus: CommandBus, claimer: Claimer) -> None:
    bus.send("payments", "Debit")
    bus.pause("payments")
    assert claimer.claim(1) == []
    bus.resume("payments")
    assert len(claimer.claim(1)) == 1


def test_claimers_never_share_and_never_fail(dsn: str, bus: CommandBus) -> None:
    bus.send_many([DEBIT] * 2000)
    ids: list[int] = []

    def claim_all() -> None:
        with connect(dsn) as connection:
            claimer = Claimer(connection)
            while claimed := claimer.claim(7):
                ids.extend(claim.id for claim in claimed)

    assert race([claim_all] * 8) == [None] * 8
    assert (len(ids), len(set(ids))) == (2000, 2000)


def test_leases_begin_and_end_by_the_clock_and_not_by_their_transaction(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """now() is when the transaction began in which a worker claims or renews."""
    other = Claimer(connection)
    lease = "SELECT lease_until - interval '30 s' FROM cmdbus.ready"

    def value(query: str) -> datetime:
        found = connection.execute(query.encode()).fetchall()[0][0]
        assert isinstance(found, datetime)
        return found

    bus.send("payments", "Debit")
    with connection.transaction():
        before = value("SELECT clock_timestamp()")
        claim = claimer.claim_one()
        assert value(lease) >= before
        before = value("SELECT clock_timestamp()")
        assert claimer.renew(claim) == []
        assert value(lease) >= before
        # It ends within the transaction, after its now().
        connection.execute("UPDATE cmdbus.ready SET lease_until = clock_timestamp()")
        again = other.claim_one()
        assert (again.id, again.token) == (claim.id, claim.token + 1)


# Processes for suspects.


@pytest.fixture
def suspects(bus: CommandBus, connection: psycopg.Connection) -> list[str]:
    """The ids of commands that are suspected to have crashed their processes."""
    ids = bus.send_many([DEBIT] * 3)
    connection.execute("UPDATE cmdbus.ready SET losses = 2")
    return [str(id_) for id_ in ids]


@pytest.fixture
def quarantine(connection: psycopg.Connection) -> Claimer:
    return Claimer(connection, scope=ClaimScope.SUSPECT)


def test_a_process_for_suspects_claims_only_one(
    suspects: list[str], connection: psycopg.Connection, quarantine: Claimer
) -> None:
    """What crashes it after that one has ended must not be taken for another one's doing."""
    [first] = quarantine.claim(5)
    assert quarantine.settle_and_claim([ended(first)], want(5)) == []
    assert len(Claimer(connection, scope=ClaimScope.SUSPECT).claim(5)) == 1


def test_a_process_for_suspects_claims_no_other_when_the_reply_is_lost(
    suspects: list[str], dsn: str, connection: psycopg.Connection, quarantine: Claimer
) -> None:
    statements = quarantine.statements
    with Proxy(dsn) as proxy, connect(proxy.dsn) as cut, ThreadPoolExecutor() as threads:
        proxy.mute()
        round_trip = threads.submit(statements.settle_and_claim, cut, [], want(5))
        eventually(lambda: statements.claimed(connection))
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            round_trip.result(10)
    assert quarantine.claim(5) == []
    assert len(statements.claimed(connection)) == 1


def test_a_suspect_that_cannot_be_claimed_is_set_aside_and_the_next_one_is_claimed(
    suspects: list[str], connection: psycopg.Connection, quarantine: Claimer
) -> None:
    """Else a process for suspects would find none, and another one be started, for ever."""
    connection.execute(
        "ALTER TABLE cmdbus.ready ADD CONSTRAINT refused"
        f" CHECK (command_id <> '{suspects[0]}' OR claimer IS NULL)".encode()
    )
    for _ in range(2):
        with pytest.raises(psycopg.errors.CheckViolation):
            quarantine.claim(1)
    narrowing, taken = Narrowing(quarantine.statements), list[Claim]()
    assert narrowing.claim(connection, want(1), taken.extend) == 1 and not taken
    aside = connection.execute("SELECT command_id::text FROM cmdbus.troubleshooting")
    assert aside.fetchall() == [(suspects[0],)]
    assert narrowing.claim(connection, want(1), taken.extend) == 1 and len(taken) == 1
    assert quarantine.claim(1) == [], "one in the life of a process"
