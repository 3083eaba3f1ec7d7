"""A worker whose threads hang: it gives up the command, and goes on."""

import math
import threading
from datetime import timedelta

import psycopg
import pytest
from eventually import eventually
from handlers import (
    LADDER,
    ONCE,
    Function,
    Gate,
    await_renewals,
    beside,
    connect,
    do_nothing,
    executing_threads,
    found,
    handling,
    leave_effect,
    run,
    running,
)
from queries import rows

from cmdbus import Command, CommandBus, Context, InvalidOperationError, SendRequest, Timeouts
from cmdbus.checks import MAX_SECONDS
from cmdbus.worker import housekeeping, standalone
from cmdbus.worker.claims.connections import ThreadConnection

TOUCHES: dict[str, Function] = {
    "nothing": do_nothing,
    "its connection": lambda command, context: context.connection,
    "a table": leave_effect,
}


@pytest.mark.parametrize("touches", TOUCHES)
def test_a_thread_that_does_not_come_back_is_given_up_and_its_slot_filled(
    dsn: str, bus: CommandBus, touches: str
) -> None:
    """With its stack and its own SQL, charged, once, and nothing of it lands."""
    gate = Gate(TOUCHES[touches])
    registry = handling(gate, "Hang", timeout=0.4, retry=ONCE)
    with running(dsn, registry, concurrency=1) as worker:
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        assert bus.wait("payments", bus.send("payments", "Noop")).status == "COMPLETED"
        record = bus.wait("payments", hung)
        assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "TIMEOUT")
        assert (record.attempts, record.error_message) == (
            1,
            "gave up after 0.4 s: its thread did not return",
        )
        durations = worker.metrics()["cmdbus_handler_duration_seconds"]
        assert isinstance(durations, dict)
        assert 0.4 <= durations["payments", "Hang"]["sum"] < 20
        gate.open.set()
        bus.wait("payments", bus.send("payments", "Noop"))
    [event] = [event for event in bus.audit("payments", hung) if event.code == "TIMEOUT"]
    assert "self.open.wait(20)" in str(event)
    statement = event.details["details"].get("statement")
    if touches == "a table":
        assert statement.startswith("idle in transaction: INSERT INTO effect")
    else:
        assert statement is None
    assert "blocked_by" not in event.details["details"]
    assert rows(dsn, "SELECT * FROM effect") == []


def test_the_time_after_which_a_thread_was_given_up_includes_its_extensions(
    dsn: str, bus: CommandBus
) -> None:
    gate = Gate(lambda command, context: context.extend(0.2))
    with running(dsn, handling(gate, "Hang", timeout=0.4, retry=ONCE), concurrency=1):
        record = bus.wait("payments", bus.send("payments", "Hang"))
        assert record.error_message == "gave up after 0.6 s: its thread did not return"
        gate.open.set()


def test_a_session_that_is_opened_after_its_thread_was_given_up_is_closed(dsn: str) -> None:
    opening, may_open = threading.Event(), threading.Event()
    sessions: list[psycopg.Connection] = []

    def open_slowly() -> psycopg.Connection:
        opening.set()
        assert may_open.wait(10)
        sessions.append(connect(dsn))
        return sessions[0]

    def use() -> None:
        with pytest.raises(InvalidOperationError, match="its time was over"):
            connection.connection()

    connection = ThreadConnection(open_slowly)
    with beside(use):
        assert opening.wait(10)
        connection.take_away()
        may_open.set()
    assert sessions[0].closed


