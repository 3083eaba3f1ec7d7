"""Spans of real buses and workers, by the real SDK."""

import asyncio
from collections.abc import Iterator

import pytest
from handlers import SOON, handling, running
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, get_current_span
from traces import Traces, attributes, context, instrumented, is_child, times

from cmdbus import (
    AsyncCommandBus,
    BusinessRuleError,
    Command,
    CommandBus,
    CommandFailedError,
    Context,
    PermanentCommandError,
    SendRequest,
)


@pytest.fixture
def traces() -> Iterator[Traces]:
    with instrumented(Traces()) as made:
        yield made


def test_an_execution_is_in_the_trace_of_its_send_and_linked_to_it(
    dsn: str, bus: CommandBus, traces: Traces
) -> None:
    with running(dsn, handling()):
        command_id = bus.send("payments", "Debit", {"card": "secret"}, key="secret")
        settle = traces.one("settle payments")
    send, process = traces.one("send payments"), traces.one("process payments")
    queue = traces.one("queue payments")
    assert is_child(process, send) and is_child(queue, send) and is_child(settle, process)
    assert [link.context.span_id for link in process.links] == [context(send).span_id]
    kinds = [span.kind for span in (send, queue, process, settle)]
    assert kinds == [SpanKind.PRODUCER, SpanKind.INTERNAL, SpanKind.CONSUMER, SpanKind.CLIENT]
    assert times(queue)[1] == pytest.approx(times(process)[0], abs=20_000_000)
    assert times(send)[0] - 5_000_000 < times(queue)[0] <= times(queue)[1]
    assert times(settle)[0] == pytest.approx(times(process)[1], abs=20_000_000)
    assert times(settle)[0] <= times(settle)[1]
    common = {
        "messaging.system": "cmdbus",
        "messaging.destination.name": "payments",
        "messaging.message.id": str(command_id),
        "messaging.message.conversation_id": str(command_id),
        "cmdbus.command.type": "Debit",
    }
    assert attributes(send) == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "cmdbus.method": "send",
    }
    assert attributes(process) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "cmdbus.attempt": 1,
        "cmdbus.max_attempts": 3,
        "cmdbus.priority": 5,
        "cmdbus.outcome": "COMPLETED",
    }
    assert process.status.is_unset and not process.events
    assert "secret" not in "".join(span.to_json() for span in traces.spans)


def test_each_retry_has_a_span_in_the_same_trace(dsn: str, bus: CommandBus, traces: Traces) -> None:
    def handle(command: Command, context: Context) -> None:
        if context.attempt == 1:
            raise ValueError("secret")
        raise PermanentCommandError("NO_CARD", "there is none")

    with running(dsn, handling(handle, retry=SOON)):
        bus.send("payments", "Debit")
        traces.named("settle payments", 2)
    send = traces.one("send payments")
    first, second = traces.named("process payments", 2)
    assert is_child(first, send) and is_child(second, send)
    assert attributes(first)["cmdbus.outcome"] == "RETRY"
    assert attributes(first)["cmdbus.delay"] == 0.01
    assert (attributes(first)["error.type"], first.status.is_ok) == ("ValueError", False)
    [event] = first.events
    assert "in handle" in str((event.attributes or {})["exception.stacktrace"])
    assert "secret" not in first.to_json().replace('raise ValueError(\\"secret\\")', "")
    assert attributes(second)["cmdbus.outcome"] == "TROUBLESHOOTING"
    assert attributes(second)["cmdbus.attempt"] == 2
    assert second.status.description == "NO_CARD: there is none"
    assert len(traces.named("queue payments", 2)) == 2


def test_what_a_handler_sends_is_inside_and_so_are_its_own_spans(
    dsn: str, bus: CommandBus, traces: Traces
) -> None:
    def handle(command: Command, context: Context) -> None:
        with traces.tracer.start_as_current_span("charge"):
            bus.send("payments", "Noop", connection=context.connection)

    with running(dsn, handling(handle)):
        with traces.tracer.start_as_current_span("request"):
            bus.send("payments", "Debit")
        traces.named("settle payments", 2)
    request, charge = traces.one("request"), traces.one("charge")
    sends = traces.named("send payments", 2)
    # The handler may have sent before the first send returns, on a busy machine.
    first, second = sends if is_child(sends[0], request) else reversed(sends)
    debit, noop = traces.named("process payments", 2)
    assert is_child(first, request) and is_child(debit, first)
    assert is_child(charge, debit) and is_child(second, charge) and is_child(noop, second)


