"""A worker in one process: the way of a command, and what may go wrong on it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, running
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from psycopg_pool import ConnectionPool

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    InvalidOperationError,
    RetryPolicy,
    SchemaError,
    SendRequest,
    Status,
    Timeouts,
    TransientCommandError,
)
from cmdbus.worker import Worker

pytestmark = pytest.mark.db

SOON = RetryPolicy(max_attempts=3, backoff=(0.01,), jitter=0.0)


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True)


@pytest.fixture
def bus(dsn: str) -> Iterator[CommandBus]:
    with connect(dsn) as connection:
        connection.execute("CREATE TABLE effect (command_id uuid, attempt int)")
    with CommandBus(dsn) as bus:
        yield bus


def effects(dsn: str) -> int:
    with connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM effect").fetchone()
        assert row is not None
        return int(row[0])


def leave_effect(command: Command, context: Context) -> None:
    context.connection.execute(
        "INSERT INTO effect VALUES (%s, %s)", (command.command_id, context.attempt)
    )


def kinds(bus: CommandBus, command_id: UUID) -> list[str]:
    return [event.kind for event in bus.audit("payments", command_id)]


# The way of a command.


def test_a_handler_gets_the_command_and_its_result_is_kept(dsn: str, bus: CommandBus) -> None:
    """R13, M046, M179."""
    registry = HandlerRegistry()
    seen: list[tuple[Command, Context]] = []

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> object:
        seen.append((command, context))
        return {"balance": 1e23}

    with running(dsn, registry):
        sent = bus.send("payments", "Debit", {"amount": 5}, priority=3, reply_to="orders")
        record = bus.wait("payments", sent, 5)
    assert (record.status, record.result, record.attempts) == ("COMPLETED", {"balance": 1e23}, 1)
    [(command, context)] = seen
    assert (command.command_id, command.data, command.priority) == (sent, {"amount": 5}, 3)
    assert (command.domain, command.type, command.reply_to) == ("payments", "Debit", "orders")
    assert command.correlation_id == record.correlation_id
    assert command.created_at == record.created_at
    assert (context.attempt, context.max_attempts) == (1, 3)
    assert 30 < context.remaining() <= 35
    assert (context.deadline - datetime.now(UTC)).total_seconds() > 30
    assert kinds(bus, sent) == ["SENT", "RECEIVED", "COMPLETED"]
    assert record.max_attempts == 3


def test_everything_that_waits_is_drained_without_waiting_for_notifications(
    dsn: str, bus: CommandBus
) -> None:
    """M002, M003, M004, M023: whatever the poll interval is."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with running(dsn, registry, poll_interval=60):
        bus.send_many([SendRequest("payments", "Debit")] * 1000)
        eventually(lambda: len(bus.query("payments", "COMPLETED", limit=2000)) == 1000, 10)


