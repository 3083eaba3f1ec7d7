"""A row or an outcome that the database rejects stops no others: it ends in troubleshooting."""

import time
from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, connect, effects, leave_effect, running

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    CommandRecord,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
    Status,
    Timeouts,
)
from cmdbus.worker import Worker
from cmdbus.worker.claims.claim import Claim, ClaimRequest
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.halving import in_halves
from cmdbus.worker.claims.rejections import Cause, cause_of
from cmdbus.worker.pipeline.narrowing import Narrowing

REJECTIONS = {
    Cause.ROWS: (
        psycopg.errors.CheckViolation,
        psycopg.errors.UniqueViolation,
        psycopg.errors.DatetimeFieldOverflow,
        psycopg.errors.UntranslatableCharacter,
        psycopg.errors.RaiseException,
        psycopg.errors.DataCorrupted,
        psycopg.DataError,
    ),
    Cause.CONTENTION: (
        psycopg.errors.LockNotAvailable,
        psycopg.errors.DeadlockDetected,
        psycopg.errors.SerializationFailure,
        psycopg.errors.InsufficientPrivilege,
    ),
    Cause.TIMEOUT: (psycopg.errors.QueryCanceled,),
    Cause.ELSEWHERE: (
        psycopg.errors.AdminShutdown,
        psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.DiskFull,
        psycopg.errors.DuplicatePreparedStatement,
        psycopg.errors.InvalidSqlStatementName,
        psycopg.errors.FeatureNotSupported,
        psycopg.OperationalError,
        psycopg.InterfaceError,
        TypeError,
    ),
}


@pytest.mark.parametrize(
    ("error", "cause"), [(e, cause) for cause, errors in REJECTIONS.items() for e in errors]
)
def test_an_error_is_one_of_its_rows_unless_it_says_otherwise(
    error: type[Exception], cause: Cause
) -> None:
    assert cause_of(error("why")) is cause


