"""Real poolers between cmdbus and its server."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from fleet import supervised
from guarded import Guarded
from handlers import SOON, handling, running
from pooler import is_installed, pgbouncer
from preflights import checks
from psycopg_pool import ConnectionPool
from queries import rows

from cmdbus import Command, CommandBus, Context, SendRequest
from cmdbus.readiness import Finding
from cmdbus.worker.claims.sessions import session_of

#: As `checks` examines it.
DEFAULT_LADDER = {
    "statement_timeout": 25,
    "pool_timeout": 30,
    "visibility_timeout": 30,
    "thread_timeout": 35,
    "watchdog_timeout": 60,
}

pytestmark = [
    pytest.mark.skipif(not is_installed(), reason="PgBouncer is not installed"),
]


@pytest.mark.parametrize("round_robin", [False, True])
def test_transaction_pooling_is_refused(dsn: str, round_robin: bool) -> None:
    with pgbouncer(dsn, "transaction", server_round_robin=round_robin) as pooled:
        found = checks(pooled)
        assert list(found)[-1] == "pooling", "what follows would be found out of chance"
        assert found["pooling"].finding is Finding.FATAL
        assert "transaction pooling" in found["pooling"].sentence
        assert "use session mode" in found["pooling"].fix


def test_a_session_is_known_by_the_pid_that_the_server_gives_it(dsn: str) -> None:
    with pgbouncer(dsn, "session") as pooled, psycopg.connect(pooled) as connection:
        [[pid]] = connection.execute("SELECT pg_backend_pid()").fetchall()
        assert session_of(connection)[0] == pid != connection.info.backend_pid


def use_bus(bus: CommandBus) -> None:
    """Often enough for the driver to prepare each of the statements, by several threads at once:
    so that none finds the session again that it had before."""

    def work(number: int) -> None:
        for turn in range(12):
            one = bus.send("payments", "Debit", {"n": number}, command_id=uuid4())
            many = bus.send_many([SendRequest("payments", "Debit", turn)] * 3)
            assert len(many) == 3
            found = bus.get("payments", one)
            assert found is not None and found.data == {"n": number}
            bus.cancel("payments", one, reason="a test")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert bus.snapshot("payments")["depth"] == 4 * 12 * 3


def test_a_bus_works_behind_transaction_pooling_without_an_option(dsn: str) -> None:
    with (
        pgbouncer(dsn, "transaction", server_round_robin=True) as pooled,
        CommandBus(pooled) as bus,
    ):
        use_bus(bus)


def test_a_bus_with_a_pool_of_the_callers_can_prepare_no_statements(dsn: str) -> None:
    with (
        pgbouncer(dsn, "transaction", server_round_robin=True) as pooled,
        ConnectionPool(pooled, min_size=4, kwargs={"autocommit": True}, open=True) as pool,
        CommandBus(pool=pool, prepare=False) as bus,
    ):
        use_bus(bus)


def test_a_session_that_a_pooler_ends_charges_no_command(dsn: str) -> None:
    """Its errors name their severity only where those of PostgreSQL have the translated one."""
    begun = list[int]()

    def debit(command: Command, context: Context) -> None:
        begun.append(context.attempt)
        if len(begun) == 1:
            context.connection.execute("SELECT pg_sleep(3)")

    with (
        pgbouncer(dsn, "session", query_timeout=1) as pooled,
        CommandBus(dsn) as bus,
        running(pooled, handling(debit, retry=SOON), concurrency=1),
    ):
        bus.wait("payments", bus.send("payments", "Debit"), timeout=20)
    assert begun == [1, 1]
    assert rows(dsn, "SELECT kind, code FROM cmdbus.event") == [("FAILED", "DATABASE_AWAY")]


@pytest.mark.fleet
@pytest.mark.timeout(90)
def test_what_preflight_advises_for_session_pooling_makes_a_fleet_run(
    guarded: Guarded, tmp_path: Path
) -> None:
    """One finding after another, each mended as its sentence says."""
    with guarded.role("worker") as dsn:
        with pgbouncer(dsn, "session", ignored="extra_float_digits") as pooled:
            refused = checks(pooled)["connection"]
            assert refused.finding is Finding.FATAL
            assert "ignore_startup_parameters = options" in refused.fix
        for _ in range(10):  # A pooler keeps sessions that were opened before.
            with pgbouncer(dsn, "session", ignored="options") as pooled:
                found = [c for c in checks(pooled).values() if c.finding is not Finding.OK]
            if not found:
                break
            [(advice, then)] = re.findall(r'ALTER ROLE "[^"]+" (SET [^;]*)(.*)', found[0].fix)
            assert "pooler" in then and "reconnect" in then
            guarded.alter("ROLE", dsn, advice)
        with (
            pgbouncer(dsn, "session", ignored="options") as pooled,
            supervised(pooled, tmp_path, procs=1, threads=2, **DEFAULT_LADDER) as fleet,
        ):
            fleet.await_completed(fleet.send("Noop", 20))
