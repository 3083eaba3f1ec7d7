"""A worker in one process: the way of a command, and what may go wrong on it."""

import threading
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import Gate, connect, effects, leave_effect, running

from cmdbus import (
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    RetryPolicy,
    SendRequest,
    Status,
    TransientCommandError,
)

SOON = RetryPolicy(max_attempts=3, backoff=(0.01,), jitter=0.0)


def kinds(bus: CommandBus, command_id: UUID) -> list[str]:
    return [event.kind for event in bus.audit("payments", command_id)]


def test_a_handler_gets_the_command_and_its_result_is_kept(dsn: str, bus: CommandBus) -> None:
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
    """Whatever the poll interval is."""
    registry = HandlerRegistry()
    registry.register("payments", "Debit", lambda command, context: None)
    with running(dsn, registry, poll_interval=60):
        bus.send_many([SendRequest("payments", "Debit")] * 1000)
        eventually(lambda: len(bus.query("payments", "COMPLETED", limit=2000)) == 1000, 10)


def test_a_command_with_a_lower_id_that_commits_later_is_run_all_the_same(
    dsn: str, bus: CommandBus
) -> None:
    """By a worker that never rests, and has run higher ones."""
    registry, over = HandlerRegistry(), threading.Event()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        if not over.wait(0.01):
            bus.send("payments", "Debit")  # so that there is always a next one

    with psycopg.connect(dsn) as late:
        lower = bus.send("payments", "Debit", connection=late)
        with running(dsn, registry, concurrency=1, poll_interval=60.0):
            higher = bus.send_many([SendRequest("payments", "Debit")] * 3)
            bus.wait("payments", higher[-1], 10)
            late.commit()
            assert bus.wait("payments", lower, 10).status == "COMPLETED"
            over.set()


def test_the_correlation_id_follows_a_command_everywhere(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
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
    registry = HandlerRegistry()
    registry.register("payments", "Name", lambda c, ctx: threading.current_thread().name)
    with running(dsn, registry, concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Name"), 5)
        assert record.result == "worker-payments-0"
        assert "worker-0" in {thread.name for thread in threading.enumerate()}


def test_a_worker_leaves_alone_what_it_has_no_handler_for(dsn: str, bus: CommandBus) -> None:
    """Only the registry leads from a command to code."""
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


def test_a_failed_command_is_tried_again_and_then_a_person_decides(
    dsn: str, bus: CommandBus
) -> None:
    """On time, with a fallback of a minute; and each attempt
    is told of."""
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


def test_whatever_a_handler_raises_its_thread_goes_on(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """And each command that it sends to troubleshooting has one event and one logged error."""
    registry = HandlerRegistry()
    errors: list[BaseException] = [SystemExit(1), KeyboardInterrupt(), GeneratorExit()]
    errors += [RecursionError("deep\nand deeper"), MemoryError(), BaseException("base")]

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=1))
    def debit(command: Command, context: Context) -> None:
        raise errors[command.data]

    with running(dsn, registry, concurrency=1):
        ids = [bus.send("payments", "Debit", index) for index in range(len(errors))]
        codes = [bus.wait("payments", id_, 5).error_code for id_ in ids]
    assert codes == [type(error).__name__ for error in errors]
    for id_ in ids:
        logged = [r for r in caplog.records if f"command {id_} " in r.getMessage()]
        assert [r.levelname for r in logged].count("ERROR") == 1
        assert not any("\n" in r.getMessage() for r in logged)
        assert kinds(bus, id_) == ["SENT", "RECEIVED", "MOVED_TO_TROUBLESHOOTING_QUEUE"]


def test_a_handler_asks_to_be_tried_again_later(dsn: str, bus: CommandBus) -> None:
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