def test_the_session_of_a_thread_that_came_back_late_serves_no_other_command(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Housekeeping is about to end it."""
    monkeypatch.setattr(housekeeping, "_SETTLE_WITHIN", 2.0)
    late, other = Gate(), Gate(leave_effect)
    registry = handling(late, "Late", timeout=0.3, retry=ONCE)
    registry.register("payments", "Debit", other)
    with running(dsn, registry, concurrency=1) as worker:
        hung = bus.send("payments", "Late")
        late.wait_for(1)
        [thread] = worker._concurrency.threads._all() if worker._concurrency.threads else []
        eventually(lambda: thread.given_up)
        late.open.set()
        thread.thread.join(10)
        sent = bus.send("payments", "Debit")
        worker.set_concurrency(2)
        other.wait_for(1)
        assert bus.wait("payments", hung).error_code == "TIMEOUT"
        other.open.set()
        assert bus.wait("payments", sent).status == "COMPLETED"
    assert rows(dsn, "SELECT losses FROM cmdbus.finished") == [(0,)]


def test_a_thread_that_cannot_be_replaced_keeps_no_other_command_from_its_timeout(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The board has no slot for its successor: those of the threads that hang are taken."""
    monkeypatch.setattr(standalone, "SLOTS", 6)
    gate = Gate()
    with running(dsn, handling(gate, "Hang", timeout=0.4, retry=ONCE), concurrency=2):
        hung = bus.send_many([SendRequest("payments", "Hang")] * 3)
        assert {bus.wait("payments", id).error_code for id in hung} == {"TIMEOUT"}
        eventually(lambda: "too many threads hang" in caplog.text)
        assert "Traceback" not in caplog.text
        gate.open.set()
        assert bus.wait("payments", bus.send("payments", "Noop")).status == "COMPLETED"


def test_of_a_query_that_waits_for_a_lock_it_is_known_who_holds_it(
    dsn: str, bus: CommandBus
) -> None:
    def wait(command: Command, context: Context) -> None:
        context.connection.execute("SET LOCAL statement_timeout = 0; LOCK TABLE effect")

    with psycopg.connect(dsn, application_name="the report") as holder:
        holder.execute("LOCK TABLE effect")
        pid = holder.info.backend_pid
        with running(dsn, handling(wait, "Wait", timeout=0.4, retry=ONCE), concurrency=1):
            waited = bus.send("payments", "Wait")
            assert bus.wait("payments", waited).error_code == "TIMEOUT"
    [event] = [event for event in bus.audit("payments", waited) if event.code == "TIMEOUT"]
    [blocker] = event.details["details"]["blocked_by"]
    assert blocker.startswith(f"pid {pid} (the report, role ")
    assert blocker.endswith("): LOCK TABLE effect")
    assert f"blocked_by: {blocker}" in str(event)


def test_all_threads_hang_and_work_goes_on(dsn: str, bus: CommandBus) -> None:
    gate = Gate()
    with running(dsn, handling(gate, "Hang", retry=ONCE), concurrency=3, timeouts=LADDER):
        bus.send_many([SendRequest("payments", "Hang")] * 7)
        good = bus.send("payments", "Noop")
        assert bus.wait("payments", good).status == "COMPLETED"
        eventually(lambda: bus.snapshot("payments")["troubleshooting"] == 7)
        gate.open.set()


def test_a_slot_that_was_given_up_is_filled_however_its_thread_leaves(
    dsn: str, bus: CommandBus
) -> None:
    """Housekeeping itself frees a thread in the driver, which ends before it is replaced."""
    timeouts = Timeouts(statement=20, pool=20, lease=25, thread=30, watchdog=40)

    def hang(command: Command, context: Context) -> None:
        context.connection.execute("SELECT pg_sleep(15)")

    with running(
        dsn, handling(hang, "Hang", timeout=0.2, retry=ONCE), concurrency=2, timeouts=timeouts
    ):
        for _ in range(2):
            hung = bus.send_many([SendRequest("payments", "Hang")] * 2)
            for id_ in hung:
                assert bus.wait("payments", id_).error_code == "TIMEOUT"
        eventually(lambda: executing_threads() == 2)
        assert bus.wait("payments", bus.send("payments", "Noop")).status == "COMPLETED"


def test_a_thread_that_cannot_be_replaced_keeps_no_lease_from_being_renewed(
    dsn: str, bus: CommandBus
) -> None:
    """Another session has locked the row of a command that hangs; a second command runs long."""
    hangs, runs = Gate(), Gate()
    registry = handling(hangs, "Hang", timeout=0.2, retry=ONCE)
    registry.register("payments", "Long", runs, timeout=60)
    ladder = Timeouts(statement=0.8, pool=1.0, lease=1.2, thread=1.3, watchdog=2.0)
    with running(dsn, registry, concurrency=3, timeouts=ladder), psycopg.connect(dsn) as stranger:
        hung, long = bus.send("payments", "Hang"), bus.send("payments", "Long")
        hangs.wait_for(1)
        runs.wait_for(1)
        stranger.execute("SELECT 1 FROM cmdbus.ready WHERE command_id = %s FOR UPDATE", (hung,))
        first = bus.get("payments", long)
        await_renewals(dsn, long, 5)
        stranger.rollback()
        assert bus.wait("payments", hung).error_code == "TIMEOUT"
        runs.open.set()
        record = bus.wait("payments", long)
        assert first is not None and record.started_at == first.started_at
        assert runs.most == 1
        hangs.open.set()


def test_a_handlers_own_timeout_wins_and_can_be_extended(dsn: str, bus: CommandBus) -> None:
    released = threading.Event()

    def long(command: Command, context: Context) -> str:
        if command.data:
            context.extend(command.data)
        released.wait(20)
        return "done"

    with running(dsn, handling(long, "Long", timeout=0.2, retry=ONCE)):
        patient = bus.send("payments", "Long", 10)
        hasty = bus.send("payments", "Long")
        assert bus.wait("payments", hasty).error_code == "TIMEOUT"
        released.set()
        assert bus.wait("payments", patient).result == "done"


def test_a_handler_extends_its_timeout_by_no_absurd_time(dsn: str, bus: CommandBus) -> None:
    def extend(command: Command, context: Context) -> list[str]:
        refused = []
        for seconds in (MAX_SECONDS - 60, 60, -1, math.inf, math.nan, 300 * 365 * 86400):
            try:
                context.extend(seconds)
            except ValueError as error:
                refused.append(str(error))
        return refused

    [record] = run(dsn, bus, extend)
    assert record.result == [
        "the timeout after extend must be at most 3153600000 seconds, not 3153600035.0",
        "extend must be more than 0 seconds and finite, not -1",
        "extend must be more than 0 seconds and finite, not inf",
        "extend must be more than 0 seconds and finite, not nan",
        "extend must be at most 3153600000 seconds, not 9460800000",
    ]


def test_a_command_that_timed_out_waits_as_long_as_its_handler_has_asked(
    dsn: str, bus: CommandBus
) -> None:
    gate = Gate(lambda command, context: context.retry_after(3600))
    with running(dsn, handling(gate, "Hang", timeout=0.2)):
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        eventually(lambda: found(bus, hung).attempts == 1 and found(bus, hung).status == "PENDING")
        gate.open.set()
    record = found(bus, hung)
    assert record.error_code == "TIMEOUT"
    assert timedelta(minutes=59) < record.due_at - record.created_at < timedelta(minutes=62)
