"""A right that the worker's role lacks is waited for: it is no fault of a command."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from fleet import kill, supervised
from guarded import Guarded
from handlers import ONCE, connect, do_nothing, handling, running
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from cmdbus import Command, CommandBus, Context, PermanentCommandError, SendRequest
from cmdbus.board.health import Health
from cmdbus.database.schema import install
from cmdbus.readiness import Finding
from cmdbus.settings import Settings
from cmdbus.worker.boot.preflight import preflight
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import Cause, cause_of
from cmdbus.worker.waiting.timers import Timers


def leave_effect(command: Command, context: Context) -> None:
    context.connection.execute("INSERT INTO public.effect VALUES (%s)", (command.command_id,))


@pytest.fixture
def workers(guarded: Guarded) -> Iterator[str]:
    """The DSN of a role with a worker's rights, in a database of its own."""
    with guarded.role("worker") as dsn:
        yield dsn


@pytest.fixture
def worker_role(workers: str) -> str:
    return str(conninfo_to_dict(workers)["user"])


@pytest.fixture
def dsn(guarded: Guarded, workers: str, worker_role: str) -> str:
    """The owner's, of the same database."""
    dsn = make_conninfo(guarded.embedded.dsn, dbname=worker_role)
    with connect(dsn) as admin:
        admin.execute("CREATE TABLE public.effect (command_id uuid)")
    return dsn


@pytest.fixture
def bus(dsn: str) -> Iterator[CommandBus]:
    with CommandBus(dsn) as bus:
        yield bus


@contextmanager
def revoked(dsn: str, right: str, role: str) -> Iterator[None]:
    with connect(dsn) as admin:
        admin.execute(f"REVOKE {right} FROM {role}".encode())
        yield
        admin.execute(f"GRANT {right} TO {role}".encode())


