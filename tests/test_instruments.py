"""Instruments: what they see of sends, waits and executions, and in which order."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID, uuid4

import pytest
from eventually import eventually
from handlers import SOON, handling, running
from observed import Recorder, installed

from cmdbus import (
    AsyncCommandBus,
    BusinessRuleError,
    Command,
    CommandBus,
    CommandFailedError,
    Context,
    DuplicateCommandError,
    SendRequest,
    instruments,
)
from cmdbus.instruments import EndedExecution, Instrument, Request, Sending


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    with installed(made):
        yield made


def test_each_way_of_sending_is_seen_with_its_requests_and_ids(
    bus: CommandBus, recorder: Recorder
) -> None:
    requests = [SendRequest("payments", "Debit"), SendRequest("payments", "Credit")]
    one = bus.send("payments", "Debit")
    many = bus.send_many(requests)
    assert bus.send_many([]) == []
    listed = bus.create_batch("payments", requests, on_complete=SendRequest("payments", "Done"))
    iterated = bus.create_batch("payments", iter(requests))
    process = bus.start_process("payments", "Transfer")
    bus.signal_process(process, "hurry")
    seen = [(each.operation, each.types, each.ids, each.count) for each in recorder.sends]
    assert seen == [
        ("send", ["Debit"], [one], 1),
        ("send_many", ["Debit", "Credit"], many, 2),
        ("create_batch", ["Debit", "Credit"], [listed], 2),
        ("create_batch", [], [iterated], 2),
        ("start_process", ["process:start"], [process], 1),
        ("signal_process", [], [process], 1),
    ]


def test_a_refused_send_is_seen_without_ids(bus: CommandBus, recorder: Recorder) -> None:
    bus.send("payments", "Debit", command_id=(known := uuid4()))
    with pytest.raises(DuplicateCommandError):
        bus.send("payments", "Debit", command_id=known)
    with pytest.raises(ValueError, match="domain"):
        bus.send("", "Debit")
    assert [each.ids for each in recorder.sends] == [[known], None, None]


def test_the_error_with_which_a_call_ends_is_seen(dsn: str, bus: CommandBus) -> None:
    class Noting(Instrument):
        @contextmanager
        def waiting(self, operation: str, domain: str | None, id: UUID) -> Iterator[None]:
            try:
                yield
            except CommandFailedError as error:
                seen.append(error.code)
                raise

    def fail(command: Command, context: Context) -> None:
        raise BusinessRuleError("CLOSED", "not today")

    async def call() -> None:
        async with AsyncCommandBus(dsn) as asynchronous:
            await asynchronous.call("payments", "Debit")

    seen: list[str] = []
    with installed(Noting()), running(dsn, handling(fail)):
        with pytest.raises(CommandFailedError):
            bus.call("payments", "Debit")
        with pytest.raises(CommandFailedError):
            asyncio.run(call())
    assert seen == ["CLOSED", "CLOSED"]


def test_calls_and_waits_are_seen_around_their_sends(
    dsn: str, bus: CommandBus, recorder: Recorder
) -> None:
    async def on_asyncio() -> UUID:
        async with AsyncCommandBus(dsn) as asynchronous:
            assert await asynchronous.call("payments", "Noop") is None
            sent = await asynchronous.send("payments", "Noop")
            await asynchronous.wait("payments", sent, 10)
            return sent

    with running(dsn, handling()):
        bus.call("payments", "Noop")
        batch = bus.create_batch("payments", [SendRequest("payments", "Noop")])
        bus.wait_batch(batch, 10)
        sent = asyncio.run(on_asyncio())
    called, _, called_on_asyncio, _ = recorder.sends
    assert [each.operation for each in recorder.sends] == ["call", "create_batch", "call", "send"]
    assert called.ids is not None
    assert called_on_asyncio.ids is not None
    assert [each for each in recorder.waits if each[1] != "over"] == [
        ("call", "payments", called.ids[0]),
        ("wait_batch", None, batch),
        ("call", "payments", called_on_asyncio.ids[0]),
        ("wait", "payments", sent),
    ]


def test_executions_are_seen_with_their_outcomes_and_then_with_their_settlements(
    dsn: str, bus: CommandBus, recorder: Recorder
) -> None:
    failure = BusinessRuleError("CLOSED", "not today")

    def handle(command: Command, context: Context) -> object:
        if command.data == "fails":
            raise failure
        if command.data == "retries" and context.attempt == 1:
            raise LookupError
        if command.data == "added":
            assert context.batch is not None
            context.batch.add([SendRequest("payments", "Noop")])
        return command.data

    with running(dsn, handling(handle, retry=SOON)):
        for each in ("works", "fails", "retries"):
            ended = len(recorder.ends) + (2 if each == "retries" else 1)
            bus.wait("payments", bus.send("payments", "Debit", each), 10)
            eventually(lambda: len(recorder.ends) == ended)  # noqa: B023
        batch = bus.create_batch("payments", [SendRequest("payments", "Debit", "added")])
        bus.wait_batch(batch, 10)
    outcomes = [outcome for _, outcome, _ in recorder.executions]
    works, fails, error, retries, *_ = outcomes
    assert works == ("COMPLETED", "works", None, None, None)
    assert fails == ("FAILED", None, failure, "CLOSED", None)
    assert error is not None
    assert (error.status, error.code, error.delay) == ("RETRY", "LookupError", 0.01)
    assert retries == ("COMPLETED", "retries", None, None, None)
    assert [raised for _, _, raised in recorder.executions[:2]] == [None, failure]
    assert "batch.add" in [each.operation for each in recorder.sends]
    seen = [(each.outcome, each.attempt, each.code, each.delay) for each in recorder.ends[:4]]
    assert seen == [
        ("COMPLETED", 1, None, None),
        ("FAILED", 1, "CLOSED", None),
        ("RETRY", 1, "LookupError", 0.01),
        ("COMPLETED", 2, None, None),
    ]
    assert len(recorder.ends) == 6
    first = recorder.ends[0]
    assert first.ended_at < first.settled_at
    assert (first.domain, first.type, first.max_attempts) == ("payments", "Debit", 3)
    assert "not today" in str(recorder.ends[1].message)
    assert "LookupError" in str(recorder.ends[2].details)


def test_a_canceled_execution_is_seen_as_canceled(
    dsn: str, bus: CommandBus, recorder: Recorder
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(command: Command, context: Context) -> None:
        begun.set()
        go_on.wait(10)

    with running(dsn, handling(handle)):
        command_id = bus.send("payments", "Debit")
        assert begun.wait(10)
        bus.cancel("payments", command_id, running=True)
        go_on.set()
        eventually(lambda: recorder.ends)
    [end] = recorder.ends
    assert (end.outcome, end.command_id, end.code) == ("CANCELED", command_id, None)


def test_instruments_are_installed_once_and_entered_in_order(bus: CommandBus) -> None:
    order: list[str] = []

    class Ordered(Instrument):
        def __init__(self, name: str) -> None:
            self.name = name

        @contextmanager
        def sending(self, requests: Sequence[Request], operation: str) -> Iterator[Sending]:
            order.append(self.name)
            yield Sending()
            order.append(f"{self.name} ends")

    first, second = Ordered("first"), Ordered("second")
    with installed(first), installed(second), installed(first):
        assert instruments.installed == (first, second)
        bus.send("payments", "Debit")
    bus.send("payments", "Debit")
    assert not instruments.installed
    assert order == ["first", "second", "second ends", "first ends"]
    with pytest.raises(ValueError, match="an instrument must be an Instrument, not 7"):
        instruments.install(7)


def test_executions_have_no_layer_for_an_instrument_that_only_counts(
    dsn: str, bus: CommandBus
) -> None:
    ends: list[EndedExecution] = []

    class Counting(Instrument):
        def settled(self, ended: EndedExecution) -> None:
            ends.append(ended)

    registry = handling()
    with installed(Counting()):
        assert registry.surroundings_of("payments", "Noop") is None
        with running(dsn, registry):
            bus.call("payments", "Noop")
    assert ends[0].outcome == "COMPLETED"
