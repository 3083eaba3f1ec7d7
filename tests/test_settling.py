"""The size of a settlement; and executions whose claims no longer have a row: each is counted once,
and its claim is freed."""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from uuid import UUID

import psycopg
import pytest
from claiming import Claimer, ended
from eventually import eventually
from handlers import beside, claim, connect, handling, running
from queries import await_lock_waits

from cmdbus import Command, CommandBus, Context, SendRequest
from cmdbus.board.slots import Slot
from cmdbus.worker.claims.claim import Claim, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import ThreadConnection
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind, completed
from cmdbus.worker.pipeline.in_flight import InFlight
from cmdbus.worker.pipeline.telemetry import Telemetry
from cmdbus.worker.pipeline.unsettled import MAX_BYTES, Unsettled, first_part
from cmdbus.worker.standalone import telemetry_of_one


class Lost:
    """A claim that was lost before its outcome could be settled."""

    def __init__(self, dsn: str, connection: psycopg.Connection) -> None:
        statements = ClaimStatements("cmdbus", 30)
        statements.register(connection, "tester")
        self.record: Telemetry = telemetry_of_one()
        self.held = InFlight(statements, self.record.seat)
        self.done = Unsettled(statements, self.record, self.held)
        [claimed] = claim(statements, connection)
        [entry] = self.held.take([claimed], lambda: False)
        self.held.start(entry)
        self.held.finish(entry)
        connection.execute("DELETE FROM cmdbus.ready")
        self.done.not_settled(claimed, 3, 0.1)
        self.dsn = dsn

    def connection(self) -> ThreadConnection:
        return ThreadConnection(lambda: connect(self.dsn))

    def slot(self) -> Slot:
        return self.record.acquire_slot()

    @property
    def counted(self) -> object:
        return self.record.metrics()["cmdbus_lost_leases_total"]


@pytest.fixture
def lost(dsn: str) -> Iterator[Lost]:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        bus.send("payments", "Debit")
        yield Lost(dsn, connection)


def test_an_error_while_an_end_is_counted_keeps_no_claim(lost: Lost) -> None:
    connection, ended = lost.connection(), lost.slot()
    cells, ended.counters = ended.counters, None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        lost.done.find_out(connection, ended)
    ended.counters = cells
    lost.done.find_out(connection, ended)
    assert (lost.counted, lost.held.known()) == (1, set())
    connection.close()


def test_two_threads_that_find_out_the_same_end_count_it_once(lost: Lost) -> None:
    def find_out() -> None:
        with closing(lost.connection()) as connection:
            lost.done.find_out(connection, lost.slot())

    with psycopg.connect(lost.dsn) as busy:
        busy.execute("LOCK TABLE cmdbus.event IN ACCESS EXCLUSIVE MODE")
        with beside(find_out), beside(find_out):
            await_lock_waits(lost.dsn, 2)
            busy.rollback()
    assert (lost.counted, lost.held.known()) == (1, set())


def finished(*results: str) -> list[Finished]:
    claimed = Claim(
        *("payments", 5, 1, 1, UUID(int=1), "Debit", "null", 0, 0, None, UUID(int=1), None),
        created_at=datetime.now(UTC),
        waited=0.0,
    )
    return [Finished(claimed, completed(result), 3, 0.0) for result in results]


@pytest.mark.parametrize("results", [[None, None], [None, {"paid": [1]}]], ids=str)
def test_each_result_of_a_settlement_is_kept(
    bus: CommandBus, claimer: Claimer, results: list[object]
) -> None:
    sent = bus.send_many([SendRequest("payments", "Debit")] * 2)
    claims = claimer.claim(2)
    done = [ended(claim, completed(each)) for claim, each in zip(claims, results, strict=True)]
    assert claimer.settle_as_batch(*done) == []
    kept = {record.command_id: record.result for record in bus.query("payments")}
    assert kept == dict(zip(sent, results, strict=True))


@pytest.mark.parametrize(
    ("results", "first"),
    [
        ([], 0),
        (["x"], 1),
        (["x" * 900_000] * 9, 9),
        (["x" * 900_000] * 20, 9),
        (["\N{EURO SIGN}" * 300_000] * 20, 9),
        (["x"] * 10_000, 10_000),
    ],
)
def test_a_settlement_has_a_bounded_number_of_bytes(results: list[str], first: int) -> None:
    done = finished(*results)
    some, rest = first_part(done)
    assert (len(some), some + rest) == (first, done)


def test_a_settlement_has_one_outcome_however_large_it_is() -> None:
    [large, small] = finished("x", "y")
    large = large._replace(
        outcome=Outcome(kind=OutcomeKind.COMPLETED, result="x" * (MAX_BYTES + 1))
    )
    assert first_part([large, small]) == ([large], [small])


def test_large_results_that_wait_together_are_settled_in_several_transactions(
    dsn: str, bus: CommandBus
) -> None:
    count, go, returned = 24, threading.Event(), list[int]()

    def debit(command: Command, context: Context) -> str:
        go.wait(10)
        returned.append(1)
        return "x" * 900_000

    sizes = "SELECT count(*), sum(octet_length(result::text)) FROM cmdbus.finished GROUP BY xmin"
    bus.send_many([SendRequest("payments", "Debit") for _ in range(count)])
    with running(dsn, handling(debit), concurrency=count + 1), psycopg.connect(dsn) as other:
        eventually(lambda: bus.snapshot("payments")["in_progress"] == count)
        other.rollback()
        other.execute("LOCK TABLE cmdbus.finished IN ACCESS EXCLUSIVE MODE")
        go.set()
        eventually(lambda: len(returned) == count)
        other.rollback()
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
        found = other.execute(sizes).fetchall()
    assert sum(settled for settled, _ in found) == count
    assert max(size for _, size in found) <= MAX_BYTES
