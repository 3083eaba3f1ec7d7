"""The counts of waiting commands, by domain and state."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EMFILE

import psycopg
import pytest
from claiming import Claimer, ended
from eventually import eventually
from proxy import Proxy
from psycopg.conninfo import make_conninfo
from queries import rows, scalar
from roles import role
from test_floors import ROWS_READ

from cmdbus import CommandBus, SendRequest
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind
from cmdbus.worker.probes.database import DepthGauge
from cmdbus.worker.probes.responses import Gauges


def first(asked: DepthGauge) -> Gauges:
    """The first answer, whatever it says."""

    def known() -> list[Gauges]:
        found = asked.read()
        return [] if found.up is None else [found]

    return eventually(known)[0]


@contextmanager
def gauge(
    connect: Callable[[], Connection], within: float = 10.0, timeout: float = 0.02
) -> Iterator[DepthGauge]:
    made = DepthGauge(connect, ClaimStatements("cmdbus", 30), within, timeout=timeout)
    made.start()
    try:
        yield made
    finally:
        made.stop(5)


def test_depths_are_counted_by_domain_and_state(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 4)
    bus.send_many([SendRequest("orders", "Place", delay=60)] * 2)
    trouble = Outcome(kind=OutcomeKind.TROUBLE, code="GONE", message="never", details="{}")
    claimer.settle(ended(claimer.claim_one(), trouble))
    claimer.claim_one()
    with gauge(lambda: psycopg.connect(dsn, autocommit=True)) as asked:
        assert eventually(lambda: asked.read()[0]) == {
            ("payments", "ready"): 2,
            ("payments", "in_progress"): 1,
            ("payments", "troubleshooting"): 1,
            ("orders", "scheduled"): 2,
        }


def test_the_oldest_waiting_command_of_each_domain_has_an_age(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 2)
    bus.send("orders", "Place", delay=60)
    connection.execute(
        "UPDATE cmdbus.ready SET created_at = created_at - interval '1 hour'"
        " WHERE id = (SELECT min(id) FROM cmdbus.ready)"
    )
    with gauge(lambda: psycopg.connect(dsn, autocommit=True)) as asked:
        oldest = eventually(lambda: asked.read().oldest)
    assert oldest is not None and [*oldest] == ["payments"] and 3600 <= oldest["payments"] < 3700


def test_nodes_are_counted_by_state(dsn: str, connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO cmdbus.published_node SELECT n, 'shop', 'host' || n,"
        " now() - interval '1 hour' * (n %% 2), n %% 3 = 0, '{}', '{}', '{}'"
        " FROM generate_series(1, 6) n",
        (),
    )
    with gauge(lambda: psycopg.connect(dsn, autocommit=True)) as asked:
        nodes = eventually(lambda: asked.read().nodes)
    assert nodes == {"running": 2, "stopped": 2, "lost": 2}


@pytest.mark.parametrize("kind", ["worker", "operator", "monitor"])
def test_roles_of_these_kinds_may_count(dsn: str, kind: str) -> None:
    with role(dsn, kind) as connection, gauge(lambda: connection) as asked:
        assert None not in first(asked)


def test_a_role_that_may_not_count_is_told_from_a_database_that_is_away(dsn: str) -> None:
    # The first question waits for its answer: after that the connection is closed.
    with role(dsn, "producer") as connection, gauge(lambda: connection, timeout=10.0) as asked:
        assert first(asked) == Gauges(up=True)
    with gauge(lambda: psycopg.connect("host=/nowhere")) as asked:
        assert first(asked) == Gauges(up=False)


def test_commands_that_no_living_node_claims_are_counted_with_the_reason(
    dsn: str, bus: CommandBus
) -> None:
    bus.send_many([SendRequest("payments", "Render")] * 3)
    rows(dsn, "SELECT cmdbus.declare_tags('shop', '{\"payments Render\": [\"gpu\"]}')")
    with gauge(lambda: psycopg.connect(dsn, autocommit=True)) as asked:
        counts = eventually(lambda: asked.read().unreachable)
    assert counts == {("payments", "Render", "tags"): 3}


def test_while_no_type_has_tags_no_row_is_read_for_that(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    with connection.transaction():
        bus.send_many([SendRequest("payments", "Render")] * 100, connection=connection)
        before = scalar(connection, ROWS_READ.format("xact_"))
        assert connection.execute("SELECT FROM cmdbus.count_unreachable()").fetchall() == []
        assert scalar(connection, ROWS_READ.format("xact_")) == before


def test_depths_are_known_while_batches_cannot_be_counted(dsn: str, bus: CommandBus) -> None:
    bus.create_batch("payments", [SendRequest("payments", "Debit")])
    impatient = make_conninfo(dsn, options="-c statement_timeout=100ms")
    with psycopg.connect(dsn) as locking:
        locking.execute("LOCK TABLE cmdbus.batch_state IN ACCESS EXCLUSIVE MODE")
        with gauge(lambda: psycopg.connect(impatient, autocommit=True)) as asked:

            def is_known() -> bool:
                """All that can be counted; a busy server may also cancel something else once."""
                found = asked.read()
                assert found.batches is None
                return found.depths == {("payments", "ready"): 1} and found.processes == {}

            eventually(is_known, 20)


def test_a_flood_of_domains_does_not_fill_the_memory_of_who_counts_them(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 2)
    connection.execute(
        "INSERT INTO cmdbus.ready (domain, priority, command_id, type, data, correlation_id)"
        " SELECT 'd' || n, 5, gen_random_uuid(), 'Debit', '1', gen_random_uuid()"
        " FROM generate_series(1, 10001) n"
    )
    depths = ClaimStatements("cmdbus", 30).rows(connection, "read_depths")
    assert len(depths) == 10_000
    assert ("payments", "ready", 2) in [row[:3] for row in depths]


def test_the_oldest_snapshot_is_measured(dsn: str) -> None:
    """It keeps dead rows, which slow all claims down; a transaction without one does not."""
    statements = ClaimStatements("cmdbus", 30)
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(dsn) as harmless,
        psycopg.connect(dsn) as report,
        gauge(lambda: psycopg.connect(dsn, autocommit=True)) as asked,
    ):
        harmless.execute("SELECT 1")
        assert statements.value(connection, "read_oldest_snapshot") == 0
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1")
        first = statements.value(connection, "read_oldest_snapshot")
        assert 0 < first < statements.value(connection, "read_oldest_snapshot") < 30
        eventually(lambda: asked.read()[0] is not None)
        oldest = asked.read()[1]
        assert oldest is not None and first < oldest < 30


def test_there_is_no_session_before_somebody_asks(dsn: str) -> None:
    sessions = 0

    def connect() -> Connection:
        nonlocal sessions
        sessions += 1
        return psycopg.connect(dsn, autocommit=True)

    with gauge(connect) as unasked:
        assert sessions == 0
        eventually(lambda: unasked.read()[0] is not None)
        unasked.read()
        assert sessions == 1


def test_nobody_waits_for_a_database_that_does_not_answer(dsn: str) -> None:
    """Who asks gets what is known, which is nothing."""
    answers = threading.Event()

    def connect() -> Connection:
        answers.wait()
        return psycopg.connect(dsn, autocommit=True)

    with gauge(connect) as silent:
        assert [silent.read()[0] for _ in range(3)] == [None] * 3
        answers.set()
        assert eventually(lambda: silent.read()[0] is not None)


@pytest.mark.parametrize(
    "error", [DatabaseUnavailableError("it is away"), OSError(EMFILE, "no descriptor is left")]
)
def test_a_database_that_is_away_is_asked_again(dsn: str, error: Exception) -> None:
    away = True

    def connect() -> Connection:
        if away:
            raise error
        return psycopg.connect(dsn, autocommit=True)

    with gauge(connect) as asked:
        assert asked.read()[0] is None
        away = False
        assert eventually(lambda: asked.read()[0] is not None)


def test_a_server_that_goes_silent_during_a_count_is_left(dsn: str) -> None:
    def freeze_at_the_first(data: bytes) -> bytes:
        if b"SELECT" in data and not silent:
            silent.append(True)
            proxy.freeze()
        return data

    silent: list[bool] = []
    with (
        Proxy(dsn, freeze_at_the_first) as proxy,
        gauge(lambda: psycopg.connect(proxy.dsn, autocommit=True), within=1.0) as asked,
    ):
        assert eventually(lambda: asked.read()[0] is not None) and silent
