"""A row or an outcome that the database rejects stops no others: it ends in troubleshooting."""

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import (
    ONCE,
    Gate,
    await_renewals,
    connect,
    do_nothing,
    effects,
    found,
    handling,
    kinds,
    leave_effect,
    running,
)
from psycopg.conninfo import make_conninfo
from queries import rows

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    CommandRecord,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    SendRequest,
    Status,
    Timeouts,
)
from cmdbus.worker import Worker
from cmdbus.worker.claims import rejected_rows
from cmdbus.worker.claims.claim import Claim, ClaimRequest
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.pipeline.narrowing import Narrowing


def every_end() -> HandlerRegistry:
    """Four types: one completes, the others end in each other way."""

    made = handling(do_nothing, "Good")
    made.register("payments", "Bad", do_nothing)

    @made.handler("payments", "Fail")
    def fail(command: Command, context: Context) -> None:
        raise BusinessRuleError("NO", "rule")

    @made.handler("payments", "Trouble")
    def trouble(command: Command, context: Context) -> None:
        raise PermanentCommandError("GONE", "never")

    return made


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with connect(dsn) as connection:
        yield connection


GOOD = ClaimRequest(5, 0, ["payments"], ["payments Good"], [], {})


def forbid(admin: psycopg.Connection, table: str, condition: str) -> None:
    admin.execute(f"ALTER TABLE cmdbus.{table} ADD CHECK (NOT ({condition}))".encode())


def failures(worker: Worker) -> int:
    return int(str(worker.metrics()["cmdbus_claim_failures_total"]))


def send_good(bus: CommandBus) -> None:
    bus.send_many([SendRequest("payments", "Good")] * 20)


def all_good_are_done(bus: CommandBus) -> None:
    def done() -> list[CommandRecord]:
        return bus.query("payments", type="Good", status=Status.COMPLETED)

    eventually(lambda: len(done()) == 20)
    assert {record.attempts for record in done()} == {1}


def test_an_infinite_time_of_a_row_is_claimed_like_any_other(
    dsn: str, bus: CommandBus, admin: psycopg.Connection
) -> None:
    ids = [bus.send("payments", "Good") for _ in range(3)]
    admin.execute("ALTER DOMAIN cmdbus.finite_time DROP CONSTRAINT finite_time_check")
    admin.execute("UPDATE cmdbus.ready SET due_at = '-infinity' WHERE command_id = %s", (ids[0],))
    admin.execute("UPDATE cmdbus.ready SET due_at = 'infinity' WHERE command_id = %s", (ids[1],))
    with running(dsn, every_end()) as worker:
        assert [bus.wait("payments", id_).status for id_ in ids] == ["COMPLETED"] * 3
        assert failures(worker) == 0


