"""A worker in one process: the way of a command, and what may go wrong on it."""

import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import (
    ONCE,
    SOON,
    Gate,
    connect,
    effects,
    found,
    handling,
    kinds,
    leave_effect,
    run,
    running,
)
from queries import scalar

from cmdbus import (
    Command,
    CommandBus,
    Context,
    PermanentCommandError,
    SendRequest,
    Status,
    Timeouts,
    TransientCommandError,
)


def test_a_handler_gets_the_command_and_its_result_is_kept(dsn: str, bus: CommandBus) -> None:
    seen: list[tuple[Command, Context]] = []
    left: list[float] = []

    def debit(command: Command, context: Context) -> object:
        seen.append((command, context))
        left.append(context.remaining())
        left.append((context.deadline - datetime.now(UTC)).total_seconds())
        return {"balance": 1e23}

    with running(dsn, handling(debit)):
        sent = bus.send("payments", "Debit", {"amount": 5}, priority=3, reply_to="orders")
        record = bus.wait("payments", sent)
    assert (record.status, record.result, record.attempts) == ("COMPLETED", {"balance": 1e23}, 1)
    [(command, context)] = seen
    assert (command.command_id, command.data, command.priority) == (sent, {"amount": 5}, 3)
    assert (command.domain, command.type, command.reply_to) == ("payments", "Debit", "orders")
    assert command.correlation_id == record.correlation_id
    assert command.created_at == record.created_at
    assert (context.attempt, context.max_attempts) == (1, 3)
    assert all(30 < seconds <= 35 for seconds in left)
    assert kinds(bus, sent) == ["SENT", "RECEIVED", "COMPLETED"]
    assert record.max_attempts == 3


def test_context_variables_that_a_handler_sets_end_with_its_execution(
    dsn: str, bus: CommandBus
) -> None:
    tenant = ContextVar("tenant", default="none")

    def debit(command: Command, context: Context) -> object:
        found = tenant.get()
        tenant.set("acme")
        return found

    assert [record.result for record in run(dsn, bus, debit, times=2)] == ["none", "none"]


def test_a_command_with_a_lower_id_that_commits_later_is_run_all_the_same(
    dsn: str, bus: CommandBus
) -> None:
    """By a worker that never rests, and has run higher ones."""
    over = threading.Event()

    def debit(command: Command, context: Context) -> None:
        if not over.wait(0.01):
            bus.send("payments", "Debit")  # so that there is always a next one

    with psycopg.connect(dsn) as late:
        lower = bus.send("payments", "Debit", connection=late)
        with running(dsn, handling(debit), concurrency=1, poll_interval=60.0):
            higher = bus.send_many([SendRequest("payments", "Debit")] * 3)
            bus.wait("payments", higher[-1])
            late.commit()
            assert bus.wait("payments", lower).status == "COMPLETED"
            over.set()


