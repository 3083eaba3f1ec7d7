"""Canceling a command that is promoted or claimed in the same moment: one of the two happens."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from time import perf_counter
from uuid import UUID, uuid4

import psycopg
import pytest
from claiming import Claimer
from handlers import beside, promote
from queries import await_lock_waits

from cmdbus import CommandBus, InvalidOperationError


def schedule(connection: psycopg.Connection, *ids: UUID, count: int = 1) -> list[UUID]:
    """Commands that are due and not yet promoted, with these ids or new ones."""
    ids = ids or tuple(uuid4() for _ in range(count))
    connection.execute(
        "INSERT INTO cmdbus.scheduled (domain, priority, command_id, type, data, correlation_id,"
        " due_at) SELECT 'payments', 5, i, 'Debit', '1', i, now() FROM unnest(%s::uuid[]) i",
        (list(ids),),
    )
    return list(ids)


@pytest.mark.parametrize("promoted", [True, False], ids=["promoted and claimed", "claimed"])
def test_a_command_that_is_claimed_while_its_cancel_waits_goes_on(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, promoted: bool
) -> None:
    [id_] = schedule(connection)
    with psycopg.connect(dsn, autocommit=True) as busy, ThreadPoolExecutor(1) as executor:
        claimer = Claimer(busy)
        if not promoted:
            promote(claimer.statements, connection, 1)
        with busy.transaction():
            promote(claimer.statements, busy, 1)
            assert claimer.claim_one().command_id == id_
            cancel = executor.submit(bus.cancel, "payments", id_)
            await_lock_waits(dsn)
        with pytest.raises(InvalidOperationError, match="running=True"):
            cancel.result(20)
    assert [event.kind for event in bus.audit("payments", id_)] == ["SENT", "RECEIVED"]
    bus.cancel("payments", id_, running=True)


def test_a_claim_between_the_look_and_the_end_of_a_cancel_goes_on(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """The cancel waits for one row of an id while another row of that id is promoted and
    claimed."""
    [id_] = schedule(connection)
    promote(claimer.statements, connection, 1)
    schedule(connection, id_)
    with ThreadPoolExecutor(1) as executor:
        with psycopg.connect(dsn) as busy:
            busy.execute("SELECT FROM cmdbus.ready FOR UPDATE")
            cancel = executor.submit(bus.cancel, "payments", id_)
            await_lock_waits(dsn)
            promote(claimer.statements, connection, 1)
            claim = claimer.claim_one()
        cancel.result(20)
    left = connection.execute("SELECT id, token FROM cmdbus.ready").fetchall()
    assert left == [(claim.id, claim.token)]


def test_no_command_is_claimed_and_canceled(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """One session promotes and claims in one commit, at any moment of another's cancel."""
    rounds = 200
    ids = schedule(connection, count=rounds)
    canceled: list[UUID] = []
    begin = threading.Barrier(2)

    def cancel() -> None:
        for id_ in ids:
            begin.wait(20)
            with suppress(InvalidOperationError):
                bus.cancel("payments", id_)
                canceled.append(id_)
            begin.wait(20)

    pauses = Random(14)
    with psycopg.connect(dsn) as busy, beside(cancel):
        claimer = Claimer(busy)
        for id_ in ids:
            promote(claimer.statements, busy, 1)
            assert claimer.claim_one().command_id == id_
            begin.wait(20)
            until = perf_counter() + pauses.uniform(0, 0.001)
            while perf_counter() < until:
                pass
            busy.commit()
            begin.wait(20)
    assert canceled == []
    assert connection.execute("SELECT count(*) FROM cmdbus.ready").fetchone() == (rounds,)
