"""What a command costs that no clock is needed for: round trips, statements, rows written,
indexes, and the columns and arguments of the claim and of the settlement.

A change that raises one of these numbers makes every command dearer, also for applications
that do not use what the change is for.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from claiming import Claimer, ended, want
from eventually import eventually
from handlers import connect
from wire import Wire

from cmdbus import CommandBus, SendRequest
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import Finished
from cmdbus.worker.claims.transactions import begin, commit

pytestmark = pytest.mark.new_database

#: A session's first uses of a statement prepare it; from then on the numbers are steady.
WARM = 7
BATCH = 100
TIMEOUTS = Timeouts()
WITHIN_S = 20

WRITES = """
    SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del
    FROM pg_stat_xact_user_tables WHERE n_tup_ins + n_tup_upd + n_tup_del > 0"""
COUNTED = ("inserted", "updated", "hot", "deleted")
INSERTED = """
    SELECT relname, n_tup_ins FROM pg_stat_user_tables
    WHERE n_tup_ins > 0 AND relname <> 'migration'"""
INDEXES = """
    SELECT indexdef FROM pg_indexes
    WHERE schemaname = 'cmdbus' AND tablename = %s ORDER BY indexname"""
SIGNATURE = """
    SELECT pronargs, relnatts FROM pg_proc
    LEFT JOIN (pg_type t JOIN pg_class c ON c.oid = typrelid) ON t.oid = prorettype
    WHERE pronamespace = 'cmdbus'::regnamespace AND proname = %s"""


@pytest.fixture
def wire(dsn: str) -> Iterator[Wire]:
    with Wire(dsn) as proxy:
        yield proxy


def send(dsn: str, count: int) -> None:
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * count)


def counted(connection: psycopg.Connection) -> dict[str, Counter[str]]:
    """By table; the partitions of history are one."""
    found: dict[str, Counter[str]] = {}
    for name, *counts in connection.execute(WRITES).fetchall():
        table = "finished" if name.startswith("finished") else name
        found[table] = Counter(dict(zip(COUNTED, counts, strict=True)))
    return found


@contextmanager
def writes(connection: psycopg.Connection) -> Iterator[dict[str, dict[str, int]]]:
    """A transaction, and afterwards the rows that it has written."""
    found: dict[str, dict[str, int]] = {}
    with connection.transaction():
        before = counted(connection)
        yield found
        for table, counts in counted(connection).items():
            if more := counts - before.get(table, Counter()):
                found[table] = dict(more)


def test_a_send_is_one_statement_in_one_round_trip(wire: Wire) -> None:
    with CommandBus(wire.dsn) as bus:
        for _ in range(WARM):
            bus.send("payments", "Debit")
        wire.counts.clear()
        for _ in range(10):
            bus.send("payments", "Debit")
    assert (wire.statements, wire.round_trips) == (10, 10)


def test_a_bulk_send_has_the_same_statements_however_many_it_sends(wire: Wire) -> None:
    counts = []
    with CommandBus(wire.dsn) as bus:
        for size in [10] * WARM + [10, 1_000]:
            wire.counts.clear()
            bus.send_many([SendRequest("payments", "Debit")] * size)
            counts.append((wire.statements, wire.round_trips))
    assert counts[-2:] == [(5, 5)] * 2


def test_settling_a_run_and_claiming_the_next_is_one_statement_in_one_round_trip(
    dsn: str, wire: Wire
) -> None:
    send(dsn, BATCH * (WARM + 2))
    with connect(wire.dsn) as connection:
        claimer = Claimer(connection)
        done: list[Finished] = []
        for _ in range(WARM):
            done = [ended(claim) for claim in claimer.settle_and_claim(done, want(BATCH))]
        wire.counts.clear()
        assert len(claimer.settle_and_claim(done, want(BATCH))) == BATCH
        assert (wire.statements, wire.round_trips) == (1, 1)


def test_a_command_with_a_transaction_has_two_round_trips_of_its_own_beside_the_claim(
    dsn: str, wire: Wire
) -> None:
    """Its BEGIN with the first statement's limits, its settlement, and COMMIT."""
    send(dsn, WARM + 1)
    with connect(wire.dsn) as connection:
        claimer = Claimer(connection)
        statements = claimer.statements
        for _ in range(WARM + 1):
            claim = claimer.claim_one()
            wire.counts.clear()
            begin(
                statements,
                connection,
                statement=TIMEOUTS.statement,
                idle=TIMEOUTS.thread,
                marker="1:1",
            )
            lost, prepared = statements.settle_within(connection, [ended(claim)], "1:1")
            assert lost == []
            commit(statements, connection, prepared)
        assert (wire.statements, wire.round_trips) == (3, 3)


def test_a_send_writes_one_row(dsn: str) -> None:
    """In a caller's transaction the id is noted, too: the caller may send it again."""
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        for _ in range(10):
            bus.send("payments", "Debit")
        with writes(connection) as written:
            bus.send("payments", "Debit", connection=connection)
        assert written == {"ready": {"inserted": 1}, "identity": {"inserted": 1}}
    with connect(dsn) as connection:  # its own session reports when it ends

        def inserted() -> dict[str, int]:
            return dict(connection.execute(INSERTED).fetchall())

        eventually(lambda: inserted() == {"ready": 11, "identity": 1}, WITHIN_S)


def test_a_claim_writes_each_row_once_and_a_settlement_moves_it(
    dsn: str, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """Nearly all claims are HOT: no index is touched."""
    send(dsn, BATCH)
    with writes(connection) as written:
        claimed = claimer.claim(BATCH)
    assert written["ready"].pop("hot") > 0.8 * BATCH
    # Once a lease, a claimer notes when its leases end.
    assert written == {"ready": {"updated": BATCH}, "lease": {"inserted": 1}}
    with writes(connection) as written:
        claimer.settle_and_claim([ended(claim) for claim in claimed], want(BATCH))
    assert written == {"ready": {"deleted": BATCH}, "finished": {"inserted": BATCH}}


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        (
            "ready",
            [
                "USING btree (batch_id, created_at, id) WHERE (batch_id IS NOT NULL)",
                "USING btree (command_id, id)",
                "USING btree (expires_at)"
                " WHERE ((expires_at IS NOT NULL) AND (attempts = 0) AND (losses = 0))",
                "USING btree (domain, key, created_at) WHERE (key IS NOT NULL)",
                "USING btree (domain, type, COALESCE((key)::text, ''::text))"
                " WHERE (lane_position IS NOT NULL)",
                "USING btree (domain, priority, id) WHERE (losses > 0)",
                "USING btree (domain, priority, id)",
            ],
        ),
        (
            "finished",
            [
                "USING btree (batch_id, status, created_at) WHERE (batch_id IS NOT NULL)",
                "USING btree (created_at)",
                "USING btree (domain, command_id, finished_at)",
            ],
        ),
    ],
)
def test_the_tables_of_the_hot_path_have_no_further_index(
    connection: psycopg.Connection, table: str, columns: list[str]
) -> None:
    indexes = [row[0] for row in connection.execute(INDEXES, (table,)).fetchall()]
    assert [f"USING{index.partition(' USING')[2]}" for index in indexes] == columns


@pytest.mark.parametrize(
    ("function", "arguments", "columns"), [("claim", 11, 17), ("complete", 8, None)]
)
def test_the_claim_and_the_settlement_take_and_return_no_more(
    connection: psycopg.Connection, function: str, arguments: int, columns: int | None
) -> None:
    assert connection.execute(SIGNATURE, (function,)).fetchall() == [(arguments, columns)]