@pytest.mark.parametrize(
    "right",
    [
        "INSERT ON cmdbus.finished",
        "INSERT ON cmdbus.event",
        "DELETE ON cmdbus.ready",
        "EXECUTE ON FUNCTION cmdbus.settle",
    ],
)
def test_a_missing_right_charges_no_command_and_moves_none_to_troubleshooting(
    dsn: str,
    bus: CommandBus,
    workers: str,
    worker_role: str,
    right: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither of those that run when it is revoked, nor of those that wait."""
    revoked_now = threading.Event()

    def trouble(command: Command, context: Context) -> None:
        revoked_now.wait(20)
        raise PermanentCommandError("GONE", "never")

    registry = handling(do_nothing, "Good", retry=ONCE)
    registry.register("payments", "Pay", leave_effect, retry=ONCE)
    registry.register("payments", "Trouble", trouble)
    with connect(dsn) as admin:
        admin.execute(f"GRANT INSERT ON public.effect TO {worker_role}".encode())
    ids = [bus.send("payments", type) for type in ("Trouble", "Good", "Pay") for _ in range(5)]
    with running(workers, registry, concurrency=2):
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 2)
        with revoked(dsn, right, worker_role):
            revoked_now.set()
            eventually(lambda: "cannot be stored yet (permission denied" in caplog.text)
            assert bus.troubleshooting.count("payments") == 0
        records = [bus.wait("payments", id_) for id_ in ids]
    assert {(r.status, r.error_code) for r in records[:5]} == {("IN_TROUBLESHOOTING_QUEUE", "GONE")}
    assert {(r.status, r.attempts) for r in records[5:]} == {("COMPLETED", 1)}
    with connect(dsn) as admin:
        assert admin.execute("SELECT count(*) FROM public.effect").fetchone() == (5,)


def test_a_process_that_cannot_settle_for_want_of_a_right_does_not_stay_healthy(
    dsn: str, bus: CommandBus, workers: str, worker_role: str
) -> None:
    """It can claim, and each command's transaction fails at its end."""
    with connect(dsn) as admin:
        admin.execute(f"GRANT INSERT ON public.effect TO {worker_role}".encode())
    with running(workers, handling(leave_effect, "Pay", retry=ONCE), concurrency=1) as worker:
        bus.wait("payments", bus.send("payments", "Pay"), 10)
        with revoked(dsn, "DELETE ON cmdbus.ready", worker_role):
            ids = [bus.send("payments", "Pay") for _ in range(3)]
            eventually(lambda: worker.health.health is Health.DEGRADED, 20)
            assert worker.metrics()["claim_failures"] == 0
        records = [bus.wait("payments", id_, 15) for id_ in ids]
        assert {(r.status, r.attempts) for r in records} == {("COMPLETED", 1)}
        eventually(lambda: worker.health.health is Health.HEALTHY)


def test_row_security_that_hides_commands_is_waited_for_as_a_missing_right_is(
    dsn: str, bus: CommandBus, workers: str, worker_role: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a policy the queue would look empty; some services switch it on for all tables."""
    hidden = threading.Event()

    def pay(command: Command, context: Context) -> None:
        leave_effect(command, context)
        hidden.wait(20)

    ids = [bus.send("payments", "Pay") for _ in range(4)]
    switch = "ALTER TABLE cmdbus.ready {} ROW LEVEL SECURITY"
    with connect(dsn) as admin:
        admin.execute(f"GRANT INSERT ON public.effect TO {worker_role}".encode())
        with running(workers, handling(pay, "Pay", retry=ONCE), concurrency=2) as worker:
            eventually(lambda: bus.snapshot("payments")["in_progress"] == 2)
            admin.execute(switch.format("ENABLE").encode())
            hidden.set()
            eventually(lambda: "by row-level security policy for table" in caplog.text)
            eventually(lambda: worker.health.consecutive_failures > 1)
            settings = Settings(dsn=workers, app="cmdbus.worker.demo:registry")
            [check] = [check for check in preflight(settings) if check.name == "rights"]
            assert check.finding is Finding.FATAL
            assert "lacks BYPASSRLS for the row security of ready" in check.sentence
            admin.execute(switch.format("DISABLE").encode())
            records = [bus.wait("payments", id_) for id_ in ids]
        assert {(r.status, r.attempts) for r in records} == {("COMPLETED", 1)}
        assert admin.execute("SELECT count(*) FROM public.effect").fetchone() == (4,)


def test_due_commands_are_promoted_when_a_missing_right_is_granted(
    dsn: str, bus: CommandBus, workers: str, worker_role: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus.send_many([SendRequest("payments", "Debit", delay=0.01)] * 3)
    timers = Timers(ClaimStatements("cmdbus", 30), ["payments"], ["payments Debit"])
    with connect(workers) as steward:
        with revoked(dsn, "DELETE ON cmdbus.scheduled", worker_role):
            eventually(lambda: timers.promote_and_read(steward, leases=False) and caplog.text)
            for _ in range(20):
                timers.promote_and_read(steward, leases=False)
        eventually(lambda: timers.promote_and_read(steward, leases=False) > 0.0)
    assert bus.snapshot("payments")["ready"] == 3
    assert "cannot promote due commands: permission denied for table scheduled" in caplog.text
    assert bus.troubleshooting.count("payments") == 0


def test_a_handler_that_lacks_a_right_of_its_own_is_charged(
    dsn: str, bus: CommandBus, workers: str
) -> None:
    with running(workers, handling(leave_effect, "Pay", retry=ONCE), concurrency=2):
        record = bus.wait("payments", bus.send("payments", "Pay"))
    assert (record.status, record.attempts) == ("IN_TROUBLESHOOTING_QUEUE", 1)
    assert (record.error_code, record.error_message) == (
        "InsufficientPrivilege",
        "permission denied for table effect",
    )


def test_a_handler_that_changes_its_role_and_not_back_is_charged(
    dsn: str, bus: CommandBus, guarded: Guarded, workers: str, worker_role: str
) -> None:
    guarded.execute(SQL("GRANT pg_monitor TO {}").format(Identifier(worker_role)))

    def pay(command: Command, context: Context) -> None:
        context.connection.execute("SET ROLE pg_monitor")

    with running(workers, handling(pay, "Pay", retry=ONCE), concurrency=2):
        record = bus.wait("payments", bus.send("payments", "Pay"))
    assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "ROLE_CHANGED")
    assert "(permission denied for schema cmdbus)" in (record.error_message or "")
    assert record.attempts == 1, "the first time the right may have been granted meanwhile"


def test_a_row_that_a_policy_or_a_trigger_refuses_is_an_error_of_that_row(
    dsn: str, worker_role: str
) -> None:
    with connect(dsn) as admin:
        admin.execute("CREATE TABLE public.account (id int CHECK (id > 0))")
        admin.execute("ALTER TABLE public.account ENABLE ROW LEVEL SECURITY")
        admin.execute("GRANT INSERT ON public.account TO PUBLIC")
    refusals = {
        "INSERT INTO public.account VALUES (1)": Cause.ROWS,
        "DO $$ BEGIN RAISE insufficient_privilege; END $$": Cause.ROWS,
        "SELECT FROM public.account": Cause.CONTENTION,
        "SELECT setval('public.account_number', 1)": Cause.CONTENTION,
    }
    with connect(dsn) as session:
        session.execute("CREATE SEQUENCE public.account_number")
        session.execute(f"SET ROLE {worker_role}".encode())
        for query, cause in refusals.items():
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as refusal:
                session.execute(query.encode())
            assert cause_of(refusal.value) is cause, query


@pytest.mark.fleet
@pytest.mark.timeout(90)
def test_a_process_that_starts_without_a_right_waits_for_it(
    tmp_path: Path, dsn: str, workers: str, worker_role: str
) -> None:
    with supervised(workers, tmp_path, procs=1) as fleet:
        with revoked(dsn, "USAGE ON SCHEMA cmdbus", worker_role):
            before = fleet.pids()
            kill(before.values())
            fleet.await_saying("permission denied for schema cmdbus; waiting until it is granted")
            fleet.await_saying("the steward cannot work and keeps trying: permission denied")
        fleet.await_successors(before.values())
        fleet.dsn = dsn
        fleet.await_completed(fleet.send("Noop", 10))
        fleet.await_health()
        assert not fleet.logged("exited early")


@pytest.mark.fleet
@pytest.mark.timeout(90)
def test_sessions_in_a_role_that_may_not_see_them_are_refused_and_waited_for(
    tmp_path: Path, dsn: str, guarded: Guarded, workers: str, worker_role: str
) -> None:
    """As ALTER ROLE ... SET role sets it."""
    with connect(dsn) as admin:
        group = f"{worker_role}_group"
        admin.execute(f"CREATE ROLE {group}; GRANT {group} TO {worker_role}".encode())
        install(dsn, grants={"worker": [group]})
        try:
            with supervised(workers, tmp_path, procs=1) as fleet:
                guarded.alter("ROLE", workers, f"SET role = '{group}'")
                check = list(preflight(Settings(dsn=workers, app="cmdbus.worker.demo:registry")))[
                    -1
                ]
                assert (check.name, check.finding) == ("role", Finding.FATAL)
                assert f"sessions of {worker_role!r} run as role {group!r}" in check.sentence
                kill(fleet.pids()[0])
                fleet.await_saying(f"a session of {worker_role!r} runs as role {group!r}")
                guarded.alter("ROLE", workers, "RESET role")
                fleet.dsn = dsn
                fleet.await_completed(fleet.send("Noop", 10))
                fleet.await_health()
        finally:
            admin.execute(f"DROP OWNED BY {group}; DROP ROLE {group}".encode())