def test_text_that_the_driver_cannot_send_or_read_is_an_error_of_its_row() -> None:
    assert cause_of(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why")) is Cause.ROWS


def test_a_statement_is_executed_for_halves_until_one_row_is_what_fails() -> None:
    sizes: list[int] = []
    rejected: list[int] = []

    def work(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        if {3, 6} & set(items):
            raise psycopg.errors.CheckViolation("three or six")
        return list(items)

    def lost(items: Sequence[int]) -> list[int]:
        raise psycopg.OperationalError("the connection is lost")

    found = in_halves(work, list(range(8)), lambda item, error: rejected.append(item))
    assert (found, rejected) == ([0, 1, 2, 4, 5, 7], [3, 6])
    assert sizes == [8, 4, 2, 2, 1, 1, 4, 2, 2, 1, 1]
    with pytest.raises(psycopg.OperationalError):
        in_halves(lost, [1, 2], lambda item, error: rejected.append(item))


def test_a_lock_timeout_is_no_rows_fault_and_tried_for_no_halves() -> None:
    tries: list[int] = []

    def locked(items: Sequence[int]) -> list[int]:
        tries.append(len(items))
        raise psycopg.errors.LockNotAvailable("the table is locked")

    def rejected(item: int, error: Exception) -> None:
        raise AssertionError(f"{item} is not what failed")

    with pytest.raises(psycopg.errors.LockNotAvailable):
        in_halves(locked, [1, 2], rejected)
    assert tries == [2]


@pytest.fixture
def registry() -> HandlerRegistry:
    """Four types: one completes, the others end in each other way."""
    made = HandlerRegistry()

    @made.handler("payments", "Fail")
    def fail(command: Command, context: Context) -> None:
        raise BusinessRuleError("NO", "rule")

    @made.handler("payments", "Trouble")
    def trouble(command: Command, context: Context) -> None:
        raise PermanentCommandError("GONE", "never")

    made.register("payments", "Good", lambda command, context: None)
    made.register("payments", "Bad", lambda command, context: None)
    return made


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with connect(dsn) as connection:
        yield connection


def forbid(admin: psycopg.Connection, table: str, condition: str) -> None:
    admin.execute(f"ALTER TABLE cmdbus.{table} ADD CHECK (NOT ({condition}))".encode())


def failures(worker: Worker) -> int:
    return int(str(worker.metrics()["cmdbus_claim_failures_total"]))


def send_good(bus: CommandBus) -> None:
    bus.send_many([SendRequest("payments", "Good")] * 20)


def all_good_are_done(bus: CommandBus) -> None:
    def done() -> list[CommandRecord]:
        return bus.query("payments", type="Good", status=Status.COMPLETED)

    eventually(lambda: len(done()) == 20, 10)
    assert {record.attempts for record in done()} == {1}


def test_an_infinite_time_of_a_row_is_claimed_like_any_other(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, registry: HandlerRegistry
) -> None:
    ids = [bus.send("payments", "Good") for _ in range(3)]
    admin.execute("ALTER DOMAIN cmdbus.finite_time DROP CONSTRAINT finite_time_check")
    admin.execute("UPDATE cmdbus.ready SET due_at = '-infinity' WHERE command_id = %s", (ids[0],))
    admin.execute("UPDATE cmdbus.ready SET due_at = 'infinity' WHERE command_id = %s", (ids[1],))
    with running(dsn, registry) as worker:
        assert [bus.wait("payments", id_, 10).status for id_ in ids] == ["COMPLETED"] * 3
        assert failures(worker) == 0


def test_a_row_that_cannot_be_claimed_goes_to_troubleshooting_and_the_others_run(
    dsn: str,
    bus: CommandBus,
    admin: psycopg.Connection,
    registry: HandlerRegistry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    forbid(admin, "ready", "type = 'Bad' AND token > 0")
    bad = [bus.send("payments", "Bad", priority="high") for _ in range(2)]
    send_good(bus)
    with running(dsn, registry) as worker:
        for command_id in bad:
            record = bus.wait("payments", command_id, 10)
            assert (record.status, record.error_code) == (
                "IN_TROUBLESHOOTING_QUEUE",
                "NOT_CLAIMABLE",
            )
            assert "violates check constraint" in (record.error_message or "")
            assert [event.kind for event in bus.audit("payments", command_id)][-1] == (
                "MOVED_TO_TROUBLESHOOTING_QUEUE"
            )
        all_good_are_done(bus)
        assert failures(worker) >= 1
    assert "a round trip failed (new row for relation" in caplog.text
    assert f"command {bad[0]} (domain payments" in caplog.text
    bus.troubleshooting.cancel("payments", bad[0], operator="ann")


def test_a_row_that_can_be_neither_claimed_nor_moved_is_skipped_with_pauses(
    dsn: str,
    bus: CommandBus,
    admin: psycopg.Connection,
    registry: HandlerRegistry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    forbid(admin, "ready", "type = 'Bad' AND token > 0")
    forbid(admin, "troubleshooting", "type = 'Bad'")
    bad = bus.send("payments", "Bad", priority="high")
    send_good(bus)
    with running(dsn, registry) as worker:
        all_good_are_done(bus)
        seen = failures(worker)
        began = time.monotonic()
        eventually(lambda: failures(worker) >= seen + 2, 10)
        assert time.monotonic() - began > 0.8, "between two failures there is a pause"
        assert worker.health.consecutive_failures >= 2
        record = bus.get("payments", bad)
        assert record is not None and record.status == "PENDING"
    assert caplog.text.count("skipped") == 1


def test_a_queue_that_is_locked_sends_no_command_to_troubleshooting(
    dsn: str, bus: CommandBus
) -> None:
    bus.send_many([SendRequest("payments", "Good")] * 5)
    request = ClaimRequest(5, 0, ["payments"], ["payments Good"], [], {})
    claims, taken = Claims("cmdbus", 30.0), list[Claim]()
    narrowing = Narrowing(claims)
    with connect(dsn) as mine, psycopg.connect(dsn) as locking:
        mine.execute("SET lock_timeout = '50ms'")
        locking.execute("LOCK TABLE cmdbus.ready IN SHARE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            narrowing.claim(mine, request, taken.extend)
        locking.rollback()
        assert bus.troubleshooting.count("payments") == 0
        assert narrowing.claim(mine, request, taken.extend) == len(taken) == 5


def test_a_server_that_stalls_sends_no_command_to_troubleshooting(
    dsn: str, bus: CommandBus
) -> None:
    bus.send_many([SendRequest("payments", "Good")] * 3)
    request = ClaimRequest(5, 0, ["payments"], ["payments Good"], [], {})
    taken: list[Claim] = []
    narrowing = Narrowing(Claims("cmdbus", 30.0))
    with connect(dsn) as mine, psycopg.connect(dsn) as stalling:
        mine.execute("SET statement_timeout = '100ms'")
        stalling.execute("LOCK TABLE cmdbus.ready IN EXCLUSIVE MODE")
        assert narrowing.claim(mine, request, taken.extend) == 0
        stalling.rollback()
        mine.execute("SET statement_timeout = '20s'")
        narrowing.claim(mine, request, taken.extend)
        narrowing.claim(mine, request, taken.extend)
        assert len(taken) == 3
        assert bus.troubleshooting.count("payments") == 0


def test_a_lease_that_cannot_be_renewed_keeps_no_other_from_it(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    registry, gate = HandlerRegistry(), Gate()
    for type in ("Bad", "Good"):
        registry.register("payments", type, gate)
    forbid(admin, "ready", "type = 'Bad' AND lease_until > claimed_at + interval '1.3 s'")
    ladder = Timeouts(statement=0.8, pool=1.0, lease=1.2, thread=20.0, watchdog=30.0)
    with running(dsn, registry, concurrency=2, timeouts=ladder):
        sent = {type: bus.send("payments", type) for type in ("Bad", "Good")}
        gate.wait_for(2)
        seen: set[object] = set()

        def renewed() -> bool:
            lease = "SELECT lease_until FROM cmdbus.ready WHERE command_id = %s"
            seen.add(admin.execute(lease, (sent["Good"],)).fetchone())
            return len(seen) > 3

        eventually(renewed)
        assert f"cannot renew the lease of command {sent['Bad']}" in caplog.text
        gate.open.set()
        assert bus.wait("payments", sent["Good"], 10).attempts == 1


def test_an_outcome_that_is_rejected_goes_to_troubleshooting_and_the_others_are_settled(
    dsn: str,
    bus: CommandBus,
    admin: psycopg.Connection,
    registry: HandlerRegistry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    forbid(admin, "finished", "type IN ('Bad', 'Fail')")
    rejected = [bus.send("payments", type, priority="high") for type in ("Bad", "Fail", "Bad")]
    send_good(bus)
    with running(dsn, registry):
        for command_id in rejected:
            record = bus.wait("payments", command_id, 10)
            assert record.error_code == "OUTCOME_NOT_STORABLE"
            assert "violates check constraint" in (record.error_message or "")
        all_good_are_done(bus)
    assert "OUTCOME_NOT_STORABLE: its outcome COMPLETED was rejected" in caplog.text


def test_an_outcome_that_cannot_be_stored_in_any_way_holds_up_no_others(
    dsn: str,
    bus: CommandBus,
    admin: psycopg.Connection,
    registry: HandlerRegistry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    forbid(admin, "finished", "type = 'Bad'")
    forbid(admin, "troubleshooting", "type = 'Bad'")
    bad = bus.send("payments", "Bad", priority="high")
    with running(dsn, registry):
        eventually(lambda: "nor moved to the troubleshooting queue" in caplog.text)
        send_good(bus)
        all_good_are_done(bus)
        admin.execute("ALTER TABLE cmdbus.finished DROP CONSTRAINT finished_type_check")
        assert bus.wait("payments", bad, 10).status == "COMPLETED"


def test_the_second_row_of_one_id_gets_another_id_in_troubleshooting(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, registry: HandlerRegistry
) -> None:
    """Nothing but the functions keeps a session with their rights from inserting one twice."""
    first = bus.send("payments", "Trouble")
    admin.execute(
        "INSERT INTO cmdbus.ready (domain, priority, command_id, correlation_id, type, data)"
        " SELECT domain, priority, command_id, correlation_id, type, data FROM cmdbus.ready"
    )
    with running(dsn, registry):
        eventually(lambda: bus.troubleshooting.count("payments") == 2, 10)
    codes = {record.command_id: record for record in bus.troubleshooting.list("payments")}
    assert codes.pop(first).error_code == "GONE"
    [other] = codes.values()
    assert other.error_code == "OUTCOME_NOT_STORABLE"
    assert (other.error_message or "").startswith(f"its id {first} is in troubleshooting already")


def test_a_partition_of_history_that_is_missing_is_made(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, registry: HandlerRegistry
) -> None:
    registry.register("payments", "Pay", leave_effect, retry=RetryPolicy(max_attempts=1))
    with running(dsn, registry):
        for type in ("Good", "Pay"):
            drop_history(admin)
            record = bus.wait("payments", bus.send("payments", type), 10)
            assert (record.status, record.attempts) == ("COMPLETED", 1)
    assert effects(dsn) == 1


def test_a_partition_of_history_that_the_server_refuses_to_make_charges_no_command(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, registry: HandlerRegistry
) -> None:
    """As where changes of schemas are forbidden for a while. Nor does it keep a worker from
    starting."""
    registry.register("payments", "Pay", leave_effect, retry=RetryPolicy(max_attempts=1))
    ids = [bus.send("payments", type) for type in ("Pay", "Good")]
    drop_history(admin)
    admin.execute(
        "CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE 'frozen'; END $$;"
        " CREATE EVENT TRIGGER frozen ON ddl_command_start EXECUTE FUNCTION public.refuse()"
    )
    tried = "SELECT 1 FROM cmdbus.event WHERE code = 'SETTLEMENT_BLOCKED'"
    with running(dsn, registry):
        eventually(lambda: admin.execute(tried.encode()).fetchall())
        admin.execute("DROP EVENT TRIGGER frozen")
        records = [bus.wait("payments", id_, 10) for id_ in ids]
    assert [(record.status, record.attempts) for record in records] == [("COMPLETED", 1)] * 2
    assert effects(dsn) == 1


def test_history_that_another_session_has_locked_keeps_no_worker_from_starting(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, registry: HandlerRegistry
) -> None:
    """As ANALYZE locks it."""
    newest = "SELECT max(relname) FROM pg_class WHERE relname ~ '^finished_[0-9]{8}$'"
    for lacks in (False, True):
        if lacks:
            [[name]] = admin.execute(newest.encode()).fetchall()
            admin.execute(f"DROP TABLE cmdbus.{name}".encode())
        with connect(dsn) as stranger, stranger.transaction():
            stranger.execute("LOCK TABLE cmdbus.finished IN SHARE UPDATE EXCLUSIVE MODE")
            with running(dsn, registry):
                record = bus.wait("payments", bus.send("payments", "Good"), 20)
        assert record.status == "COMPLETED"


def drop_history(admin: psycopg.Connection) -> None:
    partitions = admin.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits"
        " WHERE inhparent = 'cmdbus.finished'::regclass"
    ).fetchall()
    for (name,) in partitions:
        admin.execute(f"DROP TABLE {name}".encode())


def test_a_command_that_another_session_holds_is_waited_for_and_not_set_aside(
    dsn: str, bus: CommandBus, registry: HandlerRegistry
) -> None:
    opened = HandlerRegistry()
    with psycopg.connect(dsn) as stranger:

        @opened.handler("payments", "Good")
        def good(command: Command, context: Context) -> None:
            stranger.execute("SELECT FROM cmdbus.ready FOR UPDATE")

        with running(dsn, opened, concurrency=1):
            held = bus.send("payments", "Good", command_id=uuid4())
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
            with connect(dsn) as watcher:
                eventually(lambda: watcher.execute(waits.encode()).fetchall())
                eventually(lambda: not watcher.execute(waits.encode()).fetchall(), 10)
            stranger.rollback()
            assert bus.wait("payments", held, 10).status == "COMPLETED"


@pytest.mark.parametrize("handler", [leave_effect, lambda command, context: None])
def test_a_reply_that_is_rejected_undoes_all_of_its_completion(
    dsn: str,
    bus: CommandBus,
    admin: psycopg.Connection,
    handler: Callable[[Command, Context], object],
) -> None:
    """Also what the handler wrote through its context's connection."""
    registry = HandlerRegistry()
    registry.register("payments", "Pay", handler, retry=RetryPolicy(max_attempts=1))
    forbid(admin, "ready", "type = 'Reply'")
    command_id = bus.send("payments", "Pay", reply_to="orders")
    with running(dsn, registry):
        assert bus.wait("payments", command_id, 10).status == Status.IN_TROUBLESHOOTING_QUEUE
        assert effects(dsn) == 0
        assert admin.execute("SELECT count(*) FROM cmdbus.finished").fetchone() == (0,)
        assert "COMPLETED" not in [event.kind for event in bus.audit("payments", command_id)]
        admin.execute("ALTER TABLE cmdbus.ready DROP CONSTRAINT ready_type_check")
        bus.troubleshooting.retry("payments", command_id, operator="ann")
        assert bus.wait("payments", command_id, 10).status == Status.COMPLETED
    assert effects(dsn) == (1 if handler is leave_effect else 0)
    [reply] = bus.query("orders")
    assert reply.data["outcome"] == "SUCCESS"
