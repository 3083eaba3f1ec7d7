"""Executions whose claims have no row any more: each is counted once, and its claim is freed."""

import threading
from collections.abc import Iterator

import psycopg
import pytest
from eventually import eventually
from handlers import connect

from cmdbus import CommandBus
from cmdbus.slots import Slot as Place
from cmdbus.worker.claim import Want
from cmdbus.worker.claims import Claims
from cmdbus.worker.connections import Hand, Unpooled
from cmdbus.worker.holding import Holding
from cmdbus.worker.record import Record
from cmdbus.worker.settling import Done
from cmdbus.worker.worker import _record_of_one

pytestmark = pytest.mark.db

WANT = Want(1, 0, ["payments"], ["payments Debit"], [], {})


class Lost:
    """A claim that was lost before its outcome could be settled."""

    def __init__(self, dsn: str, connection: psycopg.Connection) -> None:
        claims = Claims("cmdbus", 30)
        claims.register(connection, "tester")
        self.record: Record = _record_of_one()
        self.held = Holding(claims, self.record.seat)
        self.done = Done(claims, self.record, self.held)
        [claim] = claims.step(connection, [], WANT)[1]
        self.held.take([claim], lambda: False)
        connection.execute("DELETE FROM cmdbus.ready")
        self.done.not_settled(claim, 3)
        self.dsn = dsn

    def hand(self) -> Hand:
        return Hand(Unpooled(lambda: connect(self.dsn)))

    def place(self) -> Place:
        return self.record.take_place()[1]

    @property
    def counted(self) -> object:
        return self.record.metrics()["cmdbus_lost_leases_total"]


@pytest.fixture
def lost(dsn: str) -> Iterator[Lost]:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        bus.send("payments", "Debit")
        yield Lost(dsn, connection)


def test_an_error_while_an_end_is_counted_keeps_no_claim(lost: Lost) -> None:
    hand, ended = lost.hand(), lost.place()
    cells, ended.counters = ended.counters, None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        lost.done.find_out(hand, ended)
    ended.counters = cells
    lost.done.find_out(hand, ended)
    assert (lost.counted, lost.held.known()) == (1, set())
    hand.close()


def test_two_threads_that_find_out_the_same_end_count_it_once(lost: Lost) -> None:
    errors: list[BaseException] = []

    def find_out() -> None:
        hand = lost.hand()
        try:
            lost.done.find_out(hand, lost.place())
        except BaseException as error:
            errors.append(error)
        finally:
            hand.close()

    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with connect(lost.dsn) as watcher, psycopg.connect(lost.dsn) as busy:
        busy.execute("LOCK TABLE cmdbus.event IN ACCESS EXCLUSIVE MODE")
        threads = [threading.Thread(target=find_out) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually(lambda: watcher.execute(waiting).fetchone() == (2,))
        busy.rollback()
        for thread in threads:
            thread.join(20)
    assert (errors, lost.counted, lost.held.known()) == ([], 1, set())
