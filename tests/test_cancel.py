"""Canceling a command that is promoted or claimed in the same moment: one of the two happens."""

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import perf_counter
from uuid import UUID, uuid4

import psycopg
import pytest
from claiming import Claimer
from eventually import eventually
from handlers import connect, promote

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


def start_cancel(bus: CommandBus, command_id: UUID, dsn: str) -> Callable[[], str]:
    """Returns once the cancel waits for another session's lock; the result waits for its end
    and says why it was refused."""
    refusals: list[str] = []

    def cancel() -> None:
        try:
            bus.cancel("payments", command_id)
        except InvalidOperationError as error:
            refusals.append(str(error))

    def wait() -> str:
        thread.join(20)
        return "".join(refusals)

    thread = threading.Thread(target=cancel)
    with connect(dsn) as watcher:
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        eventually(lambda: watcher.execute(waiting).fetchone() == (1,))
    return wait


@pytest.mark.parametrize("promoted", [True, False], ids=["promoted and claimed", "claimed"])
def test_a_command_that_is_claimed_while_its_cancel_waits_goes_on(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, promoted: bool
) -> None:
    [id_] = schedule(connection)
    with psycopg.connect(dsn, autocommit=True) as busy:
        claimer = Claimer(busy)
        if not promoted:
            promote(claimer.claims, connection, 1)
        with busy.transaction():
            promote(claimer.claims, busy, 1)
            assert claimer.claim_one().command_id == id_
            refusal = start_cancel(bus, id_, dsn)
    assert "running=True" in refusal()
    assert [event.kind for event in bus.audit("payments", id_)] == ["SENT", "RECEIVED"]
    bus.cancel("payments", id_, running=True)


def test_a_claim_between_the_look_and_the_end_of_a_cancel_goes_on(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """The cancel waits for one row of an id while another row of that id is promoted and
    claimed."""
    [id_] = schedule(connection)
    promote(claimer.claims, connection, 1)
    schedule(connection, id_)
    with psycopg.connect(dsn) as busy:
        busy.execute("SELECT FROM cmdbus.ready FOR UPDATE")
        refusal = start_cancel(bus, id_, dsn)
        promote(claimer.claims, connection, 1)
        claim = claimer.claim_one()
    assert refusal() == ""
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

    thread = threading.Thread(target=cancel)
    thread.start()
    pauses = Random(14)
    with psycopg.connect(dsn) as busy:
        claimer = Claimer(busy)
        for id_ in ids:
            promote(claimer.claims, busy, 1)
            assert claimer.claim_one().command_id == id_
            begin.wait(20)
            until = perf_counter() + pauses.uniform(0, 0.001)
            while perf_counter() < until:
                pass
            busy.commit()
            begin.wait(20)
    thread.join(20)
    assert canceled == []
    assert connection.execute("SELECT count(*) FROM cmdbus.ready").fetchone() == (rounds,)
