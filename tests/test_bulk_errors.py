"""An error of a bulk says which of its requests is wrong, and nothing of the bulk is written."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from handlers import ONCE, handling, running
from queries import count

from cmdbus import (
    AsyncCommandBus,
    Command,
    CommandBus,
    Context,
    ProcessRequest,
    SendRefusedError,
    SendRequest,
)

GOOD = SendRequest("payments", "Debit")
LATER = datetime.now(UTC) + timedelta(days=1)
#: Sends that are refused one by one, with the arguments of each.
WRONG: dict[str, dict[str, Any]] = {
    "domain": {"domain": "1"},
    "type": {"type": ""},
    "data": {"data": {"rows": [1, float("nan")]}},
    "size": {"data": "x" * 2**20},
    "id": {"command_id": "none"},
    "priority": {"priority": "urgent"},
    "delay": {"delay": -1},
    "key": {"key": ""},
    "headers": {"headers": {"tenant": 1}},
    "expires": {"expires": 5, "delay": 10},
    "expires by the server's clock": {"expires": 5, "run_at": LATER},
    "unique key": {"unique": ""},
    "conflict": {"on_conflict": "existing"},
}


def wrong(given: dict[str, Any]) -> SendRequest:
    return SendRequest(**{"domain": "payments", "type": "Debit", **given})


def sentence(call: Callable[..., object], *args: Any, **given: Any) -> str:
    with pytest.raises((ValueError, SendRefusedError)) as raised:
        call(*args, **given)
    return str(raised.value)


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_the_sentence_of_a_send_follows_the_number_of_the_request(
    bus: CommandBus, connection: psycopg.Connection, given: dict[str, Any]
) -> None:
    alone = sentence(bus.send, **{"domain": "payments", "type": "Debit", **given})
    assert not alone.startswith("request")
    requests = [GOOD, GOOD, wrong(given), GOOD, wrong(given)]
    assert sentence(bus.send_many, requests) == f"request 3 of 5: {alone}"
    mine = sentence(bus.send_many, requests, connection=connection)
    assert mine == f"request 3 of 5: {alone}"
    assert bus.query() == []
    bus.send_many([GOOD], connection=connection)


@pytest.mark.parametrize("index", [0, 99, 100, 1499])
def test_the_number_is_that_of_the_caller_wherever_the_request_is(
    bus: CommandBus, index: int
) -> None:
    """Requests are written in pieces, and those of batches in parts."""
    requests = [GOOD] * 1500
    requests[index] = wrong({"data": {1, 2}})
    number = index + 1
    expected = f"request {number} of 1500: data is of type set"
    assert sentence(bus.send_many, requests).startswith(expected)
    assert sentence(bus.create_batch, "payments", requests).startswith(expected)
    from_iterator = sentence(bus.create_batch, "payments", iter(requests))
    assert from_iterator.startswith(f"request {number}: data is of type set")
    assert (bus.query(), bus.list_batches()) == ([], [])


def test_what_is_no_request_is_named(bus: CommandBus) -> None:
    requests: list[Any] = [GOOD, "Debit"]
    alone = "requests must be SendRequests, not str: SendRequest(domain, type, data)"
    assert sentence(bus.send_many, requests) == f"request 2 of 2: {alone}"


def test_an_id_that_was_sent_before_is_named_by_its_request(bus: CommandBus) -> None:
    own = SendRequest("payments", "Debit", command_id=uuid4())
    bus.send_many([own])
    refused = sentence(bus.send_many, [GOOD, own, GOOD])
    assert refused.startswith(f"request 2 of 3: command {own.command_id} was sent to domain")
    later = [GOOD] * 1200 + [own]
    refused = sentence(bus.create_batch, "payments", later)
    assert refused.startswith(f"request 1201 of 1201: command {own.command_id} was sent")
    assert len(bus.query()) == 1


def test_an_id_that_a_batch_sends_at_its_end_is_none_of_its_requests(bus: CommandBus) -> None:
    own = SendRequest("payments", "Debit", command_id=uuid4())
    bus.send_many([own])
    refused = sentence(bus.create_batch, "payments", [GOOD], on_complete=own)
    assert refused.startswith(f"command {own.command_id} was sent to domain")


def test_both_requests_with_one_id_or_one_unique_key_are_named(bus: CommandBus) -> None:
    own = SendRequest("payments", "Debit", command_id=uuid4())
    twice = sentence(bus.send_many, [GOOD, own, GOOD, own])
    assert twice.startswith(f"requests 2 and 4 of 4: command {own.command_id} of domain")
    daily = SendRequest("payments", "Debit", unique="daily")
    twice = sentence(bus.send_many, [daily, GOOD, daily])
    assert twice.startswith("requests 1 and 3 of 3 have the unique key 'daily' in domain")


def test_a_unique_key_that_is_held_is_named_by_its_request(bus: CommandBus) -> None:
    bus.send("payments", "Debit", unique="daily")
    daily = SendRequest("payments", "Debit", unique="daily")
    refused = sentence(bus.send_many, [GOOD, daily])
    assert refused.startswith("request 2 of 2: command ") and "unique key 'daily'" in refused


def test_requests_that_another_command_replaces_keep_their_numbers(bus: CommandBus) -> None:
    """Only the others are written."""
    bus.send("payments", "Debit", unique="daily")
    there = SendRequest("payments", "Debit", unique="daily", on_conflict="existing")
    requests = [there, GOOD, wrong({"priority": 11})]
    assert sentence(bus.send_many, requests).startswith("request 3 of 3: priority must be")
    assert len(bus.query()) == 1


def test_a_request_that_the_hook_refuses_is_named(dsn: str) -> None:
    def hook(request: SendRequest) -> SendRequest:
        if request.data == "bad":
            raise SendRefusedError("NO_CREDIT", "customer 7 owes 12")
        assert request.data != "worse"
        return request

    bad, worse = (SendRequest("payments", "Debit", data) for data in ("bad", "worse"))
    with CommandBus(dsn, on_send=hook) as bus:
        alone = sentence(bus.send, "payments", "Debit", "bad")
        assert sentence(bus.send_many, [GOOD, bad]) == f"request 2 of 2: {alone}"
        of_batch = sentence(bus.create_batch, "payments", [GOOD] * 1000 + [bad])
        assert of_batch == f"request 1001 of 1001: {alone}"
        with pytest.raises(AssertionError) as raised:
            bus.send_many([GOOD, worse])
        assert getattr(raised.value, "__notes__", None) == ["request 2 of 2"]
        assert bus.query() == []


def test_the_bus_of_asyncio_says_the_same(dsn: str) -> None:
    async def send() -> None:
        async with AsyncCommandBus(dsn) as bus:
            await bus.send_many([GOOD, wrong({"priority": 11})])

    assert sentence(asyncio.run, send()).startswith("request 2 of 2: priority must be")


def test_what_a_handler_adds_to_its_batch_is_named(dsn: str, bus: CommandBus) -> None:
    errors: list[str] = []

    def add(command: Command, context: Context) -> None:
        batch = context.batch
        assert batch is not None
        errors.append(sentence(batch.add, [GOOD, wrong({"delay": -1})]))

    with running(dsn, handling(add, retry=ONCE)):
        batch_id = bus.create_batch("payments", [GOOD])
        assert bus.wait_batch(batch_id, timeout=10).total == 1
    assert [error.split(":")[0] for error in errors] == ["request 2 of 2"]


def test_a_process_of_a_batch_is_named(bus: CommandBus) -> None:
    def processes() -> Iterator[ProcessRequest]:
        yield ProcessRequest("trips", "Booking", {})
        yield ProcessRequest("trips", "Booking", {"fare": float("inf")})

    refused = sentence(bus.create_batch, "trips", [GOOD], processes=processes())
    assert refused.startswith("process 2 of 2: state.fare")


def test_a_full_domain_is_named_and_no_request(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Its limit is about all requests."""
    bus.configure("payments", max_depth=2)
    refused = sentence(bus.send_many, [GOOD] * 3)
    assert refused.startswith("domain 'payments' never takes 3 commands at once")
    assert count(connection, "cmdbus.ready") == 0
