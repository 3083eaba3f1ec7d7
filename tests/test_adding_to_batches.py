"""What handlers add to the batch of their command."""

from uuid import UUID

import psycopg
import pytest
from batches import CLOSE, DEBIT, UNDO, batch_of, check_counters, sent_after
from eventually import eventually
from handlers import (
    ONCE,
    SOON,
    Gate,
    effects,
    found,
    handling,
    leave_effect,
    running,
)
from queries import await_lock_waits

from cmdbus import (
    BatchStatus,
    Command,
    CommandBus,
    Context,
    SendRequest,
    TransientCommandError,
)


def test_a_handler_adds_commands_to_its_batch_in_its_transaction(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    seen: list[UUID | None] = []

    def fan_out(command: Command, context: Context) -> list[str]:
        batch = context.batch
        seen.append(None if batch is None else batch.batch_id)
        if batch is None or command.data is not None:
            return []
        leave_effect(command, context)
        added = batch.add(SendRequest("payments", "Debit", n) for n in range(5))
        assert batch.add([]) == []
        if context.attempt == 1:
            raise TransientCommandError("AWAY", "after it has added")
        return [str(id_) for id_ in added]

    with running(dsn, handling(fan_out, retry=SOON), concurrency=4):
        batch_id = bus.create_batch("payments", [DEBIT] * 4, on_complete=CLOSE)
        alone = bus.wait("payments", bus.send("payments", "Debit"))
        record = bus.wait_batch(batch_id, timeout=10)
    assert alone.batch_id is None and set(seen) == {None, batch_id}
    assert (record.total, record.completed, effects(dsn)) == (24, 24, 4)
    assert check_counters(connection, batch_id) == "COMPLETED"
    added = [r.result for r in bus.batch_commands(batch_id) if r.data is None]
    assert sum(map(len, added)) == 20
    assert found(bus, UUID(added[0][0])).batch_id == batch_id
    assert len(sent_after(bus, batch_id)) == 1


def test_a_handler_can_add_only_requests_to_its_batch(dsn: str, bus: CommandBus) -> None:
    def add(command: Command, context: Context) -> None:
        assert context.batch is not None
        context.batch.add(command.data)

    with running(dsn, handling(add, retry=ONCE)):
        bus.create_batch("payments", [SendRequest("payments", "Debit", d) for d in (None, [None])])
        eventually(lambda: bus.troubleshooting.count() == 2)
    messages = {record.data is None: record.error_message for record in bus.troubleshooting.list()}
    assert "requests must be an iterable of SendRequests, not NoneType" in str(messages[True])
    assert "requests must be SendRequests, not NoneType" in str(messages[False])


def test_handlers_that_add_warn_once_of_a_depth(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    def add(command: Command, context: Context) -> None:
        assert context.batch is not None
        context.batch.add([SendRequest("deep", "Unhandled")])

    bus.configure("deep", warn_depth=1)
    with running(dsn, handling(add)):
        batch_id = bus.create_batch("payments", [DEBIT] * 3)
        eventually(lambda: batch_of(bus, batch_id).completed == 3)
    warnings = [r for r in caplog.records if "the depth of domain deep is" in r.getMessage()]
    assert len(warnings) == 1


def test_handlers_that_add_do_not_wait_for_each_other(dsn: str, bus: CommandBus) -> None:
    def add(command: Command, context: Context) -> None:
        if command.data is None and context.batch is not None:
            context.batch.add([SendRequest("payments", "Debit", 1)])

    def meet(command: Command, context: Context) -> None:
        add(command, context)
        if command.data is None:
            gate(command, context)

    gate = Gate()
    with running(dsn, handling(meet), concurrency=3):
        batch_id = bus.create_batch("payments", [DEBIT] * 2)
        gate.wait_for(2)
        gate.open.set()
        assert bus.wait_batch(batch_id, timeout=10).completed == 4


def test_a_batch_that_is_being_canceled_takes_no_commands(dsn: str, bus: CommandBus) -> None:
    errors: list[str] = []
    gate = Gate()

    def add(command: Command, context: Context) -> None:
        gate(command, context)
        assert context.batch is not None
        try:
            context.batch.add([DEBIT])
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    with running(dsn, handling(add, retry=ONCE), concurrency=1):
        batch_id = bus.create_batch("payments", [DEBIT] * 3, on_cancel=UNDO)
        gate.wait_for(1)
        bus.cancel_batch(batch_id)
        gate.open.set()
        record = bus.wait_batch(batch_id, timeout=10)
    assert (record.status, record.canceled) == (BatchStatus.CANCELED, 2)
    refused = "takes no further commands: it is being canceled"
    assert errors == [f"InvalidOperationError: batch {batch_id} {refused}"]
    assert len(sent_after(bus, batch_id)) == 1


def test_a_batch_does_not_end_while_a_transaction_adds_to_it(dsn: str, bus: CommandBus) -> None:
    """The lock of its row decides: a cancellation waits for those that add, and they for it."""
    batch_id = bus.create_batch("payments", [DEBIT])
    add = "SELECT cmdbus.add_to_batch(%s, 1)"
    with psycopg.connect(dsn) as adding, psycopg.connect(dsn) as canceling:
        assert adding.execute(add, (batch_id,)).fetchall() == [(None,)]
        bus_lock = "SET LOCAL lock_timeout = '50ms'"
        canceling.execute(bus_lock)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            bus.cancel_batch(batch_id, connection=canceling)
        canceling.rollback()
        adding.commit()
        assert batch_of(bus, batch_id).total == 2
        bus.cancel_batch(batch_id, connection=canceling)
        adding.execute(bus_lock)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            adding.execute(add, (batch_id,))
        adding.rollback()
        canceling.commit()
        assert adding.execute(add, (batch_id,)).fetchall() == [("CANCELING",)]


def test_an_added_command_waits_for_a_cancellation_that_is_not_committed(
    dsn: str, bus: CommandBus
) -> None:
    """Then `add` raises, and the transaction of its handler goes on."""
    errors: list[Exception] = []
    gate = Gate()

    def add(command: Command, context: Context) -> None:
        leave_effect(command, context)
        gate(command, context)
        assert context.batch is not None
        try:
            context.batch.add([DEBIT])
        except Exception as error:
            errors.append(error)

    with running(dsn, handling(add, retry=ONCE), concurrency=1), psycopg.connect(dsn) as mine:
        batch_id = bus.create_batch("payments", [DEBIT])
        gate.wait_for(1)
        bus.cancel_batch(batch_id, connection=mine)
        gate.open.set()
        await_lock_waits(dsn)
        mine.commit()
        record = bus.wait_batch(batch_id, timeout=10)
    assert (record.status, record.completed, len(errors)) == (BatchStatus.CANCELED, 1, 1)
    assert effects(dsn) == 1
