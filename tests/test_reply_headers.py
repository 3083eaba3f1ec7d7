"""Headers of replies, and of what else the schema sends for a command: those that are passed on."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
from batches import FAILED, TROUBLE
from claiming import Claimer, ended
from handlers import ONCE, handling, running
from known_headers import HEADERS, PASSED_ON
from queries import scalar
from trips import CAR, FLIGHT, RULE, ShortBooking, Trip, await_end, traveling

from cmdbus import CommandBus, SendRequest
from cmdbus.headers import FORWARDED, MAX_BYTES, MAX_VALUE, encode_headers

OWN = '{"own":"x"}'


def asked(bus: CommandBus, headers: dict[str, str] | None = HEADERS, **options: Any) -> UUID:
    return bus.send("payments", "Debit", reply_to="orders", headers=headers, **options)


def reply_headers(bus: CommandBus) -> list[dict[str, str]]:
    """Of all replies, the last sent first."""
    return [reply.headers for reply in bus.query("orders", type="Reply")]


def test_a_settlement_says_which_headers_a_reply_gets_or_passes_some_on(
    bus: CommandBus, claimer: Claimer
) -> None:
    asked(bus, None)
    for _ in range(5):
        asked(bus)
    asked(bus, {"own": "x"})
    ways = [(None, None), (None, None), (FAILED, None), (None, OWN), (FAILED, OWN), (None, "{}")]
    done = [
        ended(claim, outcome)._replace(reply_headers=given)
        for claim, (outcome, given) in zip(claimer.claim(7), [*ways, (None, None)], strict=True)
    ]
    assert claimer.settle(*done) == []
    expected = [{}, PASSED_ON, PASSED_ON, {"own": "x"}, {"own": "x"}, {}, {}]
    by_command = {reply.data["command_id"]: reply.headers for reply in bus.query("orders")}
    assert [by_command[str(each.claim.command_id)] for each in done] == expected
    stored = "SELECT count(*) FROM cmdbus.ready WHERE headers IS NULL"
    assert scalar(claimer.connection, stored) == 3


def test_what_operators_and_time_end_passes_them_on(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    """And the number of PGMQ's message that it answers."""
    headers = {**HEADERS, "pgmq_msg_id": "7"}
    for _ in range(2):
        asked(bus, headers)
    claimer.settle(*[ended(claim, TROUBLE) for claim in claimer.claim(2)])
    first, second = (record.command_id for record in bus.troubleshooting.list())
    bus.troubleshooting.cancel("payments", first, operator="ann")
    bus.troubleshooting.complete("payments", second, operator="ann", result={"by": "hand"})
    bus.cancel("payments", asked(bus, headers, delay=60))
    asked(bus, headers, unique="u")
    other = asked(bus, None, unique="u", on_conflict="replace")
    bus.cancel("payments", other)
    asked(bus, headers, expires=60)
    connection.execute(
        "UPDATE cmdbus.ready SET expires_at = clock_timestamp() WHERE expires_at > now()"
    )
    connection.execute("SELECT cmdbus.expire(100, 1000000, '{}')")
    outcomes = sorted(record.data["outcome"] for record in bus.query("orders"))
    assert outcomes == ["CANCELED"] * 5 + ["SUCCESS"]
    expected = {**PASSED_ON, "pgmq_msg_id": "7"}
    assert sorted(reply_headers(bus), key=len) == [{}, *[expected] * 5]


def test_all_that_is_taken_can_be_passed_on(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """It is not longer than the whole was."""
    most = {"traceparent": "x" * MAX_VALUE, "tenant": '"' * 2081}
    assert len(encode_headers(most) or "") == MAX_BYTES
    bus.cancel("payments", asked(bus, most))
    assert reply_headers(bus) == [most]
    given = '{ "tenant" : "\\u00e4" , "tracestate": "a", "tenant": "b", "own": "c" }'
    passed = scalar(connection, "SELECT cmdbus.forwarded_headers(%s)::text", given)
    assert passed == '{"tracestate":"a","tenant":"b"}'
    for nothing in (None, "{}", '{"own": "c"}'):
        assert scalar(connection, "SELECT cmdbus.forwarded_headers(%s)::text", nothing) is None
    every = json.dumps(dict.fromkeys((*FORWARDED, "pgmq_msg_id"), "x"))
    forwarded = scalar(connection, "SELECT cmdbus.forwarded_headers(%s)::text", every)
    assert json.loads(forwarded).keys() == {*FORWARDED, "pgmq_msg_id"}


def test_a_program_that_reads_replies_sees_them(dsn: str, bus: CommandBus) -> None:
    for headers in (HEADERS, None):
        bus.cancel("payments", asked(bus, headers))
    with bus.replies("orders", timeout=0.1) as replies:
        assert [reply.headers for reply in replies] == [PASSED_ON, {}]


def test_a_handler_of_replies_sees_them(dsn: str, bus: CommandBus) -> None:
    seen: list[object] = []
    registry = handling(retry=ONCE)
    registry.register("orders", "Reply", lambda command, _: seen.append(command.headers))
    with running(dsn, registry):
        bus.wait("payments", asked(bus), 10)
        [reply] = bus.query("orders")
        bus.wait("orders", reply.command_id, 10)
    assert seen == [PASSED_ON]


class Traced(ShortBooking):
    """Its first command is delayed, and its last step is a batch."""

    def build_command(
        self, step: ShortBooking.Step, state: Trip
    ) -> SendRequest | list[SendRequest]:
        request = super().build_command(step, state)
        assert isinstance(request, SendRequest)
        request.headers = HEADERS
        request.delay = 0.01 if step == FLIGHT else None
        return [request] * 2 if step == CAR else request

    def deadline(self, step: str) -> float | None:
        return 60

    def compensation(self, step: ShortBooking.Step, state: Trip) -> SendRequest | None:
        request = super().compensation(step, state)
        return None if request is None else replace(request, headers=HEADERS)


def test_what_a_process_sends_has_the_headers_that_its_manager_gives_it(
    dsn: str, bus: CommandBus
) -> None:
    with traveling(dsn, bus, Traced(), Car=RULE) as process_id:
        assert await_end(bus, process_id).status == "COMPENSATED"
    sent = {record.type: record.headers for record in bus.query("bookings")}
    assert sent == dict.fromkeys(["Flight", "Hotel", "Car", "CancelFlight", "CancelCar"], HEADERS)
    own = {record.type: record.headers for record in bus.query("trips")}
    assert own["Reply"] == own["process:deadline"] == PASSED_ON
    assert own["process:start"] == {}