def test_a_row_that_cannot_be_claimed_goes_to_troubleshooting_and_the_others_run(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    forbid(admin, "ready", "type = 'Bad' AND token > 0")
    bad = [bus.send("payments", "Bad", priority="high") for _ in range(2)]
    send_good(bus)
    with running(dsn, every_end()) as worker:
        for command_id in bad:
            record = bus.wait("payments", command_id)
            assert record.error_code == "NOT_CLAIMABLE"
            assert "violates check constraint" in (record.error_message or "")
            assert kinds(bus, command_id)[-1] == "MOVED_TO_TROUBLESHOOTING_QUEUE"
        all_good_are_done(bus)
        assert failures(worker) >= 1
    assert "a round trip failed (new row for relation" in caplog.text
    about = f"command={bad[0]} type=payments/Bad attempt=1 correlation={bad[0]}"
    assert [m for m in caplog.messages if "cannot be claimed: moved" in m and m.endswith(about)]
    bus.troubleshooting.cancel("payments", bad[0], operator="ann")


def test_a_row_that_can_be_neither_claimed_nor_moved_is_skipped_with_pauses(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    forbid(admin, "ready", "type = 'Bad' AND token > 0")
    forbid(admin, "troubleshooting", "type = 'Bad'")
    bad = bus.send("payments", "Bad", priority="high")
    send_good(bus)
    with running(dsn, every_end()) as worker:
        all_good_are_done(bus)
        began = time.monotonic()
        seen = failures(worker)
        eventually(lambda: failures(worker) >= seen + 2)
        assert time.monotonic() - began > 0.8, "between two failures there is a pause"
        assert worker.health.consecutive_failures >= 2
        assert found(bus, bad).status == "PENDING"
    assert caplog.text.count("skipped") == 1


def test_a_queue_that_is_locked_sends_no_command_to_troubleshooting(
    dsn: str, bus: CommandBus
) -> None:
    bus.send_many([SendRequest("payments", "Good")] * 5)
    narrowing, taken = Narrowing(ClaimStatements("cmdbus", 30.0)), list[Claim]()
    with connect(dsn) as connection, psycopg.connect(dsn) as locking:
        connection.execute("SET lock_timeout = '50ms'")
        locking.execute("LOCK TABLE cmdbus.ready IN SHARE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            narrowing.claim(connection, GOOD, taken.extend)
        locking.rollback()
        assert bus.troubleshooting.count("payments") == 0
        assert narrowing.claim(connection, GOOD, taken.extend) == len(taken) == 5


def test_a_command_that_needs_more_temporary_files_than_the_role_may_have_stops_no_others(
    dsn: str, bus: CommandBus
) -> None:
    registry = HandlerRegistry()
    for type in ("Good", "Large"):
        registry.register("payments", type, lambda command, context: None)
    limited = make_conninfo(dsn, options="-c temp_file_limit=0 -c work_mem=64kB")
    large = [bus.send("payments", "Large", "x" * 500_000, priority="high") for _ in range(3)]
    with running(limited, registry):
        send_good(bus)
        all_good_are_done(bus)
    records = bus.troubleshooting.list("payments")
    assert {record.command_id for record in records} == {*large}
    assert {(record.error_code, record.error_message) for record in records} == {
        ("NOT_CLAIMABLE", "temporary file size exceeds temp_file_limit (0kB)")
    }


def test_a_server_that_stalls_sends_no_command_to_troubleshooting(
    dsn: str, bus: CommandBus
) -> None:
    bus.send_many([SendRequest("payments", "Good")] * 3)
    narrowing, taken = Narrowing(ClaimStatements("cmdbus", 30.0)), list[Claim]()
    with connect(dsn) as connection, psycopg.connect(dsn) as stalling:
        connection.execute("SET statement_timeout = '100ms'")
        stalling.execute("LOCK TABLE cmdbus.ready IN EXCLUSIVE MODE")
        assert narrowing.claim(connection, GOOD, taken.extend) == 0
        stalling.rollback()
        connection.execute("SET statement_timeout = '20s'")
        narrowing.claim(connection, GOOD, taken.extend)
        narrowing.claim(connection, GOOD, taken.extend)
        assert len(taken) == 3
        assert bus.troubleshooting.count("payments") == 0


def test_a_row_that_timed_out_long_ago_is_not_moved_by_its_next_timeout(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of it is forgotten, so that a process keeps no rows for months."""
    monkeypatch.setattr(rejected_rows, "_FORGET_SECONDS", 0.0)
    bus.send("payments", "Good")
    statements, timeout = ClaimStatements("cmdbus", 30.0), psycopg.errors.QueryCanceled()
    rejected = rejected_rows.RejectedRows(statements)
    with connect(dsn) as connection:
        [key] = statements.claimable(connection, GOOD, 1, [])
        for _ in range(2):
            assert not rejected.set_aside(connection, key, "cannot be claimed", timeout)
            assert rejected.skipped == {key.id}
            assert [rejected.succeeded(), rejected.succeeded()] == [True, False]
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
        await_renewals(dsn, sent["Good"])
        about = f"command={sent['Bad']} type=payments/Bad attempt=1 correlation={sent['Bad']}"
        lines = [line for line in caplog.messages if line.startswith("cannot renew the lease of a")]
        assert lines and all(line.endswith(about) for line in lines)
        gate.open.set()
        assert bus.wait("payments", sent["Good"]).attempts == 1


def test_an_outcome_that_is_rejected_goes_to_troubleshooting_and_the_others_are_settled(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    forbid(admin, "finished", "type IN ('Bad', 'Fail')")
    rejected = [bus.send("payments", type, priority="high") for type in ("Bad", "Fail", "Bad")]
    send_good(bus)
    with running(dsn, every_end()):
        for command_id in rejected:
            record = bus.wait("payments", command_id)
            assert record.error_code == "OUTCOME_NOT_STORABLE"
            assert "violates check constraint" in (record.error_message or "")
        all_good_are_done(bus)
    assert "OUTCOME_NOT_STORABLE: its outcome COMPLETED was rejected" in caplog.text


def test_an_outcome_that_cannot_be_stored_in_any_way_holds_up_no_others(
    dsn: str, bus: CommandBus, admin: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    forbid(admin, "finished", "type = 'Bad'")
    forbid(admin, "troubleshooting", "type = 'Bad'")
    bad = bus.send("payments", "Bad", priority="high")
    with running(dsn, every_end()):
        eventually(lambda: "nor moved to the troubleshooting queue" in caplog.text)
        send_good(bus)
        all_good_are_done(bus)
        admin.execute("ALTER TABLE cmdbus.finished DROP CONSTRAINT finished_type_check")
        assert bus.wait("payments", bad).status == "COMPLETED"


def test_the_second_row_of_one_id_gets_another_id_in_troubleshooting(
    dsn: str, bus: CommandBus, admin: psycopg.Connection
) -> None:
    """Nothing but the functions keeps a session with their rights from inserting one twice."""
    first = bus.send("payments", "Trouble")
    admin.execute(
        "INSERT INTO cmdbus.ready (domain, priority, command_id, correlation_id, type, data)"
        " SELECT domain, priority, command_id, correlation_id, type, data FROM cmdbus.ready"
    )
    with running(dsn, every_end()):
        eventually(lambda: bus.troubleshooting.count("payments") == 2)
    codes = {record.command_id: record for record in bus.troubleshooting.list("payments")}
    assert codes.pop(first).error_code == "GONE"
    [other] = codes.values()
    assert other.error_code == "OUTCOME_NOT_STORABLE"
    assert (other.error_message or "").startswith(f"its id {first} is in troubleshooting already")


def test_a_command_that_another_session_holds_is_waited_for_and_not_set_aside(
    dsn: str, bus: CommandBus
) -> None:
    def lock(command: Command, context: Context) -> None:
        stranger.execute("SELECT FROM cmdbus.ready FOR UPDATE")

    with psycopg.connect(dsn) as stranger, running(dsn, handling(lock), concurrency=1):
        held = bus.send("payments", "Debit", command_id=uuid4())
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
        eventually(lambda: rows(dsn, waits))
        eventually(lambda: not rows(dsn, waits))
        stranger.rollback()
        assert bus.wait("payments", held).status == "COMPLETED"


@pytest.mark.parametrize("handler", [leave_effect, lambda command, context: None])
def test_a_reply_that_is_rejected_undoes_all_of_its_completion(
    dsn: str,
    bus: CommandBus,
    admin: psycopg.Connection,
    handler: Callable[[Command, Context], object],
) -> None:
    """Also what the handler wrote through its context's connection."""
    forbid(admin, "ready", "type = 'Reply'")
    command_id = bus.send("payments", "Pay", reply_to="orders")
    with running(dsn, handling(handler, "Pay", retry=ONCE)):
        assert bus.wait("payments", command_id).status == Status.IN_TROUBLESHOOTING_QUEUE
        assert effects(dsn) == 0
        assert admin.execute("SELECT count(*) FROM cmdbus.finished").fetchone() == (0,)
        assert "COMPLETED" not in kinds(bus, command_id)
        admin.execute("ALTER TABLE cmdbus.ready DROP CONSTRAINT ready_type_check")
        bus.troubleshooting.retry("payments", command_id, operator="ann")
        assert bus.wait("payments", command_id).status == Status.COMPLETED
    assert effects(dsn) == (1 if handler is leave_effect else 0)
    [reply] = bus.query("orders")
    assert reply.data["outcome"] == "SUCCESS"