def test_the_correlation_id_follows_a_command_everywhere(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """R09, M157."""
    registry = HandlerRegistry()
    seen: list[UUID] = []

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        seen.append(command.correlation_id)
        context.log.warning("debiting")

    correlation = uuid4()
    with running(dsn, registry):
        sent = bus.send("payments", "Debit", correlation_id=correlation, reply_to="orders")
        record = bus.wait("payments", sent, 5)
    [line] = [line for line in caplog.records if line.getMessage() == "debiting"]
    assert vars(line)["correlation_id"] == str(correlation)
    assert (vars(line)["command_id"], vars(line)["attempt"]) == (str(sent), 1)
    [reply] = bus.query("orders")
    assert [correlation] * 3 == [record.correlation_id, reply.correlation_id, *seen]
    assert str(correlation) in str(bus.audit("payments", sent)[0])


def test_as_many_run_at_once_as_there_are_threads_and_a_freed_slot_is_filled(
    dsn: str, bus: CommandBus
) -> None:
    """M009, M010, M021, M032, M041, M043."""
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Debit", gate)
    with running(dsn, registry, concurrency=3):
        bus.send_many([SendRequest("payments", "Debit")] * 10)
        gate.wait_for(3)
        snapshot = bus.snapshot("payments")
        assert (snapshot["in_progress"], snapshot["ready"]) == (3, 7), "never more than it can run"
        gate.open.set()
        gate.wait_for(7)
        eventually(lambda: len(bus.query(status="COMPLETED")) == 10)
    assert gate.most == 3


def test_threads_are_named_after_what_they_run(dsn: str, bus: CommandBus) -> None:
    """M118."""
    registry = HandlerRegistry()
    registry.register("payments", "Name", lambda c, ctx: threading.current_thread().name)
    with running(dsn, registry, concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Name"), 5)
        assert record.result == "worker-payments-0"
        assert "worker-0" in {thread.name for thread in threading.enumerate()}


def test_a_worker_leaves_alone_what_it_has_no_handler_for(dsn: str, bus: CommandBus) -> None:
    """R15, M178: only the registry leads from a command to code."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with running(dsn, registry):
        other = bus.send("payments", "Other")
        elsewhere = bus.send("orders", "Debit")
        bus.wait("payments", bus.send("payments", "Debit"), 5)
        for domain, id_ in (("payments", other), ("orders", elsewhere)):
            record = bus.get(domain, id_)
            assert record is not None and record.status is Status.PENDING


def test_what_python_cannot_decode_goes_to_troubleshooting_and_its_batch_goes_on(
    dsn: str, bus: CommandBus
) -> None:
    """Fault 58."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: command.data)
    with connect(dsn) as connection:
        row = connection.execute(
            "SELECT cmdbus.send('payments', 'Debit', %s)", ("9" * 5000,)
        ).fetchone()
    assert row is not None
    good = bus.send("payments", "Debit", 1)
    with running(dsn, registry):
        assert bus.wait("payments", good, 5).result == 1
        record = bus.wait("payments", row[0], 5)
    assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "UNDECODABLE")


# Failures.


def test_a_failed_command_is_tried_again_and_then_a_person_decides(
    dsn: str, bus: CommandBus
) -> None:
    """R18, R19, R21, M099, M147: on time, with a fallback of a minute."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=SOON)
    def debit(command: Command, context: Context) -> None:
        raise ZeroDivisionError(f"attempt {context.attempt}")

    with running(dsn, registry, poll_interval=60):
        sent = bus.send("payments", "Debit")
        record = bus.wait("payments", sent, 10)
        once = bus.wait("payments", bus.send("payments", "Debit", max_attempts=1), 5)
    assert (record.status, record.attempts) == ("IN_TROUBLESHOOTING_QUEUE", 3)
    assert (record.error_code, record.error_message) == ("ZeroDivisionError", "attempt 3")
    assert once.attempts == 1
    assert kinds(bus, sent) == [
        "SENT",
        *["RECEIVED", "FAILED"] * 2,
        "RECEIVED",
        "MOVED_TO_TROUBLESHOOTING_QUEUE",
    ]
    assert "raise ZeroDivisionError" in str(bus.audit("payments", sent)[2])


def test_whatever_a_handler_raises_its_thread_goes_on(dsn: str, bus: CommandBus) -> None:
    """M047, fault 3, fault 57."""
    registry = HandlerRegistry()
    errors: list[BaseException] = [SystemExit(1), KeyboardInterrupt(), GeneratorExit()]
    errors += [RecursionError("deep"), MemoryError(), BaseException("base")]

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=1))
    def debit(command: Command, context: Context) -> None:
        raise errors[command.data]

    with running(dsn, registry, concurrency=1):
        ids = [bus.send("payments", "Debit", place) for place in range(len(errors))]
        codes = [bus.wait("payments", id_, 5).error_code for id_ in ids]
    assert codes == [type(error).__name__ for error in errors]


def test_a_handler_asks_to_be_tried_again_later(dsn: str, bus: CommandBus) -> None:
    """M146."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> str:
        if context.attempt == 1:
            raise TransientCommandError("BUSY", "later", retry_after=0.01)
        if context.attempt == 2:
            context.retry_after(0.01)
            raise ValueError("again")
        return "third time"

    with running(dsn, registry):
        assert bus.wait("payments", bus.send("payments", "Debit"), 5).result == "third time"


def test_a_result_that_cannot_be_stored_fails_the_attempt_and_its_effects(
    dsn: str, bus: CommandBus
) -> None:
    """Fault 59."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=1))
    def debit(command: Command, context: Context) -> object:
        if command.data:
            leave_effect(command, context)
        return {"when": "\0"}

    with running(dsn, registry):
        for with_effect in (True, False):
            record = bus.wait("payments", bus.send("payments", "Debit", with_effect), 5)
            assert record.error_code == "RESULT_NOT_STORABLE"
            assert record.error_message == (
                "result.when contains a NUL character, which PostgreSQL cannot hold"
            )
    assert effects(dsn) == 0


# Transactions.


def test_effects_and_completion_commit_together_or_not_at_all(dsn: str, bus: CommandBus) -> None:
    """R29, M122, M151."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=SOON)
    def debit(command: Command, context: Context) -> str:
        leave_effect(command, context)
        if context.attempt < 3:
            raise ValueError("after the effect")
        return "done"

    with running(dsn, registry):
        record = bus.wait("payments", bus.send("payments", "Debit", reply_to="orders"), 10)
    assert (record.result, record.attempts) == ("done", 3)
    with connect(dsn) as connection:
        rows = connection.execute("SELECT attempt FROM effect").fetchall()
    assert rows == [(3,)]
    assert len(bus.query("orders")) == 1


def test_what_fails_only_at_commit_fails_the_attempt(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=1))
    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        leave_effect(command, context)

    with connect(dsn) as connection:
        connection.execute(
            "ALTER TABLE effect ADD UNIQUE (command_id) DEFERRABLE INITIALLY DEFERRED"
        )
    with running(dsn, registry):
        record = bus.wait("payments", bus.send("payments", "Debit"), 5)
    assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "UniqueViolation")
    assert effects(dsn) == 0


