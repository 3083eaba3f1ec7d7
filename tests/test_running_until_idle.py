"""`CommandTester.run_commands` with what the commands themselves send."""

import psycopg
import pytest
from wire import Wire

from cmdbus import (
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    InvalidOperationError,
    SendRequest,
)
from cmdbus.testing import CommandTester


@pytest.fixture
def tester(dsn: str) -> CommandTester:
    return CommandTester(dsn)


def chained() -> HandlerRegistry:
    """Each A sends a B, which replies."""
    registry = HandlerRegistry()

    @registry.handler("d", "A")
    def first(command: Command, context: Context) -> None:
        with CommandBus("host=nowhere") as bus:
            bus.send("d", "B", reply_to="d", connection=context.connection)

    @registry.handler("d", "B")
    @registry.handler("d", "Reply")
    @registry.handler("d", "Over")
    def other(command: Command, context: Context) -> None:
        pass

    return registry


def test_what_commands_send_runs_until_idle_only(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection
) -> None:
    registry = chained()
    bus.send("d", "A", connection=sender)
    assert [each.type for each in tester.run_commands(registry, sender)] == ["A"]
    bus.send("d", "A", connection=sender)
    done = tester.run_commands(registry, sender, "idle")
    assert [each.type for each in done] == ["B", "A", "Reply", "B", "Reply"]


def test_a_batch_ends_and_sends_what_it_is_to_send(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection
) -> None:
    registry = chained()
    requests = [SendRequest("d", "B") for _ in range(2)]
    batch = bus.create_batch("d", requests, on_complete=SendRequest("d", "Over"), connection=sender)
    assert [each.type for each in tester.run_commands(registry, sender)] == ["B", "B"]
    found = bus.get_batch(batch, connection=sender)
    assert found is not None and found.status == "COMPLETED"
    assert [each.type for each in tester.run_commands(registry, sender)] == ["Over"]


def test_commands_that_never_become_idle_are_stopped_by_a_sentence(
    tester: CommandTester,
    bus: CommandBus,
    sender: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = HandlerRegistry()

    @registry.handler("d", "T")
    def again(command: Command, context: Context) -> None:
        bus.send("d", "T", connection=context.connection)

    monkeypatch.setattr("cmdbus.testing.runner._MAX_EXECUTIONS", 3)
    bus.send("d", "T", connection=sender)
    with pytest.raises(InvalidOperationError, match="3 commands have run, and more are due"):
        tester.run_commands(registry, sender, "idle")


@pytest.mark.parametrize("table", ["ready", "scheduled", "limited"])
def test_a_command_that_has_expired_is_canceled_wherever_it_waits(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection, table: str
) -> None:
    registry = chained()
    registry.register("d", "Slow", lambda command, context: None, concurrency=1)
    tester.run_commands(registry, sender)
    delay = 60 if table == "scheduled" else 0
    type = "Slow" if table == "limited" else "A"
    command_id = bus.send("d", type, delay=delay, expires=90, connection=sender)
    query = f"SELECT FROM cmdbus.{table} WHERE expires_at IS NOT NULL"
    assert sender.execute(query.encode()).fetchall() == [()]
    # So that its delay and its expiry do not end at the same time.
    sender.execute(b"UPDATE cmdbus.scheduled SET due_at = due_at + interval '1 day'")
    tester.travel(minutes=2, connection=sender)
    assert tester.run_commands(registry, sender) == []
    record = bus.get("d", command_id, connection=sender)
    assert record is not None and record.error_code == "EXPIRED"


def test_what_a_test_does_not_use_costs_its_commands_no_statements(
    tester: CommandTester, bus: CommandBus, dsn: str
) -> None:
    registry = chained()
    with Wire(dsn) as wire, psycopg.connect(wire.dsn) as connection:

        def executed() -> int:
            wire.counts.clear()
            tester.run_commands(registry, connection)
            return wire.statements

        executed()  # The first one also begins the transaction.
        nothing = executed()
        bus.send("d", "B", connection=connection)
        one = executed()
        bus.send("d", "B", connection=connection, delay=60)
        later = executed()
        bus.create_batch("d", [SendRequest("d", "None")], connection=connection)
        with_batch = executed()
        connection.rollback()
    assert (nothing, one - nothing) == (8, 5)
    assert (later, with_batch) == (nothing, nothing + 1)
