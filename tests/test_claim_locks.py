"""Which rows a claim locks: none that another session has claimed since, whose settlement would
wait for it; but each that is only left by a session that had locked it."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest
from claiming import Claimer, ended, want
from eventually import eventually

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim import Claim, ClaimKey

WITHIN_S = 10


def send(dsn: str, count: int) -> None:
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * count)


def keys(connection: psycopg.Connection) -> list[ClaimKey]:
    query = "SELECT domain, priority, id, token, command_id, claimer FROM cmdbus.ready ORDER BY id"
    return [ClaimKey._make(row) for row in connection.execute(query)]


def waits(connection: psycopg.Connection) -> bool:
    query = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'cmdbus.node'::regclass"
    return connection.execute(query).fetchone() is not None


@pytest.mark.parametrize("first", ["claim", "snapshot"])
def test_a_claim_does_not_lock_what_was_claimed_since_its_snapshot(
    dsn: str, connection: psycopg.Connection, first: str
) -> None:
    """At the first row, whose lease has ended, it waits for the table of nodes. Meanwhile another
    worker's claim of the second row is committed, which began before its snapshot or after it."""
    send(dsn, 2)
    late, owner = Claimer(connection).statements, Claimer(connection).statements
    over, free = keys(connection)
    assert late.claim_row(connection, over) is not None
    connection.execute(
        "UPDATE cmdbus.ready SET lease_until = clock_timestamp() WHERE id = %s", (over.id,)
    )
    with ExitStack() as stack:
        gate, claiming, owning = (
            stack.enter_context(psycopg.connect(dsn)) for _ in ("gate", "claiming", "owning")
        )
        executor = stack.enter_context(ThreadPoolExecutor(1))
        gate.execute("LOCK TABLE cmdbus.node IN ACCESS EXCLUSIVE MODE")
        claimed: Claim | None = None
        if first == "claim":
            claimed = owner.claim_row(owning, free)
            connection.execute("SELECT pg_current_xact_id()")  # a newer one, which has ended
        claim = executor.submit(late.settle_and_claim, claiming, [], want(9))
        eventually(lambda: waits(connection), WITHIN_S)
        if first == "snapshot":
            claimed = owner.claim_row(owning, free)
        owning.commit()
        gate.rollback()
        assert [each.id for each in claim.result(WITHIN_S)[1]] == [over.id]
        assert claimed is not None
        connection.execute("SET lock_timeout = '1s'")
        assert owner.settle(connection, [ended(claimed)]) == [], "while the claim is not committed"


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize(
    "locks",
    [
        ["SELECT FROM cmdbus.ready WHERE id = %s FOR UPDATE"],
        ["UPDATE cmdbus.ready SET token = token WHERE id = %s"],
        ["SELECT FROM cmdbus.ready WHERE id = %s FOR SHARE"] * 2,
    ],
    ids=["locked", "updated", "locked by two"],
)
def test_a_row_is_claimed_in_its_turn_once_its_lockers_have_ended(
    dsn: str, connection: psycopg.Connection, claimer: Claimer, locks: list[str], ends: str
) -> None:
    send(dsn, 3)
    first, *others = [key.id for key in keys(connection)]
    with ExitStack() as stack:
        lockers = [stack.enter_context(psycopg.connect(dsn)) for _ in locks]
        for locker, lock in zip(lockers, locks, strict=True):
            locker.execute(lock.encode(), (first,))
        with connection.transaction(force_rollback=True):
            assert [claim.id for claim in claimer.claim(9)] == others
        for locker in lockers:
            getattr(locker, ends)()
    assert [claim.id for claim in claimer.claim(9)] == [first, *others]