def lose(dsn: str, command_id: UUID) -> None:
    """Another node claims the command, whose lease has ended."""
    with connect(dsn) as connection:
        connection.execute(
            "UPDATE cmdbus.ready SET token = token + 1,"
            " lease_until = clock_timestamp() + '1 hour' WHERE command_id = %s",
            (command_id,),
        )


def test_effects_of_an_execution_that_lost_its_lease_do_not_land(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """R29, M113, fault 55."""
    registry = HandlerRegistry()
    entered, go_on = threading.Event(), threading.Event()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        entered.set()
        go_on.wait(10)

    with running(dsn, registry), caplog.at_level(logging.WARNING):
        sent = bus.send("payments", "Debit")
        assert entered.wait(5)
        lose(dsn, sent)
        go_on.set()
        eventually(lambda: "was lost before it was settled" in caplog.text)
        record = bus.get("payments", sent)
        assert record is not None and record.status is Status.IN_PROGRESS
    assert effects(dsn) == 0


def test_a_canceled_commands_effects_do_not_land(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    entered, go_on = threading.Event(), threading.Event()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        entered.set()
        go_on.wait(10)

    with running(dsn, registry):
        sent = bus.send("payments", "Debit")
        assert entered.wait(5)
        bus.cancel("payments", sent, running=True)
        go_on.set()
        assert bus.wait("payments", sent, 5).status is Status.CANCELED
    assert effects(dsn) == 0


Sin = Callable[[psycopg.Connection], object]

SINS: dict[str, tuple[Sin, str, str]] = {
    "commit": (lambda c: c.commit(), "IN_TROUBLESHOOTING_QUEUE", "InvalidOperationError"),
    "rollback": (lambda c: c.rollback(), "IN_TROUBLESHOOTING_QUEUE", "InvalidOperationError"),
    "close": (lambda c: c.close(), "IN_TROUBLESHOOTING_QUEUE", "InvalidOperationError"),
    "with": (lambda c: c.__exit__(None, None, None), "IN_TROUBLESHOOTING_QUEUE", "Invalid"),
    "COMMIT": (lambda c: c.execute("COMMIT"), "IN_TROUBLESHOOTING_QUEUE", "TRANSACTION_ENDED"),
    "ROLLBACK": (lambda c: c.execute("ROLLBACK"), "IN_TROUBLESHOOTING_QUEUE", "TRANSACTION_ENDED"),
    "COMMIT; BEGIN": (
        lambda c: (c.execute("COMMIT"), c.execute("BEGIN")),
        "IN_TROUBLESHOOTING_QUEUE",
        "TRANSACTION_ENDED",
    ),
    "level": (
        lambda c: c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
        "IN_TROUBLESHOOTING_QUEUE",
        "TRANSACTION_ENDED",
    ),
}


@pytest.mark.parametrize("sin", SINS)
def test_a_handler_that_ends_its_transaction_by_itself_gets_a_clear_error(
    dsn: str, bus: CommandBus, sin: str
) -> None:
    """Fault 48."""
    registry = HandlerRegistry()
    act, status, code = SINS[sin]

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=1))
    def debit(command: Command, context: Context) -> None:
        act(context.connection)

    registry.register("payments", "Good", leave_effect)
    with running(dsn, registry, concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Debit"), 5)
        assert record.status == status
        assert record.error_code is not None and record.error_code.startswith(code)
        assert record.error_message is not None and "transaction" in record.error_message
        assert bus.wait("payments", bus.send("payments", "Good"), 5).status == "COMPLETED"
    assert effects(dsn) == 1


def test_a_swallowed_sql_error_fails_the_attempt(dsn: str, bus: CommandBus) -> None:
    """Fault 48: 25P02."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=1))
    def debit(command: Command, context: Context) -> str:
        leave_effect(command, context)
        try:
            context.connection.execute("SELECT 1/0")
        except psycopg.Error:
            if command.data == "swallow":
                return "as if nothing had happened"
        raise AssertionError

    @registry.handler("payments", "Savepoint")
    def savepoint(command: Command, context: Context) -> str:
        leave_effect(command, context)
        try:
            with context.connection.transaction():
                context.connection.execute("SELECT 1/0")
        except psycopg.Error:
            pass
        return "recovered"

    with running(dsn, registry):
        record = bus.wait("payments", bus.send("payments", "Debit", "swallow"), 5)
        assert record.error_code == "TRANSACTION_ABORTED"
        assert bus.wait("payments", bus.send("payments", "Savepoint"), 5).result == "recovered"
    assert effects(dsn) == 1


notices: list[object] = []


def dirty(connection: psycopg.Connection) -> None:
    connection.execute("SET work_mem = '77MB'")
    connection.execute("SET search_path = pg_catalog")
    connection.execute("LISTEN gossip")
    connection.execute("SELECT pg_advisory_lock(4711)")
    connection.execute("CREATE TEMP TABLE scratch (a int)")
    connection.execute("CREATE SEQUENCE IF NOT EXISTS public.numbers")
    connection.execute("SELECT nextval('public.numbers')")
    connection.execute("DECLARE c CURSOR WITH HOLD FOR SELECT 1")
    connection.execute("SET ROLE pg_monitor")
    connection.row_factory = dict_row  # type: ignore[assignment]
    connection.prepare_threshold = None
    connection.prepared_max = 1
    connection.server_cursor_factory = psycopg.ClientCursor  # type: ignore[assignment]
    connection.adapters.register_loader("int4", TextLoader)
    connection.add_notice_handler(notices.append)


def state(connection: psycopg.Connection) -> list[object]:
    before = len(notices)
    connection.execute("DO $$ BEGIN RAISE NOTICE 'heard'; END $$")
    return [
        len(notices) - before,
        connection.prepare_threshold,
        connection.prepared_max,
        connection.server_cursor_factory,
        connection.execute("SELECT 1::int4").fetchone(),
    ] + [
        connection.execute(query).fetchall()
        for query in (
            "SELECT current_setting('work_mem'), current_user, current_setting('search_path')",
            "SELECT pg_listening_channels()",
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
            "SELECT to_regclass('scratch')::text",
            "SELECT name FROM pg_cursors WHERE name = 'c'",
        )
    ]


@pytest.mark.parametrize("end", ["returns", "raises", "COMMIT"])
def test_nothing_of_a_session_leaks_to_the_next_command(
    dsn: str, bus: CommandBus, end: str
) -> None:
    """Fault 49, M151, M122."""
    registry = HandlerRegistry()
    states: list[object] = []

    @registry.handler("payments", "Look")
    def look(command: Command, context: Context) -> None:
        states.append(state(context.connection))

    @registry.handler("payments", "Dirty", retry=RetryPolicy(max_attempts=1))
    def dirty_(command: Command, context: Context) -> None:
        dirty(context.connection)
        if end == "COMMIT":
            context.connection.execute("COMMIT")
        if end == "raises":
            raise ValueError

    with running(dsn, registry, concurrency=1):
        for type_ in ("Look", "Dirty", "Look"):
            bus.wait("payments", bus.send("payments", type_), 5)
    assert states[0] == states[1]


def test_a_connection_is_not_used_after_its_handler(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    contexts: list[Context] = []

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        leave_effect(command, context)
        contexts.append(context)

    with running(dsn, registry):
        bus.wait("payments", bus.send("payments", "Debit"), 5)
        with pytest.raises(InvalidOperationError, match="after its handler has returned"):
            _ = contexts[0].connection


def test_a_statement_that_takes_too_long_is_ended_by_the_server(dsn: str, bus: CommandBus) -> None:
    """M111, R46."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Slow", retry=RetryPolicy(max_attempts=1))
    def slow(command: Command, context: Context) -> None:
        context.connection.execute("SELECT pg_sleep(30)")

    with running(dsn, registry, timeouts=Timeouts(0.1, 1, 1, 2, 3)):
        record = bus.wait("payments", bus.send("payments", "Slow"), 5)
    assert record.error_code == "QueryCanceled"


