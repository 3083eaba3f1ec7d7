"""Headers that a handler's commands and replies get without being asked."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypedDict
from uuid import UUID

import pytest
from eventually import eventually
from handlers import ONCE, handling, running
from observed import installed
from trips import Booking, Trip, soon, taken

from cmdbus import (
    AsyncCommandBus,
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    SendRequest,
)
from cmdbus.forwarding import ForwardedHeaders, default_headers, forward
from cmdbus.headers import MAX_HEADERS
from cmdbus.instruments import Instrument, Request, Sending
from cmdbus.testing import make_command, make_context

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": TRACE, "tenant": "blue", "own": "stays"}
PASSED_ON = {"traceparent": TRACE, "tenant": "blue"}


class Order(TypedDict):
    number: int


def handled(
    dsn: str, bus: CommandBus, handle: Callable[[Command, Context], object], **options: Any
) -> Any:
    """The result of a command with HEADERS."""
    with running(dsn, handling(handle, retry=ONCE, **options)):
        return bus.call("payments", "Debit", headers=HEADERS)


def headers_by_type(bus: CommandBus, domain: str = "sent") -> dict[str, dict[str, str]]:
    return {each.type: each.headers for each in bus.query(domain)}


def request(type: str, **options: Any) -> SendRequest:
    return SendRequest("sent", type, **options)


def test_each_way_of_sending_passes_them_on(dsn: str, bus: CommandBus) -> None:
    async def on_asyncio() -> None:
        async with AsyncCommandBus(dsn) as asynchronous:
            await asynchronous.send("sent", "async")
            await asynchronous.send_many([request("async-many")])

    def handle(command: Command, context: Context) -> None:
        assert context.headers == PASSED_ON
        bus.send("sent", "committed")
        bus.send("sent", "in-transaction", connection=context.connection)
        bus.send("sent", "overridden", headers={"tenant": "red", "more": "1"})
        bus.send_many([request("many"), request("many-overridden", headers={"tenant": "red"})])
        bus.sender("sent", "typed", Order).send(number=1)
        bus.create_batch("sent", [request("in-batch")], on_complete=request("completed"))
        bus.call("payments", "Noop")
        bus.signal_process(bus.start_process("sent", "Transfer"), "hurry")
        assert context.batch is not None
        context.batch.add([request("added")])
        asyncio.run(on_asyncio())

    with running(dsn, handling(handle, retry=ONCE)):
        batch = bus.create_batch("payments", [SendRequest("payments", "Debit", headers=HEADERS)])
        eventually(lambda: "added" in headers_by_type(bus))
        bus.cancel_all("sent")
        bus.wait_batch(batch, 10)
        eventually(lambda: "completed" in headers_by_type(bus))
    found = headers_by_type(bus)
    assert found.pop("overridden") == {**PASSED_ON, "tenant": "red", "more": "1"}
    assert found.pop("many-overridden") == {**PASSED_ON, "tenant": "red"}
    assert len(found) == 11
    assert all(headers == PASSED_ON for headers in found.values()), found
    [called] = bus.query("payments", type="Noop")
    assert called.headers == PASSED_ON


def test_a_handler_changes_what_is_passed_on(dsn: str, bus: CommandBus) -> None:
    """In threads too, if they run in a copy of its context."""

    def handle(command: Command, context: Context) -> None:
        bus.send("sent", "before")
        plain = threading.Thread(target=bus.send, args=("sent", "plain"))
        copied = threading.Thread(target=copy_context().run, args=(bus.send, "sent", "copied"))
        for thread in (plain, copied):
            thread.start()
            thread.join()
        context.headers["tenant"] = "red"
        del context.headers["traceparent"]
        context.headers |= {"more": "1"}
        bus.send("sent", "after")
        context.headers.clear()
        bus.send("sent", "cleared")
        context.headers = {"other": "2"}
        bus.send("sent", "replaced")

    def begin(command: Command, context: Context) -> None:
        assert default_headers() is None
        bus.send("begun", "before")
        context.headers["tenant"] = "red"
        bus.send("begun", "after")

    registry = handling(handle, retry=ONCE)
    registry.register("payments", "Begin", begin)
    with running(dsn, registry, concurrency=1):
        bus.call("payments", "Debit", headers=HEADERS)
        for _ in range(2):
            bus.call("payments", "Begin")
    assert headers_by_type(bus) == {
        "before": PASSED_ON,
        "plain": {},
        "copied": PASSED_ON,
        "after": {"tenant": "red", "more": "1"},
        "cleared": {},
        "replaced": {"other": "2"},
    }
    begun = [(each.type, each.headers) for each in reversed(bus.query("begun"))]
    assert begun == [("before", {}), ("after", {"tenant": "red"})] * 2
    assert default_headers() is None


def test_a_registry_says_which_are_passed_on(dsn: str, bus: CommandBus) -> None:
    some = {"own": "stays", "traceparent": TRACE}
    cases: list[tuple[Sequence[str], dict[str, str]]] = [((), {}), ([*some, "absent"], some)]
    for number, (names, passed) in enumerate(cases):
        registry = HandlerRegistry(forward_headers=names)
        sent, replies = f"sent{number}", f"replies{number}"

        def debit(command: Command, context: Context) -> None:
            bus.send(command.data, "Next")

        registry.register("payments", "Debit", debit)
        with running(dsn, registry, concurrency=1):
            id_ = bus.send("payments", "Debit", sent, headers=HEADERS, reply_to=replies)
            bus.wait("payments", id_, 10)
        assert headers_by_type(bus, sent) == {"Next": passed}
        assert headers_by_type(bus, replies) == {"Reply": passed}


def test_a_reply_gets_what_the_handler_leaves(dsn: str, bus: CommandBus) -> None:
    def handle(command: Command, context: Context) -> None:
        if command.data is not None:
            context.headers.update(command.data)
        if command.data == {"tenant": "failed"}:
            raise BusinessRuleError("CLOSED", "not today")
        if command.data == {"in": "transaction"}:
            context.connection.execute("INSERT INTO effect VALUES (gen_random_uuid(), 1)")

    given = [None, {"tenant": "failed"}, {"in": "transaction"}, {"alone": "1"}]
    with running(dsn, handling(handle, retry=ONCE)), bus.replies("replies", 0.2) as replies:
        ids: list[UUID] = []
        for data in given:
            headers = None if data == {"alone": "1"} else {**HEADERS, "pgmq_msg_id": "7"}
            ids.append(bus.send("payments", "Debit", data, reply_to="replies", headers=headers))
            bus.wait("payments", ids[-1], 10)
        found = {each.command_id: each.headers for each in replies}
    expected = {**PASSED_ON, "pgmq_msg_id": "7"}
    assert [found[id_] for id_ in ids] == [
        expected,
        {**expected, "tenant": "failed"},
        {**expected, "in": "transaction"},
        {"alone": "1"},
    ]


def test_a_process_keeps_them_from_step_to_step(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    registry.register_process(Booking())

    @registry.handler("bookings", "Flight")
    def fly(command: Command, context: Context) -> None:
        assert command.headers == PASSED_ON

    with running(dsn, soon(registry)):
        process = bus.start_process("trips", "Booking", Trip("Paris"), headers=HEADERS)
        eventually(lambda: taken(bus, process) == ["FLIGHT SUCCESS", "HOTEL None"])
    found = headers_by_type(bus, "bookings")
    assert found["Flight"] == found["Hotel"] == PASSED_ON


def test_processes_that_are_handled_together_keep_their_own(dsn: str, bus: CommandBus) -> None:
    tenants: dict[UUID, str] = {}
    registry = HandlerRegistry()
    registry.register_process(Booking())
    with running(dsn, soon(registry), concurrency=4):
        bus.start_process("trips", "Booking", Trip("first"))
        eventually(lambda: bus.query("bookings"))
        bus.pause("trips")
        for number in range(8):
            tenant = str(number)
            started = bus.start_process("trips", "Booking", Trip(), headers={"tenant": tenant})
            tenants[started] = tenant
        bus.resume("trips")
        eventually(lambda: len(bus.query("bookings")) == 9)
    sent = {each.correlation_id: each.headers.get("tenant") for each in bus.query("bookings")}
    assert {process: sent[process] for process in tenants} == tenants


class Crowd(Booking):
    """Its steps are of several commands."""

    def build_command(self, step: Any, state: Trip) -> list[SendRequest]:
        return [SendRequest("bookings", step.capitalize(), headers={"seat": n}) for n in "ab"]


def test_a_process_keeps_them_across_a_step_of_several_commands(dsn: str, bus: CommandBus) -> None:
    registry = HandlerRegistry()
    registry.register_process(Crowd())
    registry.register("bookings", "Flight", lambda command, context: None)
    with running(dsn, soon(registry)):
        bus.start_process("trips", "Booking", Trip("Paris"), headers=HEADERS)
        hotels = eventually(lambda: bus.query("bookings", type="Hotel"))
    assert [each.headers for each in hotels] == [{**PASSED_ON, "seat": n} for n in "ba"]


def test_a_step_of_several_commands_goes_on_without_headers_that_do_not_fit(
    dsn: str, bus: CommandBus
) -> None:
    many = {f"h{number}": "" for number in range(MAX_HEADERS + 1)}
    registry = HandlerRegistry()
    registry.register_process(Crowd())
    registry.register("bookings", "Flight", lambda command, context: None)

    @registry.around(domain="trips")
    def trace(command: Command, context: Context) -> Iterator[None]:
        dict.update(context.headers, many)  # As OpenTelemetry does, for speed.
        yield

    with running(dsn, soon(registry)):
        bus.start_process("trips", "Booking", Trip("Paris"))
        hotels = eventually(lambda: bus.query("bookings", type="Hotel"))
    assert [len(each.headers) for each in hotels] == [MAX_HEADERS] * 2


class Stamping(Instrument):
    def __init__(self, headers: Any) -> None:
        self.headers = headers

    @contextmanager
    def sending(self, requests: Sequence[Request], operation: str) -> Iterator[Sending]:
        made = Sending()
        made.headers = self.headers
        yield made


def test_headers_of_an_instrument_win_over_those_that_are_passed_on(
    dsn: str, bus: CommandBus
) -> None:
    def handle(command: Command, context: Context) -> None:
        bus.send("sent", "stamped")
        bus.send_many([request("many", headers={"tenant": "own"}), request("plain")])
        bus.call("payments", "Noop")

    stamp = {"tenant": "stamp", "more": "1"}
    with installed(Stamping(stamp)):
        handled(dsn, bus, handle)
        bus.create_batch("sent", [request("in-batch")])
        bus.start_process("sent", "Transfer")
    stamped = {"traceparent": TRACE, **stamp}
    assert headers_by_type(bus) == {
        "stamped": stamped,
        "many": {**stamped, "tenant": "own"},
        "plain": stamped,
        "in-batch": stamp,
        "process:start": stamp,
    }
    [called] = bus.query("payments", type="Noop")
    assert called.headers == stamped


def test_wrong_headers_of_an_instrument_are_left_out(
    bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[Any] = [{"a b": "c"}, {"a": 1}, 7, {"a": "x" * 5000}]
    for headers in wrong:
        with installed(Stamping(headers)):
            bus.send("sent", "Debit", headers={"own": "stays"})
    assert [each.headers for each in bus.query("sent")] == [{"own": "stays"}] * 4
    assert caplog.text.count("the instrument Stamping failed in sending") == 4


def test_those_that_do_not_fit_give_way_to_the_senders_own(bus: CommandBus) -> None:
    full = {f"h{number}": "" for number in range(MAX_HEADERS)}
    long = {"a": "x" * 4000, "b": "y" * 4000}

    def send() -> None:
        forward({"traceparent": TRACE, "tenant": "z" * 200}, ("traceparent", "tenant"))
        bus.send("sent", "full", headers=full)
        bus.send("sent", "long", headers=long)
        with pytest.raises(ValueError, match="header 'a' must be text"):
            bus.send("sent", "wrong", headers={"a": 1})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="headers must be a mapping"):
            bus.send("sent", "wrong", headers=["a"])  # type: ignore[arg-type]

    copy_context().run(send)
    assert headers_by_type(bus) == {"full": full, "long": {**long, "traceparent": TRACE}}


def test_what_could_not_be_sent_is_refused_where_it_is_added() -> None:
    context = make_context(make_command("payments", "Debit", headers=HEADERS))
    assert context.headers == PASSED_ON
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: context.headers.update({"a b": "c"}), "the name of a header"),
        (lambda: context.headers.__setitem__("a", 1), "header 'a' must be text"),  # type: ignore[assignment]
        (lambda: context.headers.setdefault("a", "x" * 5000), "header 'a' must be text"),
        (lambda: context.headers.update({f"h{n}": "" for n in range(32)}), "there are 34 headers"),
        (lambda: context.headers.update({name: "x" * 3000 for name in "abc"}), "bytes as JSON"),
        (lambda: setattr(context, "headers", None), "headers must be a mapping"),
        (lambda: setattr(context, "headers", {name: "x" * 3000 for name in "abc"}), "as JSON"),
    ]
    for change, sentence in wrong:
        with pytest.raises(ValueError, match=sentence):
            change()
    assert context.headers == PASSED_ON
    assert context.headers.setdefault("tenant", "red") == "blue"
    assert isinstance(context.headers, ForwardedHeaders)
    assert default_headers() is None


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("traceparent", "forward_headers must be a list or a tuple of headers' names"),
        ([""], "a name in forward_headers must be a letter and up to 99 more"),
        ([7], "a name in forward_headers must be a letter"),
        (None, "forward_headers must be a list or a tuple"),
    ],
)
def test_wrong_names_to_be_passed_on_are_refused(names: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HandlerRegistry(forward_headers=names)