def test_the_correlation_id_follows_a_command_everywhere(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[UUID] = []

    def debit(command: Command, context: Context) -> None:
        seen.append(command.correlation_id)
        context.log.warning("debiting", extra=None)  # As from a function that passes its own on.

    correlation = uuid4()
    with running(dsn, handling(debit)):
        sent = bus.send("payments", "Debit", correlation_id=correlation, reply_to="orders")
        record = bus.wait("payments", sent)
        other = bus.send("payments", "Debit")
        bus.wait("payments", other)
    assert seen == [correlation, other]
    [line, _] = [line for line in caplog.records if line.getMessage() == "debiting"]
    assert vars(line)["correlation_id"] == str(correlation)
    assert (vars(line)["command_id"], vars(line)["attempt"]) == (str(sent), 1)
    [reply] = bus.query("orders")
    assert (record.correlation_id, reply.correlation_id) == (correlation, correlation)
    assert str(correlation) in str(bus.audit("payments", sent)[0])


def test_a_handler_may_log_with_names_that_every_record_has(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    def debit(command: Command, context: Context) -> None:
        context.log.warning("debiting", extra={"name": "Ann", "message": None, "amount": 5})

    [record] = run(dsn, bus, debit)
    assert record.status == "COMPLETED"
    [line] = [line for line in caplog.records if line.getMessage() == "debiting"]
    values = vars(line)
    assert (line.name, values["name_"], values["amount"]) == ("cmdbus.handler", "Ann", 5)


def test_as_many_run_at_once_as_there_are_threads_and_a_freed_slot_is_filled(
    dsn: str, bus: CommandBus
) -> None:
    gate = Gate()
    with running(dsn, handling(gate), concurrency=3):
        bus.send_many([SendRequest("payments", "Debit")] * 10)
        gate.wait_for(3)
        snapshot = bus.snapshot("payments")
        assert (snapshot["in_progress"], snapshot["ready"]) == (3, 7), "never more than it can run"
        gate.open.set()
        gate.wait_for(7)
        eventually(lambda: len(bus.query(status="COMPLETED")) == 10)
    assert gate.most == 3


def test_threads_are_named_after_what_they_run(dsn: str, bus: CommandBus) -> None:
    registry = handling(lambda command, context: threading.current_thread().name)
    with running(dsn, registry, concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Debit"))
        assert record.result == "worker-payments-0"
        assert "worker-0" in {thread.name for thread in threading.enumerate()}


def test_a_worker_leaves_alone_what_it_has_no_handler_for(dsn: str, bus: CommandBus) -> None:
    """Only the registry leads from a command to code."""
    with running(dsn, handling()):
        other = bus.send("payments", "Other")
        elsewhere = bus.send("orders", "Debit")
        bus.wait("payments", bus.send("payments", "Debit"))
        for domain, id_ in (("payments", other), ("orders", elsewhere)):
            assert found(bus, id_, domain).status is Status.PENDING


def test_what_python_cannot_decode_goes_to_troubleshooting_and_its_batch_goes_on(
    dsn: str, bus: CommandBus
) -> None:
    with connect(dsn) as connection:
        bad = scalar(connection, "SELECT cmdbus.send('payments', 'Debit', %s)", "9" * 5000)
    good = bus.send("payments", "Debit", 1)
    with running(dsn, handling(lambda command, context: command.data)):
        assert bus.wait("payments", good).result == 1
        record = bus.wait("payments", bad)
    assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "UNDECODABLE")


def test_a_failed_command_is_tried_again_and_then_a_person_decides(
    dsn: str, bus: CommandBus
) -> None:
    """On time, with a fallback of a minute; and each attempt has its event."""

    def debit(command: Command, context: Context) -> None:
        raise ZeroDivisionError(f"attempt {context.attempt}")

    with running(dsn, handling(debit, retry=SOON), poll_interval=60):
        sent = bus.send("payments", "Debit")
        record = bus.wait("payments", sent)
        once = bus.wait("payments", bus.send("payments", "Debit", max_attempts=1))
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
    errors: list[BaseException] = [SystemExit(1), KeyboardInterrupt(), GeneratorExit()]
    errors += [RecursionError("deep\nand deeper"), MemoryError(), BaseException("base")]

    def debit(command: Command, context: Context) -> None:
        raise errors[command.data]

    with running(dsn, handling(debit, retry=ONCE), concurrency=1):
        ids = [bus.send("payments", "Debit", index) for index in range(len(errors))]
        codes = [bus.wait("payments", id_).error_code for id_ in ids]
    assert codes == [type(error).__name__ for error in errors]
    for id_ in ids:
        [logged] = [r for r in caplog.records if vars(r).get("command_id") == str(id_)]
        assert logged.levelname == "ERROR" and "\n" not in logged.getMessage()
        assert kinds(bus, id_) == ["SENT", "RECEIVED", "MOVED_TO_TROUBLESHOOTING_QUEUE"]


def test_a_handler_asks_to_be_tried_again_later(dsn: str, bus: CommandBus) -> None:
    def debit(command: Command, context: Context) -> str:
        if context.attempt == 1:
            raise TransientCommandError("BUSY", "later", retry_after=0.01)
        if context.attempt == 2:
            context.retry_after(0.01)
            raise ValueError("again")
        return "third time"

    with running(dsn, handling(debit)):
        assert bus.wait("payments", bus.send("payments", "Debit")).result == "third time"


def test_a_result_that_cannot_be_stored_fails_the_attempt_and_its_effects(
    dsn: str, bus: CommandBus
) -> None:
    def debit(command: Command, context: Context) -> object:
        if command.data:
            leave_effect(command, context)
        return {"when": "\0"}

    with running(dsn, handling(debit, retry=ONCE)):
        for with_effect in (True, False):
            record = bus.wait("payments", bus.send("payments", "Debit", with_effect))
            assert record.error_code == "RESULT_NOT_STORABLE"
            assert record.error_message == (
                "result.when contains a NUL character, which PostgreSQL cannot hold"
            )
    assert effects(dsn) == 0


class OutOfStock(PermanentCommandError):
    def __init__(self, sku: str) -> None:
        self.sku = sku


class Unreportable(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("no notes")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Unnamed(Unreportable, metaclass=Nameless):
    pass


def test_an_error_that_cannot_be_reported_costs_no_thread(dsn: str, bus: CommandBus) -> None:
    soon = TransientCommandError("BUSY", "later")
    soon.retry_after = "soon"  # type: ignore[assignment]
    errors = [OutOfStock("x"), Unreportable(), soon, Unnamed()]

    def debit(command: Command, context: Context) -> None:
        raise errors[command.data]

    with running(dsn, handling(debit, retry=ONCE), concurrency=1):
        for index in range(len(errors)):
            record = bus.wait("payments", bus.send("payments", "Debit", index))
            assert (record.status, record.attempts) == ("IN_TROUBLESHOOTING_QUEUE", 1)


def test_an_error_outside_of_the_handler_is_logged_and_counted_and_the_command_runs_again(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread goes on, and is not found to be stuck later."""
    ran = list[Context]()

    def debit(command: Command, context: Context) -> None:
        ran.append(context)
        if len(ran) == 1:
            context._execution.began = None  # type: ignore[attr-defined]

    timeouts = Timeouts(0.2, 0.2, 0.5, 1.0, 3.0)
    with running(
        dsn, handling(debit), concurrency=4, poll_interval=60, timeouts=timeouts
    ) as worker:
        lost = bus.send("payments", "Debit")
        record = bus.wait("payments", lost)
        assert (record.status, record.attempts) == ("COMPLETED", 1)
        counts = {
            ("payments", "Debit", "completed"): 1,
            ("payments", "Debit", "lost"): 1,
        }
        eventually(lambda: worker.metrics()["cmdbus_commands_total"] == counts)
        [line] = [r for r in caplog.records if "outside of its handler" in r.getMessage()]
        assert f" command={lost} type=payments/Debit attempt=1 " in line.getMessage()
        assert line.levelname == "ERROR" and line.exc_info is not None
        again = bus.send("payments", "Debit", delay=1.2)
        bus.wait("payments", again)
        assert worker.health.stuck_threads == 0