def test_a_slow_handler_is_not_run_twice_while_its_worker_lives(dsn: str, bus: CommandBus) -> None:
    """Fault 55: its lease is renewed."""
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Slow", gate, timeout=60)
    timeouts = Timeouts(statement=0.1, pool=0.3, lease=0.3, thread=20, watchdog=30)
    with running(dsn, registry, timeouts=timeouts, concurrency=2) as _:
        sent = bus.send("payments", "Slow")
        gate.wait_for(1)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 1.0)
        assert gate.inside == 1
        gate.open.set()
        assert bus.wait("payments", sent, 5).attempts == 1


def test_what_was_claimed_ahead_and_is_not_started_goes_back(dsn: str, bus: CommandBus) -> None:
    """A type that was quick hangs: nobody waits behind it."""
    registry, gate = HandlerRegistry(), Gate()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        if command.data == "hang":
            gate(command, context)

    with running(dsn, registry, concurrency=1):
        bus.send_many([SendRequest("payments", "Debit")] * 500)
        eventually(lambda: bus.snapshot("payments")["depth"] == 0)
        requests = [SendRequest("payments", "Debit", "hang" if n == 200 else n) for n in range(900)]
        bus.send_many(requests)
        gate.wait_for(1)
        assert bus.snapshot("payments")["in_progress"] > 1, "it claims ahead of its thread"
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 1)
        assert {record.attempts for record in bus.query(status="PENDING")} == {0}
        gate.open.set()
        eventually(lambda: bus.snapshot("payments")["depth"] == 0)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
    assert len(bus.query(status="COMPLETED", limit=2000)) == 1400


