"""A fleet whose database goes away and returns: no process is killed, no command charged, lost or
doubled."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psutil
import psycopg
import pytest
from eventually import eventually, stays
from fleet import Fleet, kill, make_effects, supervised
from handlers import Gate, connect, effects, running
from psycopg.conninfo import make_conninfo

from cmdbus import (
    Command,
    CommandBus,
    Context,
    DatabaseUnavailableError,
    HandlerRegistry,
    SendRequest,
    Status,
)
from cmdbus.board.health import Health
from cmdbus.board.records import Role
from cmdbus.database.schema import install
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.worker.claims.claim import ClaimRequest
from cmdbus.worker.claims.claim_statements import ClaimStatements

pytestmark = pytest.mark.fleet

_SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND starts_with(application_name, 'cmdbus:')"
)


@pytest.fixture
def own(directory: Path) -> Iterator[EmbeddedPostgres]:
    """A durable server of this test's own, to be stopped, with the schema."""
    with EmbeddedPostgres(directory) as server:
        install(server.dsn)
        make_effects(server.dsn)
        yield server


def is_there(server: EmbeddedPostgres) -> bool:
    try:
        psycopg.connect(server.dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def leave_own_effect(command: Command, context: Context) -> None:
    context.connection.execute("INSERT INTO effect VALUES (%s)", (command.command_id,))


def database_away(fleet: Fleet) -> bool:
    return fleet.look().with_role(Role.STEWARD)[0].levels.database_away


def busy(fleet: Fleet) -> list[UUID]:
    """Commands of which some are done, and some run at this moment, in their transactions."""
    ids = fleet.send("Debit", 150, data=0.02)
    eventually(lambda: fleet.outcomes(ids)["COMPLETED", 1], 10)
    return ids


def test_a_fleet_survives_restarts_and_crashes_of_its_database(
    own: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Fast, immediate, and a backend that is killed."""
    with supervised(own.dsn, tmp_path, procs=1) as fleet:
        before, steward = fleet.pids(), fleet.steward()
        ids = busy(fleet)
        own.stop("fast")
        own.start()
        ids += busy(fleet)
        own.stop("immediate")
        own.start()
        ids += busy(fleet)
        backend = eventually(lambda: fleet.query(_SESSIONS))[0][0]
        os.kill(backend, signal.SIGKILL)
        eventually(lambda: not psutil.pid_exists(backend) and is_there(own))
        fleet.await_completed(ids)
        assert fleet.effects(ids) == {1: 450}
        assert fleet.pids() == before
        assert fleet.steward() == steward
        fleet.await_health()


def test_a_fleet_waits_for_a_server_that_waits_for_its_synchronous_standby(
    own: EmbeddedPostgres, tmp_path: Path
) -> None:
    """No timeout of the server ends such a COMMIT."""
    local = make_conninfo(own.dsn, options="-c synchronous_commit=local")
    with supervised(own.dsn, tmp_path, procs=1) as fleet, connect(local) as admin:
        before = fleet.pids()
        # Else the steward waits with its arming, and nothing wakes the worker.
        eventually(lambda: fleet.look().listening and fleet.look().armed)
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
        eventually(lambda: fleet.query("SHOW synchronous_standby_names") == [("nobody",)])
        admin.execute("SELECT cmdbus.send('shop', 'Noop') FROM generate_series(1, 20)")
        eventually(
            lambda: {s.health for s in fleet.workers().values()} == {Health.DATABASE_AWAY}, 20
        )
        stays(lambda: fleet.pids() == before, 5)
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        admin.execute("SELECT pg_reload_conf()")
        fleet.await_completions(20)
        fleet.await_health()
        assert fleet.pids() == before
        charged = "SELECT count(*) FROM cmdbus.finished WHERE attempts <> 1"
        assert fleet.query(charged) == [(0,)]


def test_no_command_completes_without_its_effect_after_a_restore_to_an_earlier_point(
    own: EmbeddedPostgres,
) -> None:
    """The restored server gives the ids and tokens of running commands to new ones."""
    earlier, data = own.directory / "earlier", own.directory / "data"
    own.stop("fast")
    subprocess.run(["cp", "-a", data, earlier], check=True)
    own.start()
    registry, gate, other = HandlerRegistry(), Gate(), ClaimStatements("cmdbus", 30)
    registry.register("shop", "Gate", gate)
    registry.register("shop", "Debit", leave_own_effect)
    with running(own.dsn, registry, name="survivor", concurrency=4) as worker:
        with CommandBus(own.dsn) as bus:
            bus.send_many([SendRequest("shop", "Gate")] * 4)
            gate.wait_for(4)
        own.stop("immediate")
        shutil.rmtree(data)
        earlier.rename(data)
        own.start()
        with CommandBus(own.dsn) as bus, connect(own.dsn) as session:
            ids = bus.send_many([SendRequest("shop", "Debit")] * 4)
            request = ClaimRequest(4, 0, ["shop"], ["shop Debit"], [], {})
            _, claims = other.settle_and_claim(session, [], request)
            assert [(claim.id, claim.token) for claim in claims] == [(n, 1) for n in range(1, 5)]
            gate.open.set()
            eventually(lambda: worker.metrics()["cmdbus_lost_leases_total"] == 4, 10)
            assert {row.status for row in bus.query()} == {Status.IN_PROGRESS}
            other.release(session, claims)
            ended = [bus.wait("shop", id_, 10) for id_ in ids]
            assert {row.status for row in ended} == {Status.COMPLETED}
            assert {row.worker for row in ended} == {"survivor"}, "registered again"
        assert effects(own.dsn) == 4


def test_a_server_that_lets_no_client_write_is_away(own: EmbeddedPostgres, tmp_path: Path) -> None:
    """In the middle of a session, for new ones, and for a worker that boots then."""
    with supervised(own.dsn, tmp_path) as fleet:
        before, steward = fleet.pids(), fleet.steward()
        ids = busy(fleet)
        fleet.query("ALTER SYSTEM SET default_transaction_read_only = on")
        fleet.query("SELECT pg_reload_conf()")
        eventually(lambda: {s.health for s in fleet.workers().values()} == {Health.DATABASE_AWAY})
        os.kill(before[0], signal.SIGKILL)
        fleet.await_saying("waiting until it is there")
        with psycopg.connect(own.dsn, options="-c default_transaction_read_only=off") as writer:
            writer.autocommit = True
            writer.execute("ALTER SYSTEM RESET default_transaction_read_only")
            writer.execute("SELECT pg_reload_conf()")
        ids += busy(fleet)
        fleet.await_completed(ids)
        assert fleet.effects(ids) == {1: 300}
        after = fleet.wait_until_ready()
        assert (after[1], fleet.steward()) == (before[1], steward)
        assert len(fleet.messages(level="error")) == 1, "that one was killed"


def test_an_outage_that_is_longer_than_the_watchdog_kills_no_process(
    own: EmbeddedPostgres, tmp_path: Path
) -> None:
    """No process is killed, the log is not flooded, work resumes by itself. And
    a stop while the database is away."""
    ladder = {
        "statement_timeout": 1,
        "pool_timeout": 1,
        "visibility_timeout": 1.5,
        "thread_timeout": 2,
        "watchdog_timeout": 3,
    }
    with supervised(own.dsn, tmp_path, procs=1, **ladder) as fleet:
        before, steward = fleet.pids(), fleet.steward()
        ids = busy(fleet)
        own.stop("fast")
        eventually(lambda: {s.health for s in fleet.workers().values()} == {Health.DATABASE_AWAY})
        eventually(lambda: database_away(fleet))
        before_outage = len(fleet.messages())
        stays(lambda: len(fleet.messages()) <= before_outage + 10, 3.5)
        own.start()
        fleet.await_completed(ids)
        # The steward and the worker, each once.
        said_back = fleet.await_saying("the database is back after", 2)
        assert all(float(line.split()[-2]) >= 3.5 for line in said_back)
        ids += fleet.send("Debit", 10)
        fleet.await_completed(ids)
        assert fleet.effects(ids) == {1: 160}
        assert (fleet.pids(), fleet.steward()) == (before, steward)
        assert set(fleet.look().restarts.values()) == {0}
        assert len(fleet.logged("the database is back after")) == 2
        fleet.await_health()
        own.stop("fast")
        try:
            assert fleet.stop() == 0
            fleet.assert_nothing_left()
        finally:
            own.start()


def test_claims_that_no_steward_could_release_are_left_to_the_next_supervisor(
    own: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Of a process that died while the database was away, as it was until the end."""
    options = {"procs": 1, "threads": 1, "drain_timeout": 0.1, "wake": "poll"}
    ladder = {"visibility_timeout": 60, "thread_timeout": 70, "watchdog_timeout": 90}
    with supervised(own.dsn, tmp_path, **options, **ladder) as fleet:
        ids = fleet.start_gates(1)
        before = fleet.pids()
        own.stop("immediate")
        kill(before[0])
        eventually(lambda: fleet.look().with_role(Role.DEAD))
        assert fleet.stop() == 5
        assert fleet.logged("what 1 dead process had claimed is not released")
        assert fleet.logged("has stopped: commands may be left without an outcome")
        assert fleet.board_path.exists()
        own.start()
        fleet.open_gate()
        fleet.start()
        fleet.await_completed(ids)


@pytest.mark.long
def test_what_ended_during_an_outage_is_settled_soon_after_it(
    own: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Within 2 s, and a busy machine; attempts to reconnect that back off took 12 to 16 s."""
    ladder = {
        "statement_timeout": 25,
        "pool_timeout": 30,
        "visibility_timeout": 30,
        "thread_timeout": 35,
        "watchdog_timeout": 60,
    }
    with supervised(own.dsn, tmp_path, **ladder) as fleet:
        ids = fleet.send("Sleep", 8, data=2)
        eventually(lambda: len(fleet.executing("Sleep")) == 8)
        own.stop("immediate")
        # Of itself it would have asked the database when it renews leases next.
        eventually(lambda: database_away(fleet), 4)
        stays(lambda: database_away(fleet), 20)
        own.start()
        fleet.await_completed(ids, within=5)


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [70, 135])
def test_after_a_long_outage_the_fleet_and_producers_go_on_at_once(
    own: EmbeddedPostgres, tmp_path: Path, seconds: float
) -> None:
    """Pauses between attempts to connect do not grow with the outage."""
    with supervised(own.dsn, tmp_path) as fleet, CommandBus(own.dsn) as bus:
        bus.wait("shop", bus.send("shop", "Debit"), 20)
        pids = fleet.pids()
        own.stop("fast")
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with pytest.raises(DatabaseUnavailableError) as raised:
                bus.send("shop", "Debit")
            assert "busy" not in str(raised.value)
            time.sleep(1)
        own.start()
        back = time.monotonic()
        first = bus.send("shop", "Debit")
        assert bus.wait("shop", first, 60).status is Status.COMPLETED
        assert time.monotonic() - back < 2
        assert fleet.pids() == pids


@pytest.mark.fleet(procs=1)
def test_sessions_that_are_terminated_are_made_anew(fleet: Fleet) -> None:
    """Those of handlers in their transactions, of leaders, and the listener's."""
    before, steward = fleet.pids(), fleet.steward()
    ids = fleet.start_gates(4)
    for (pid,) in fleet.query(_SESSIONS):
        fleet.query("SELECT pg_terminate_backend(%s)", pid)
    fleet.open_gate()
    ids += fleet.send("Debit", 50)
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 54}
    eventually(lambda: fleet.look().listening and fleet.look().armed)
    fleet.await_completed(fleet.send("Noop"))
    assert (fleet.pids(), fleet.steward()) == (before, steward)
