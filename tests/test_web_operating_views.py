"""What the page shows of batches, processes, limits, breakers, schedules and domains: to operators,
and to monitors, who see less."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from batches import CLOSE, DEBIT
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from queries import NOWHERE
from test_breaker_states import STRIPE
from test_breaker_states import declare as declare_breakers
from test_limits_in_force import declare
from test_schedule_operations import NIGHTLY, declaring
from trips import PERMANENT, await_end, await_status, booked, traveling

from cmdbus import (
    BatchNotFoundError,
    CommandBus,
    ProcessNotFoundError,
    ProcessRequest,
    SendRequest,
)
from cmdbus.database.schema import install
from cmdbus.web.json_values import encode
from cmdbus.web.query import BadQuery
from cmdbus.web.view import read_path
from cmdbus.web.views import VIEWS

CHARGE = {"name": "payments Charge", "concurrency": 5}
SHARED = {"name": "stripe", "starts_per_second": 2, "covers": ["payments Charge", "refunds"]}


def view(bus: CommandBus, path: str) -> Any:
    return json.loads(encode(read_path(bus, VIEWS, path)))


@contextmanager
def monitor_of(dsn: str) -> Iterator[CommandBus]:
    """The bus of a page whose database role is a monitor."""
    name = f"cmdbus_test_monitor_{uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(SQL("CREATE ROLE {}").format(Identifier(name)))
        try:
            install(dsn, grants={"monitor": [name]})
            with CommandBus(make_conninfo(dsn, options=f"-c role={name}")) as bus:
                yield bus
        finally:
            admin.execute(SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(Identifier(name)))


def test_batches_are_listed_in_pages_and_one_is_shown_whole(bus: CommandBus) -> None:
    more: dict[str, Any] = {"on_complete": CLOSE, "processes": [ProcessRequest("trips", "Booking")]}
    first = bus.create_batch("payments", [DEBIT] * 3, name="march", data={"month": 3}, **more)
    bus.create_batch("orders", [DEBIT])
    page = view(bus, "batches?limit=1")
    assert [each["domain"] for each in page["batches"]] == ["orders"] and not page["restricted"]
    page = view(bus, f"batches?limit=1&after={page['next']}".replace("+", "%2B"))
    assert page["next"] is None
    [listed] = page["batches"]
    assert (listed["name"], listed["total"], listed["remaining"]) == ("march", 4, 4)
    assert view(bus, "batches?name=april")["batches"] == []
    one = view(bus, f"batch/{first}")
    assert one["data"]["text"] == '{"month":3}' and one["name"] == "march"
    assert [event["kind"] for event in one["audit"]] == ["BATCH_CREATED"]
    [after] = one["follow_ups"]
    assert (after["after"], after["type"], after["status"]) == ("COMPLETED", "Close", None)
    assert [process["type"] for process in one["processes"]] == ["Booking"]
    bus.cancel_batch(first, operator="ann", reason="wrong month")
    one = view(bus, f"batch/{first}")
    assert (one["status"], one["canceled"]) == ("CANCELED", 4)
    [asked] = [event for event in one["audit"] if event["operator"]]
    assert (asked["kind"], asked["message"]) == ("BATCH_CANCEL_REQUESTED", "wrong month")


def test_processes_are_listed_and_one_is_shown_with_its_steps(dsn: str, bus: CommandBus) -> None:
    with traveling(dsn, bus, Hotel=PERMANENT) as process_id:
        await_status(bus, process_id, "WAITING_FOR_TSQ")
        [listed] = view(bus, "processes?status=WAITING_FOR_TSQ&type=Booking")["processes"]
        assert (listed["process_id"], listed["step"]) == (str(process_id), "HOTEL")
        one = view(bus, f"process/{process_id}")
        flight, hotel = one["steps"]
        assert (flight["outcome"], hotel["outcome"]) == ("SUCCESS", None)
        assert hotel["command_status"] == "IN_TROUBLESHOOTING_QUEUE" and hotel["error"]
        assert json.loads(one["state"]["text"])["city"] == "Oslo" and not one["more_steps"]
        bus.cancel_process(process_id, operator="ann", reason="rain")
        await_end(bus, process_id)
    one = view(bus, f"process/{process_id}")
    assert [(step["number"], step["undoes"]) for step in one["steps"]] == [
        *[(1, None), (2, None), (3, 1)]
    ]
    assert one["audit"][0]["kind"] == "CANCELED" and one["audit"][-1]["kind"] == "STARTED"
    assert view(bus, "processes?domain=other")["processes"] == []


def test_limits_are_shown_with_what_is_taken(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "shop", CHARGE, SHARED)
    bus.limits.set("payments", "Charge", rate="100/min", operator="ann", reason="slow")
    bus.send_many([SendRequest("payments", "Charge")] * 3 + [SendRequest("refunds", "Pay")])
    charge, stripe = view(bus, "limits")["limits"]
    assert charge["in_force"]["text"] == "5 at once, 100/min with a burst of 1"
    assert charge["declared"][0]["terms"]["concurrency"] == 5
    assert charge["set"]["values"] == {"rate": "100/min"} and charge["set"]["operator"] == "ann"
    assert sum(charge["usage"].values()) == 3 and sum(stripe["usage"].values()) == 4
    assert (stripe["is_shared"], stripe["covers"]) == (True, ["payments/Charge", "refunds"])
    assert [each["name"] for each in view(bus, "limits?domain=refunds")["limits"]] == ["stripe"]


def test_breakers_are_shown_with_their_states_over_time(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare_breakers(connection, "shop", STRIPE, {**STRIPE, "name": "smtp", "covers": []})
    bus.breakers.open("stripe", operator="ann", reason="outage")
    bus.breakers.set("stripe", probes=1, operator="ann")
    smtp, stripe = view(bus, "breakers")["breakers"]
    assert (smtp["state"], smtp["events"], smtp["kept_open"]) == ("CLOSED", [], False)
    assert (stripe["state"], stripe["kept_open"], stripe["covers"]) == (
        *("OPEN", True),
        ["payments/Charge"],
    )
    events = [(each["kind"], each["state"]) for each in stripe["events"]]
    assert events == [("SET", None), ("OPENED", "OPEN")]
    assert stripe["terms"] == "opens at 3 failures in 60 s, for 30 s, then 1 probe"
    assert [each["name"] for each in view(bus, "breakers?name=smtp")["breakers"]] == ["smtp"]


def test_schedules_are_shown_with_their_next_ticks(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", NIGHTLY)
    bus.schedules.add("quarters", "mail", "Fetch", every="15m", operator="ann", reason="new")
    bus.schedules.add("still", "mail", "Fetch", every="15m")
    bus.schedules.pause("still")
    nightly, quarters, still = view(bus, "schedules")["schedules"]
    assert (nightly["added"], nightly["declared_by"]) == (None, ["shop"])
    assert len(nightly["ticks"]) == 5 and nightly["ticks"][0] == nightly["next_tick"]
    ticks = [datetime.fromisoformat(tick) for tick in quarters["ticks"]]
    assert [b - a for a, b in pairwise(ticks)] == [timedelta(minutes=15)] * 4
    assert (quarters["times"], quarters["added"]["operator"]) == ("every 15m", "ann")
    assert (still["paused"], still["ticks"], still["next_tick"]) == (True, [], None)
    assert [each["name"] for each in view(bus, "schedules?domain=shop")["schedules"]] == ["nightly"]


def test_a_domain_is_shown_with_all_that_is_set_of_it(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "shop", CHARGE, SHARED)
    declare_breakers(connection, "shop", STRIPE)
    bus.schedules.add("sweep", "payments", "Sweep", every="1h")
    bus.configure("payments", max_depth=10, operator="ann", reason="small")
    bus.send_many([SendRequest("payments", "Charge")] * 2)
    connection.execute("UPDATE cmdbus.limited SET created_at = now() - interval '2 minutes'")
    found = view(bus, "domain/payments")
    assert found["settings"] == {
        **{"max_depth": 10, "warn_depth": None, "max_waiting_per_key": None, "keep": 604800.0}
    }
    assert (found["known"], found["depth"], found["paused"]) == (True, 2, False)
    [charge] = found["types"]
    assert (charge["type"], charge["limited"]) == ("Charge", 2)
    assert charge["why"] == "no living node handles it"
    assert [each["name"] for each in found["limits"]] == ["payments/Charge", "stripe"]
    assert [each["name"] for each in found["breakers"]] == ["stripe"]
    assert [each["name"] for each in found["schedules"]] == ["sweep"]
    configured = found["audit"][0]
    assert (configured["kind"], configured["message"]) == ("CONFIGURED", "small")
    nothing = view(bus, "domain/paymens")
    assert (nothing["known"], nothing["types"], nothing["accepting"]) == (False, [], True)


def test_monitors_see_no_names_data_errors_and_audit_trails(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, "shop", CHARGE)
    declare_breakers(connection, "shop", STRIPE)
    bus.schedules.add("sweep", "payments", "Sweep", every="1h")
    bus.configure("payments", max_depth=10)
    batch_id, process_id = bus.create_batch("payments", [DEBIT], name="march"), booked(bus)
    with monitor_of(dsn) as monitor:
        assert not monitor.rights().reads_data
        [batch] = view(monitor, "batches?name=april")["batches"]
        assert (batch["name"], batch["total"]) == (None, 1)
        one = view(monitor, f"batch/{batch_id}")
        assert (one["data"], one["audit"], one["follow_ups"]) == (None, None, None)
        [process] = view(monitor, "processes")["processes"]
        assert process["type"] == "Booking"
        one = view(monitor, f"process/{process_id}")
        assert (one["state"], one["steps"], one["restricted"]) == (None, None, True)
        assert len(view(monitor, "limits")["limits"]) == 1
        [breaker] = view(monitor, "breakers")["breakers"]
        assert breaker["events"] is None
        assert len(view(monitor, "schedules")["schedules"]) == 1
        assert view(monitor, "domain/payments")["audit"] is None


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("batch/7", BadQuery),
        ("process", BadQuery),
        ("batches?status=OPEN", BadQuery),
        ("batches?limit=1000", BadQuery),
        ("processes?status=OPEN", BadQuery),
        ("processes?batch=7", BadQuery),
        ("limits?name=a", BadQuery),
        ("domain", BadQuery),
        ("domain/a b", ValueError),
    ],
)
def test_what_is_malformed_is_refused(path: str, error: type[Exception]) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(error):
        view(bus, path)


def test_what_there_is_not_is_not_shown(bus: CommandBus) -> None:
    for path, error in [
        (f"batch/{UUID(int=7)}", BatchNotFoundError),
        (f"process/{UUID(int=7)}", ProcessNotFoundError),
        ("batches?after=yesterday", ValueError),
    ]:
        with pytest.raises(error):
            view(bus, path)