# Waking.


def test_a_delayed_command_starts_on_time_and_never_early(dsn: str, bus: CommandBus) -> None:
    """M063, M081, M085, M180: and the second timer is not forgotten."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> float:
        return time.time()

    with running(dsn, registry, poll_interval=60):
        bus.wait("payments", bus.send("payments", "Debit"), 5)
        ids = [bus.send("payments", "Debit", delay=delay) for delay in (0.6, 0.3)]
        for id_ in reversed(ids):
            record = bus.wait("payments", id_, 5)
            late = record.result - record.due_at.timestamp()
            assert -0.001 < late < 1.0


def test_an_idle_worker_is_woken_by_a_send_and_asks_nothing_meanwhile(
    dsn: str, bus: CommandBus
) -> None:
    """M007, M008, M012, M028, M137, M138, R17."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with running(dsn, registry, poll_interval=60), connect(dsn) as watcher:
        for _ in range(20):
            bus.wait("payments", bus.send("payments", "Debit"), 2)
        query = (
            "SELECT array_agg((pid, state_change) ORDER BY pid)::text,"
            " bool_and(state = 'idle') FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'cmdbus:%'"
            " AND application_name <> 'cmdbus:bus'"
        )

        def look() -> tuple[object, object]:
            row = watcher.execute(query).fetchone()
            assert row is not None
            return row[0], row[1]

        history = [look()]

        def quiet() -> bool:
            history.append(look())
            return len(history) > 60 and len(set(history[-50:])) == 1

        eventually(quiet)
        assert history[-1][1] is True


def test_a_worker_whose_listener_died_finds_work_and_listens_again(
    dsn: str, bus: CommandBus
) -> None:
    """M060, M090, fault 36."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    listeners = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    )
    with running(dsn, registry, poll_interval=60), connect(dsn) as watcher:
        bus.wait("payments", bus.send("payments", "Debit"), 5)
        eventually(lambda: watcher.execute(listeners).fetchone() == (1,))
        for _ in range(5):
            bus.wait("payments", bus.send("payments", "Debit"), 5)


def test_sends_at_random_moments_are_never_slept_through(dsn: str, bus: CommandBus) -> None:
    """M065, M068: the arming protocol, with a fallback that would show."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with running(dsn, registry, poll_interval=600), psycopg.connect(dsn) as slow:
        for round_ in range(150):
            held = bus.send("payments", "Debit", connection=slow)
            quick = bus.send("payments", "Debit")
            bus.wait("payments", quick, 2)
            if round_ % 3:
                eventually(lambda: True)
            slow.commit()
            bus.wait("payments", held, 2)


