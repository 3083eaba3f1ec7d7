"""What operators do on the page to limits, breakers and processes: what they are shown before, what
is in the database and the audit trail after it, and how it is undone."""

import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from acting import act, preview, undo
from test_breaker_states import STRIPE, report
from test_breaker_states import declare as declare_breakers
from test_limits_in_force import declare
from trips import PERMANENT, await_end, await_status, booked, traveling

from cmdbus import (
    CommandBus,
    InvalidOperationError,
    Limit,
    ProcessNotFoundError,
    SendRequest,
)

CHARGE = {"name": "payments Charge", "concurrency": 5}
SHARED = {"name": "stripe", "starts_per_second": 2, "covers": ["payments Charge"]}
NAME = "payments/Charge"


def in_force(bus: CommandBus, name: str = NAME) -> Limit | None:
    return {each.name: each.in_force for each in bus.limits.list()}.get(name)


def fields(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {field["name"]: field["value"] for field in shown["fields"]}


def operators(bus: CommandBus, domain: str = "payments") -> list[tuple[str, str | None]]:
    return [(event.kind, event.operator) for event in bus.domain_audit(domain)]


def test_a_limit_is_set_and_cleared_again(bus: CommandBus, connection: psycopg.Connection) -> None:
    declare(connection, "shop", CHARGE)
    bus.send_many([SendRequest("payments", "Charge")] * 2 + [SendRequest("payments", "Other")])
    shown = preview(bus, "set_limit", name=NAME)
    assert (shown["touches"][0], shown["count"]) == (
        "In force is: 5 at once. It is for payments/Charge. Now 2 commands wait, and 0 run.",
        2,
    )
    values = fields(shown)
    assert (values["concurrency"], values["rate"], values["ordered"]) == (5, None, "no")
    values |= {"concurrency": "", "rate": "120 / minute"}
    answer = act(bus, "set_limit", name=NAME, values=values, state=shown["state"])
    assert answer["done"] == "the limit payments/Charge: 2/s with a burst of 2"
    assert in_force(bus) == Limit(starts_per_second=2.0, burst=2)
    with pytest.raises(InvalidOperationError, match="its concurrency was 5 and is not set now"):
        act(bus, "set_limit", name=NAME, values=values, state=shown["state"])
    undo(bus, answer)
    assert in_force(bus) == Limit(concurrency=5)
    assert operators(bus) == [("LIMIT_SET", "ann"), ("LIMIT_CLEARED", "bob")]


def test_what_was_set_before_is_put_back(bus: CommandBus, connection: psycopg.Connection) -> None:
    declare(connection, "shop", CHARGE)
    bus.limits.set("payments", "Charge", concurrency=3)
    answer = act(bus, "set_limit", name=NAME, values={"concurrency": 1, "fair": "yes"})
    assert in_force(bus) == Limit(concurrency=1, fair=True)
    with pytest.raises(InvalidOperationError, match="nothing of the limit payments/Charge changes"):
        act(bus, "set_limit", name=NAME, values={"concurrency": 1})
    undo(bus, answer)
    assert in_force(bus) == Limit(concurrency=3)


def test_what_is_set_of_a_limit_is_cleared_and_set_again(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "shop", CHARGE)
    bus.limits.set("payments", "Charge", concurrency=3, rate="5/s")
    assert "holds again: 5 at once." in preview(bus, "clear_limit", name=NAME)["touches"][0]
    answer = act(bus, "clear_limit", name=NAME)
    assert in_force(bus) == Limit(concurrency=5)
    for call in (preview, act):
        with pytest.raises(InvalidOperationError, match="nothing is set of the limit"):
            call(bus, "clear_limit", name=NAME)
    undo(bus, answer)
    assert in_force(bus) == Limit(concurrency=3, starts_per_second=5.0, burst=5)
    bus.limits.set("payments", "Charge", concurrency=5, rate=None)
    answer = act(bus, "clear_limit", name=NAME)
    assert answer["undo"] is None and "nothing has changed" in answer["undone"]


def test_a_shared_limit_has_no_options_of_types(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "shop", SHARED)
    assert [*fields(preview(bus, "set_limit", name="stripe"))] == ["concurrency", "rate", "burst"]
    answer = act(bus, "set_limit", name="stripe", values={"burst": 9})
    assert in_force(bus, "stripe") == Limit(starts_per_second=2.0, burst=9)
    undo(bus, answer)
    assert in_force(bus, "stripe") == Limit(starts_per_second=2.0, burst=2)


WRONG_LIMITS: list[tuple[str, dict[str, Any], str]] = [
    (NAME, {"rate": "fast"}, "rate must be a number and s, min, h or day, like '100/min'"),
    (NAME, {"concurrency": "-1"}, "concurrency must be a whole number from 1 on, not '-1'"),
    (NAME, {"on_trouble": "stop"}, "on_trouble must be one of block, skip, not 'stop'"),
    (NAME, {"burst": 5}, "payments/Charge has no rate, and a burst is about one"),
    ("stripe", {"fair": "yes"}, "fair is only for limits of one type, and stripe is a shared"),
    ("strpe", {"burst": 5}, "no app declares a shared limit 'strpe': did you mean 'stripe'?"),
]


def test_a_wrong_limit_gets_a_sentence_and_changes_nothing(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "shop", CHARGE, SHARED)
    before = bus.limits.list()
    expected = (ValueError, InvalidOperationError)
    for name, values, sentence in WRONG_LIMITS:
        with pytest.raises(expected, match=f"^{re.escape(sentence)}"):
            act(bus, "set_limit", name=name, values=values)
    assert bus.limits.list() == before


def test_a_breaker_is_opened_closed_and_opened_again(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare_breakers(connection, "shop", STRIPE)
    shown = preview(bus, "open_breaker", name="stripe")
    assert shown["touches"][1:] == [
        *["Commands of payments/Charge wait while it is open.", "Now 0 commands wait, and 0 run."]
    ]
    with pytest.raises(InvalidOperationError, match="the breaker stripe is closed already"):
        preview(bus, "close_breaker", name="stripe")
    opened = act(bus, "open_breaker", name="stripe", state=shown["state"], reason="outage")
    assert bus.breakers.list()[0].state == "OPEN"
    with pytest.raises(InvalidOperationError, match="its state was CLOSED and is OPEN now"):
        act(bus, "open_breaker", name="stripe", state=shown["state"])
    with pytest.raises(InvalidOperationError, match="the breaker stripe is kept open already"):
        preview(bus, "open_breaker", name="stripe")
    closed = undo(bus, opened)
    assert bus.breakers.list()[0].state == "CLOSED"
    undo(bus, closed)
    assert bus.breakers.list()[0].state == "OPEN"
    events = [(each.kind, each.operator, each.message) for each in bus.breakers.audit("stripe")]
    assert events == [
        *[("OPENED", "ann", "outage"), ("CLOSED", "bob", "undone"), ("OPENED", "bob", "undone")]
    ]
    with pytest.raises(InvalidOperationError, match="there is no breaker 'strpe': did you mean"):
        preview(bus, "open_breaker", name="strpe")


def test_a_breaker_is_reset(bus: CommandBus, connection: psycopg.Connection) -> None:
    declare_breakers(connection, "shop", STRIPE)
    report(connection, failed_ago=[1, 0])
    asked = preview(bus, "reset_breaker", name="stripe")
    assert "with 2 failures on record" in asked["touches"][0]
    assert asked["undo"] is None
    answer = act(bus, "reset_breaker", name="stripe")
    assert bus.breakers.list()[0].failures == 0
    assert answer["undo"] is None and "do not come back" in answer["undone"]
    report(connection, failed_ago=[0, 0, 0])
    assert "undoes it" in preview(bus, "reset_breaker", name="stripe")["undo"]
    answer = act(bus, "reset_breaker", name="stripe")
    assert bus.breakers.list()[0].state == "CLOSED"
    undo(bus, answer)
    assert bus.breakers.list()[0].state == "OPEN"


def test_terms_of_a_breaker_are_set_and_cleared_again(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    def terms() -> tuple[int, float, float, int]:
        found = bus.breakers.list()[0].in_force
        return found.failures, found.window, found.cooldown, found.probes

    declare_breakers(connection, "shop", STRIPE)
    shown = preview(bus, "set_breaker", name="stripe")
    values = fields(shown)
    assert values == {"failures": 3, "probes": 2, "window": "60 s", "cooldown": "30 s"}
    values |= {"failures": "9", "cooldown": "5m"}
    first = act(bus, "set_breaker", name="stripe", values=values, state=shown["state"])
    assert (
        first["done"] == "the breaker stripe opens at 9 failures in 60 s, for 300 s, then 2 probes"
    )
    assert terms() == (9, 60.0, 300.0, 2)
    with pytest.raises(InvalidOperationError, match="its failures was 3 and is 9 now"):
        act(bus, "set_breaker", name="stripe", values=values, state=shown["state"])
    second = act(bus, "set_breaker", name="stripe", values={"failures": 4})
    undo(bus, second)
    cleared = act(bus, "clear_breaker", name="stripe", reason="calm again")
    assert terms() == (3, 60.0, 30.0, 2)
    undo(bus, cleared)
    assert terms() == (9, 60.0, 300.0, 2)
    act(bus, "clear_breaker", name="stripe")
    for call in (preview, act):
        with pytest.raises(InvalidOperationError, match="nothing is set of the breaker stripe"):
            call(bus, "clear_breaker", name="stripe")
    kinds = [(each.kind, each.operator) for each in bus.breakers.audit("stripe")]
    assert kinds[:4] == [("SET", "ann"), ("SET", "ann"), ("SET", "bob"), ("CLEARED", "ann")]
    for wrong, sentence in [
        ({"failures": ""}, "failures of the breaker stripe must be given"),
        ({"cooldown": "soon"}, "cooldown must be a duration like 90s, 15m, 2h or 7d"),
        ({"probes": 1001}, "probes of the breaker stripe must be a whole number from 1 to 1000"),
    ]:
        with pytest.raises(ValueError, match=f"^{sentence}"):
            act(bus, "set_breaker", name="stripe", values=wrong)


def test_a_process_is_retried_and_canceled(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus, Hotel=PERMANENT) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        shown = preview(bus, "retry_process", process_id=str(process_id))
        awaited = "It awaits HOTEL (bookings/Hotel, IN_TROUBLESHOOTING_QUEUE)"
        assert shown["touches"][0].startswith(awaited)
        act(bus, "retry_process", process_id=str(process_id), state=shown["state"])
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        shown = preview(bus, "cancel_process", process_id=str(process_id))
        assert shown["touches"][0].startswith(awaited) and shown["grave"]
        assert shown["touches"][1] == "Then workers undo 1 completed step: FLIGHT."
        with pytest.raises(InvalidOperationError, match="its status was PENDING and is WAITING_"):
            state = {"status": "PENDING"}
            act(bus, "cancel_process", process_id=str(process_id), state=state)
        answer = act(bus, "cancel_process", process_id=str(process_id), reason="rain")
        assert answer["undo"] is None and answer["undone"] == "This cannot be undone."
        await_end(bus, process_id)
    for action in ("cancel_process", "retry_process", "signal_process"):
        with pytest.raises(InvalidOperationError, match=r"CANCELED"):
            preview(bus, action, process_id=str(process_id))
    events = [(e.kind, e.operator, e.message) for e in bus.process_audit(process_id) if e.operator]
    assert events == [("RETRIED", "ann", "test"), ("CANCEL_REQUESTED", "ann", "rain")]


def test_a_process_gets_a_signal(bus: CommandBus) -> None:
    process_id = str(booked(bus))
    assert fields(preview(bus, "signal_process", process_id=process_id)) == {
        **{"name": None, "data": "null"}
    }
    values = {"name": "approved", "data": '{"by": "ann"}'}
    answer = act(bus, "signal_process", process_id=process_id, values=values, reason="she paid")
    assert answer["done"] == "the signal approved is sent"
    [signal] = bus.query("trips", type="process:signal")
    assert signal.data == {"name": "approved", "data": {"by": "ann"}}
    [sent] = [event for event in bus.process_audit(process_id) if event.operator]
    assert (sent.kind, sent.operator, sent.message) == ("SIGNAL_SENT", "ann", "she paid")
    for wrong, sentence in [
        ({"name": " "}, "name must be the name of a signal, and it is empty"),
        ({"name": "a", "data": "{"}, "data is not JSON: "),
    ]:
        with pytest.raises(ValueError, match=f"^{sentence}"):
            act(bus, "signal_process", process_id=process_id, values=wrong)
    with pytest.raises(ProcessNotFoundError):
        preview(bus, "cancel_process", process_id=str(uuid4()))