def test_a_bulk_has_one_span_that_all_its_commands_are_children_of(
    dsn: str, bus: CommandBus, traces: Traces
) -> None:
    requests = [SendRequest("payments", type) for type in ("Debit", "Noop", "Noop")]
    with running(dsn, handling()):
        bus.send_many(requests)
        bus.send_many([SendRequest("payments", "Noop"), SendRequest("orders", "Noop")])
        processed = traces.named("process payments", 4)
        traces.named("settle payments", 4)
    send, mixed = traces.one("send payments"), traces.one("send")
    assert [is_child(each, send) for each in processed].count(True) == 3
    assert [is_child(each, mixed) for each in processed].count(True) == 1
    assert attributes(send)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(send)
    assert "cmdbus.command.type" not in attributes(send)
    assert "messaging.destination.name" not in attributes(mixed)


def test_a_call_is_a_span_around_its_send(dsn: str, bus: CommandBus, traces: Traces) -> None:
    def handle(command: Command, context: Context) -> int:
        if command.data is None:
            raise BusinessRuleError("CLOSED", "not today")
        return 42

    with running(dsn, handling(handle)):
        assert bus.call("payments", "Debit", 1) == 42
        with pytest.raises(CommandFailedError):
            bus.call("payments", "Debit")
        bus.wait("payments", bus.send("payments", "Noop"))
        traces.named("settle payments", 3)
    answered, refused = traces.named("call payments", 2)
    first, second, _ = traces.named("send payments", 3)
    assert is_child(first, answered) and is_child(second, refused)
    assert answered.kind is SpanKind.CLIENT and answered.status.is_unset
    assert attributes(refused)["error.type"] == "cmdbus.errors.CommandFailedError"
    assert attributes(traces.one("wait payments"))["cmdbus.method"] == "wait"
    failed = traces.named("process payments", 3)[1]
    assert attributes(failed)["cmdbus.outcome"] == "FAILED" and not failed.status.is_ok


def test_a_reply_carries_the_context_of_its_execution(
    dsn: str, bus: CommandBus, traces: Traces
) -> None:
    with running(dsn, handling()):
        bus.send("payments", "Debit", reply_to="orders")
        with bus.replies("orders", timeout=10) as replies:
            sent = get_current_span(extract(next(replies).headers)).get_span_context()
        assert sent.span_id == context(traces.one("process payments")).span_id


def test_a_refused_send_is_an_error_of_its_span(bus: CommandBus, traces: Traces) -> None:
    command_id = bus.send("payments", "Debit")
    with pytest.raises(Exception, match="an id is taken once"):
        bus.send("payments", "Debit", command_id=command_id)
    with pytest.raises(ValueError, match="domain"):
        bus.send("the payments", "Debit")
    _, refused = traces.named("send payments", 2)
    assert attributes(refused)["error.type"] == "cmdbus.errors.DuplicateCommandError"
    assert "messaging.message.id" not in attributes(refused)
    counted = {
        point.get("error.type", ""): data.value
        for point, data in traces.points("messaging.client.sent.messages")
    }
    assert counted == {"": 1, "cmdbus.errors.DuplicateCommandError": 1}


def test_tasks_on_asyncio_send_within_their_own_spans(dsn: str, traces: Traces) -> None:
    async def send(bus: AsyncCommandBus, name: str) -> None:
        with traces.tracer.start_as_current_span(name):
            await bus.send("payments", "Debit")

    async def main() -> None:
        async with AsyncCommandBus(dsn) as bus:
            await asyncio.gather(send(bus, "one"), send(bus, "two"))

    asyncio.run(main())
    sends = traces.named("send payments", 2)
    for name in ("one", "two"):
        assert [is_child(each, traces.one(name)) for each in sends].count(True) == 1