# What a worker tells of itself.


def test_counters_are_those_of_what_happened(dsn: str, bus: CommandBus) -> None:
    """M013, M022, M054, M149, M164, M173, M174, M175."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=SOON)
    def debit(command: Command, context: Context) -> None:
        if command.data == "tx":
            leave_effect(command, context)
        if command.data == "fail":
            raise ValueError("no")
        if command.data == "rule":
            raise BusinessRuleError("NO", "rule")

    with running(dsn, registry) as worker:
        ids = [
            bus.send("payments", "Debit", data)
            for data in [None] * 20 + ["tx"] * 5 + ["rule"] * 3 + ["fail"] * 2
        ]
        for id_ in ids:
            bus.wait("payments", id_, 5)
        metrics = worker.metrics()
        name = ("payments", "Debit")
        assert metrics["cmdbus_commands_total"] == {
            (*name, "completed"): 25,
            (*name, "failed"): 3,
            (*name, "retry"): 4,
            (*name, "trouble"): 2,
        }
        for histogram in ("cmdbus_dequeue_latency_seconds", "cmdbus_handler_duration_seconds"):
            assert metrics[histogram][name]["count"] == 34  # type: ignore[index]
        assert (metrics["claim_failures"], metrics["cmdbus_lost_leases_total"]) == (0, 0)
        assert int(str(metrics["cmdbus_batches_processed_total"])) > 0
        assert int(str(metrics["cmdbus_empty_receives_total"])) > 0
        assert 0 < float(str(metrics["avg_process_time"])) < 1
        assert 0 < float(str(metrics["avg_fetch_time"])) < 1
        assert worker.health.health == "HEALTHY"
        assert {failed.command_id for failed in worker.last_exceptions} == set(map(str, ids[-2:]))
        errors = [(failed.type, failed.error) for failed in worker.last_exceptions]
        assert errors == [("Debit", "ValueError: no")] * 6


def test_a_drain_is_claimed_in_batches_and_rested_from_once(dsn: str, bus: CommandBus) -> None:
    """M001, M004, M016, M018, M020, M070."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    bus.send_many([SendRequest("payments", "Debit")] * 2000)
    with running(dsn, registry, poll_interval=60) as worker:
        eventually(lambda: bus.snapshot("payments")["depth"] == 0)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
        metrics = worker.metrics()
        assert int(str(metrics["cmdbus_batches_processed_total"])) < 500
        assert int(str(metrics["cmdbus_empty_receives_total"])) < 10
        assert metrics["cmdbus_notification_wakeups_total"] == 0


