"""Canceling a command that is promoted or claimed in the same moment: one of the two happens."""

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import perf_counter
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import connect, promote

from cmdbus import CommandBus, InvalidOperationError
from cmdbus.worker.claims.claim import ClaimRequest
from cmdbus.worker.claims.claims import Claims

WANT = ClaimRequest(1, 0, ["payments"], ["payments Debit"], [], {})


def schedule(connection: psycopg.Connection, *ids: UUID, count: int = 1) -> list[UUID]:
    """Commands that are due and not yet promoted, with these ids or new ones."""
    ids = ids or tuple(uuid4() for _ in range(count))
    connection.execute(
        "INSERT INTO cmdbus.scheduled (domain, priority, command_id, type, data, correlation_id,"
        " due_at) SELECT 'payments', 5, i, 'Debit', '1', i, now() FROM unnest(%s::uuid[]) i",
        (list(ids),),
    )
    return list(ids)


def claims(connection: psycopg.Connection) -> Claims:
    made = Claims("cmdbus", 30)
    made.register(connection, "tester")
    return made


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
    dsn: str, bus: CommandBus, promoted: bool
) -> None:
    with connect(dsn) as connection, psycopg.connect(dsn) as busy:
        [id_] = schedule(connection)
        worker = claims(connection)
        if not promoted:
            promote(worker, connection, 1)
        with busy.transaction():
            promote(worker, busy, 1)
            _, [claim] = worker.settle_and_claim(busy, [], WANT)
            refusal = start_cancel(bus, id_, dsn)
        assert claim.command_id == id_
        assert "running=True" in refusal()
        assert [event.kind for event in bus.audit("payments", id_)] == ["SENT", "RECEIVED"]
        bus.cancel("payments", id_, running=True)


def test_a_claim_between_the_look_and_the_end_of_a_cancel_goes_on(
    dsn: str, bus: CommandBus
) -> None:
    """The cancel waits for one row of an id while another row of that id is promoted and
    claimed."""
    with connect(dsn) as connection, psycopg.connect(dsn) as busy:
        [id_] = schedule(connection)
        worker = claims(connection)
        promote(worker, connection, 1)
        schedule(connection, id_)
        with busy.transaction():
            busy.execute("SELECT FROM cmdbus.ready FOR UPDATE")
            refusal = start_cancel(bus, id_, dsn)
            promote(worker, connection, 1)
            _, [claim] = worker.settle_and_claim(connection, [], WANT)
        assert refusal() == ""
        left = connection.execute("SELECT id, token FROM cmdbus.ready").fetchall()
        assert left == [(claim.id, claim.token)]


def test_no_command_is_claimed_and_canceled(dsn: str, bus: CommandBus) -> None:
    """One session promotes and claims in one commit, at any moment of another's cancel."""
    rounds = 200
    canceled: list[UUID] = []
    begin = threading.Barrier(2)
    with connect(dsn) as connection, psycopg.connect(dsn) as busy:
        worker = claims(connection)
        ids = schedule(connection, count=rounds)

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
        for id_ in ids:
            promote(worker, busy, 1)
            _, [claim] = worker.settle_and_claim(busy, [], WANT)
            assert claim.command_id == id_
            begin.wait(20)
            until = perf_counter() + pauses.uniform(0, 0.001)
            while perf_counter() < until:
                pass
            busy.commit()
            begin.wait(20)
        thread.join(20)
        assert canceled == []
        assert connection.execute("SELECT count(*) FROM cmdbus.ready").fetchone() == (rounds,)
