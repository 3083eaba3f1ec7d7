"""One trace over a send, the executions of its command, and what these send."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
import sentry_sdk
from handlers import SOON, do_nothing, handling
from sentries import sentry

from cmdbus import AsyncCommandBus, Command, CommandBus, Context, SendRequest
from cmdbus.sentry import CmdbusIntegration
from cmdbus.testing import CommandTester

STREAMED = {"trace_lifecycle": "stream"}


def pay(command: Command, context: Context) -> str:
    """Fails at first, and then sends another command."""
    if context.attempt == 1:
        raise ValueError("not yet")
    with CommandBus(context.connection.info.dsn) as bus:
        bus.send("payments", "Noop", {}, connection=context.connection)
    return "paid"


def sent_and_executed(dsn: str, bus: CommandBus) -> UUID:
    """Four executions: of `pay` twice, of the command that it sends, and of its reply."""
    command_id = bus.send("payments", "Debit", {"amount": 5}, reply_to="orders")
    tester, registry = CommandTester(dsn), handling(pay, retry=SOON)
    registry.register("orders", "Reply", do_nothing)
    tester.run_commands(registry, raises=False)
    tester.travel(seconds=1)
    tester.run_commands(registry, until="idle")
    return command_id


def test_a_command_continues_the_trace_in_which_it_is_sent(dsn: str, bus: CommandBus) -> None:
    with sentry(traces_sample_rate=1.0) as taken:
        request = sentry_sdk.start_transaction(op="http.server", name="/pay")
        with request:
            command_id = sent_and_executed(dsn, bus)
    first, second, *others, web = taken.transactions
    [publish] = web["spans"]
    assert (publish["op"], publish["description"]) == ("queue.publish", "payments/Debit")
    assert (
        publish["data"].items()
        >= {
            "messaging.system": "cmdbus",
            "messaging.destination.name": "payments",
            "messaging.message.id": str(command_id),
        }.items()
    )
    traces = [each["contexts"]["trace"] for each in taken.transactions]
    assert len({trace["trace_id"] for trace in traces}) == 1
    assert [trace["parent_span_id"] for trace in traces[:2]] == [publish["span_id"]] * 2
    assert [trace.get("status") for trace in traces[:-1]] == ["internal_error", "ok", "ok", "ok"]
    [nested] = second["spans"]
    found = {each["transaction"]: each["contexts"]["trace"]["parent_span_id"] for each in others}
    assert found == {"payments/Noop": nested["span_id"], "orders/Reply": traces[1]["span_id"]}
    for number, transaction in enumerate([first, second]):
        assert transaction["transaction"] == "payments/Debit"
        assert transaction["transaction_info"] == {"source": "task"}
        trace = transaction["contexts"]["trace"]
        assert (trace["op"], trace["origin"]) == ("queue.process", "auto.queue.cmdbus")
        assert trace["data"]["messaging.message.retry.count"] == number
        assert trace["data"]["messaging.message.receive.latency"] >= 0
    [event] = taken.events
    assert event["contexts"]["trace"]["span_id"] == traces[0]["span_id"]


def test_streamed_spans_are_of_the_same_trace(dsn: str, bus: CommandBus) -> None:
    with sentry(traces_sample_rate=1.0, trace_lifecycle="stream") as taken:
        with sentry_sdk.traces.start_span("/pay"):
            sent_and_executed(dsn, bus)
        spans = taken.spans
    assert len({span["trace_id"] for span in spans}) == 1
    by_id = {span["span_id"]: span for span in spans}
    found = [
        (
            span["name"],
            span["attributes"]["sentry.op"]["value"],
            by_id[span["parent_span_id"]]["name"],
            span["status"],
        )
        for span in spans
        if "parent_span_id" in span
    ]
    assert sorted(found) == [
        ("orders/Reply", "queue.process", "payments/Debit", "ok"),
        ("payments/Debit", "queue.process", "payments/Debit", "error"),
        ("payments/Debit", "queue.process", "payments/Debit", "ok"),
        ("payments/Debit", "queue.publish", "/pay", "ok"),
        ("payments/Noop", "queue.process", "payments/Noop", "ok"),
        ("payments/Noop", "queue.publish", "payments/Debit", "ok"),
    ]


def test_other_calls_that_send_are_spans_as_well(bus: CommandBus) -> None:
    one, other = SendRequest("payments", "Debit"), SendRequest("payments", "Credit")
    with sentry(traces_sample_rate=1.0) as taken, sentry_sdk.start_transaction(name="/pay"):
        [sent] = bus.send_many([one])
        bus.send_many([one, other, SendRequest("orders", "Pay")])
        bus.create_batch("payments", [other])
        with pytest.raises(ValueError, match="not 'no type'"):
            bus.send("payments", "no type")
    found = [
        (
            span["description"],
            span["status"],
            span["data"].get("messaging.destination.name"),
            span["data"].get("messaging.batch.message_count"),
            span["data"].get("messaging.message.id"),
        )
        for span in taken.transactions[0]["spans"]
    ]
    assert found == [
        ("payments/Debit", "ok", "payments", 1, str(sent)),
        ("send_many", "ok", None, 3, None),
        ("payments/Credit", "ok", "payments", 1, None),
        ("payments/no type", "internal_error", "payments", None, None),
    ]


def test_headers_are_added_only_to_what_is_traced(dsn: str, bus: CommandBus) -> None:
    def headers(command_id: UUID) -> Mapping[str, str]:
        record = bus.get("payments", command_id)
        assert record is not None
        return record.headers

    def sent() -> Mapping[str, str]:
        return headers(bus.send("payments", "Debit", {}, headers={"tenant": "acme"}))

    with sentry():
        assert sent() == {"tenant": "acme"}
    with sentry(CmdbusIntegration(propagate_traces=False), traces_sample_rate=1.0):
        assert sent() == {"tenant": "acme"}
    with sentry(traces_sample_rate=1.0):
        assert {*sent()} == {"tenant", "sentry-trace", "baggage"}
        own = bus.send("payments", "Debit", {}, headers={"baggage": "own"})
        assert headers(own)["baggage"] == "own"
        ids = bus.send_many([SendRequest("payments", "Debit", n) for n in range(2)])
        first, second = map(headers, ids)
        assert first == second and "sentry-trace" in first


def test_a_send_on_asyncio_is_in_the_trace_of_its_task(dsn: str, bus: CommandBus) -> None:
    async def send() -> str:
        async with AsyncCommandBus(dsn) as asynchronous:
            with sentry_sdk.start_transaction(name="/pay") as transaction:
                command_id = await asynchronous.send("payments", "Debit", {})
                record = await asynchronous.get("payments", command_id)
        assert record is not None
        assert record.headers["sentry-trace"].startswith(transaction.trace_id)
        return str(command_id)

    with sentry(traces_sample_rate=1.0) as taken:
        command_id = asyncio.run(send())
    [publish] = taken.transactions[0]["spans"]
    assert publish["data"]["messaging.message.id"] == command_id


def test_a_sampler_is_asked_with_the_command(dsn: str, bus: CommandBus) -> None:
    asked: list[Any] = []

    def sample(context: Any) -> float:
        asked.append(context.get("cmdbus"))
        return 0.0

    with sentry(traces_sampler=sample) as taken:
        bus.send("payments", "Noop", {})
        CommandTester(dsn).run_commands(handling())
    [about] = asked
    assert (about["domain"], about["command_type"], about["attempt"]) == ("payments", "Noop", 1)
    assert taken.transactions == []


def test_hostile_headers_are_no_trace(dsn: str, bus: CommandBus) -> None:
    headers = {
        "sentry-trace": "x" * 4_000,
        "baggage": "=,;sentry-trace_id=%%%,sentry-sample_rand=z",
    }
    bus.send("payments", "Noop", {}, headers=headers)
    with sentry(traces_sample_rate=1.0) as taken:
        CommandTester(dsn).run_commands(handling())
    [transaction] = taken.transactions
    assert len(transaction["contexts"]["trace"]["trace_id"]) == 32