def test_many_failures_in_a_row_degrade_a_worker_and_a_success_heals_it(
    dsn: str, bus: CommandBus
) -> None:
    """M123, R44."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=1))
    def debit(command: Command, context: Context) -> None:
        if command.data:
            raise ValueError

    with running(dsn, registry) as worker:
        for wrong in [True] * 11:
            assert worker.health.health == "HEALTHY"
            bus.wait("payments", bus.send("payments", "Debit", wrong), 5)
        eventually(lambda: worker.health.health == "DEGRADED")
        assert worker.health.reasons == ["11 failures in a row, and more than 10 are too many"]
        bus.wait("payments", bus.send("payments", "Debit", False), 5)
        eventually(lambda: worker.health.health == "HEALTHY")


# Stopping, outages, limits.


def test_stopping_lets_running_commands_end_and_gives_the_others_back(
    dsn: str, bus: CommandBus
) -> None:
    """M011, M024, R16."""
    registry, gate = HandlerRegistry(), Gate()
    registry.register("payments", "Debit", gate)
    with running(dsn, registry, concurrency=2) as worker:
        bus.send_many([SendRequest("payments", "Debit")] * 6)
        gate.wait_for(2)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        gate.open.set()
        stopping.join(10)
        assert not stopping.is_alive()
    snapshot = bus.snapshot("payments")
    assert (snapshot["in_progress"], snapshot["ready"]) == (0, 4)
    assert {record.attempts for record in bus.query(status="PENDING")} == {0}


def test_a_hung_handler_cannot_keep_the_worker(dsn: str, bus: CommandBus) -> None:
    """M104, M121."""
    registry = HandlerRegistry()
    entered, let_go = threading.Event(), threading.Event()

    @registry.handler("payments", "Hang")
    def hang(command: Command, context: Context) -> None:
        leave_effect(command, context)
        entered.set()
        let_go.wait(20)

    worker = Worker(dsn, registry)
    thread = threading.Thread(target=worker.run)
    thread.start()
    sent = bus.send("payments", "Hang")
    assert entered.wait(5)
    began = time.monotonic()
    worker.stop(timeout=0.3)
    thread.join(5)
    assert time.monotonic() - began < 3
    record = bus.get("payments", sent)
    assert record is not None and (record.status, record.attempts) == ("PENDING", 0)
    let_go.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("worker-")])
    assert effects(dsn) == 0


def test_a_worker_outlives_the_death_of_all_its_sessions(dsn: str, bus: CommandBus) -> None:
    """Fault 35, fault 36: and the attempt that was cut off is not charged."""
    registry = HandlerRegistry()
    entered = threading.Semaphore(0)

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> int:
        leave_effect(command, context)
        entered.release()
        if command.data == "wait":
            context.connection.execute("SELECT pg_sleep(20)")
        return context.attempt

    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'cmdbus:%'"
        " AND application_name <> 'cmdbus:bus'"
    )
    with running(dsn, registry, concurrency=2), connect(dsn) as killer:
        for _ in range(5):
            bus.wait("payments", bus.send("payments", "Debit"), 5)
            killer.execute(kill)
            assert bus.wait("payments", bus.send("payments", "Debit"), 10).result == 1
        for _ in range(10):
            assert entered.acquire(timeout=5)
        cut_off = bus.send("payments", "Debit", "wait")
        assert entered.acquire(timeout=5)
        killer.execute(kill)
        eventually(lambda: "DATABASE_AWAY" in str(bus.audit("payments", cut_off)))
        record = bus.get("payments", cut_off)
        assert record is not None and record.attempts == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1"),
        ({"concurrency": 129}, "concurrency must be at most 128"),
        ({"poll_interval": 0.099}, r"poll_interval must be at least 0\.1 s"),
        ({"domains": ["orders"]}, "no handler for domain 'orders'"),
        ({"domains": []}, "domains must name at least one"),
    ],
)
def test_impossible_workers_are_refused(options: dict[str, object], sentence: str) -> None:
    """M038, M039."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with pytest.raises(ValueError, match=sentence):
        Worker("host=nowhere", registry, **options)  # type: ignore[arg-type]


def test_a_worker_without_handlers_is_refused() -> None:
    with pytest.raises(ValueError, match="the registry has no handlers"):
        Worker("host=nowhere", HandlerRegistry())


def test_a_pool_of_the_callers_must_fit(dsn: str, bus: CommandBus) -> None:
    """M117."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    options = (
        "-c statement_timeout=25s -c idle_in_transaction_session_timeout=35s"
        " -c lock_timeout=1s -c default_transaction_isolation=read\\ committed"
    )
    good = {"autocommit": True, "options": options}
    for kwargs, size, sentence in (
        (good, 3, "needs? 4: make it with max_size=4|2 threads need 4"),
        ({"options": options}, 4, "must be in autocommit mode"),
        ({"autocommit": True}, 4, "statement_timeout = 0, and the worker needs 25s"),
    ):
        pool = ConnectionPool(dsn, kwargs=kwargs, min_size=1, max_size=size, open=True)
        with pool, pytest.raises(ValueError, match=sentence):
            Worker(pool, registry, concurrency=2).run()
    with (
        ConnectionPool(dsn, kwargs=good, min_size=1, max_size=4, open=True) as pool,
        running(pool, registry, concurrency=2),
    ):
        bus.wait("payments", bus.send("payments", "Debit"), 5)


def test_a_missing_schema_is_said_when_the_worker_starts(empty_dsn: str) -> None:
    """R05."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    worker = Worker(empty_dsn, registry)
    with pytest.raises(SchemaError, match="run cmdbus init"):
        worker.run()
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    stopper.join(5)
    assert not stopper.is_alive(), "stop waits for no end that has been"
