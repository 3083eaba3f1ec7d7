"""Every call of a bus does and returns the same in a transaction of any driver."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from handlers import connect
from queries import move_to_troubleshooting, scalar
from transactions import WAYS, Transaction

from cmdbus import (
    CommandBus,
    DuplicateCommandError,
    ProcessRequest,
    QueueFullError,
    SendRequest,
)
from cmdbus.data import encode

PAST, LATER = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, 12, tzinfo=UTC)
#: What a driver could misread, and numbers that a type of PostgreSQL's would write in another way.
TEXT = "%s %(x)s %% \\ \t \n ' \" $1 ? :x é {} 🚌"
DATA = {"b": 1.10, "a": TEXT, TEXT: 12345678901234567890, "e": [], "c": {"b": 1e-7}}

drivers = pytest.mark.parametrize(
    "driver", ["psycopg2", pytest.param("pg8000", marks=pytest.mark.long)]
)


@pytest.fixture
def own(driver: str, dsn: str) -> Iterator[Transaction]:
    with WAYS[driver](dsn) as transaction:
        yield transaction


@pytest.fixture
def sender(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn) as connection:
        yield connection


@dataclass
class World:
    """What the calls are about."""

    command: tuple[str, UUID]
    trouble: tuple[str, UUID]
    batch_id: UUID
    process_id: UUID


@pytest.fixture
def world(bus: CommandBus, dsn: str) -> World:
    trouble_id = bus.send("payments", "Debit", DATA)
    move_to_troubleshooting(dsn)
    options: dict[str, Any] = {"key": "k", "unique": "u", "headers": {"own": TEXT}}
    command_id = bus.send("payments", "Debit", DATA, reply_to="orders", **options)
    bus.send("payments", "Debit", key="k", delay=60, expires=90)
    bus.schedules.add("nightly", "payments", "Debit", "0 3 * * *", timezone="Europe/Berlin")
    bus.limits.set("payments", "Credit", concurrency=3, operator="ann")
    bus.pause("invoices", operator="ann", reason=TEXT)
    batch_id = bus.create_batch("payments", [SendRequest("payments", "Debit")] * 2, data=DATA)
    process_id = bus.start_process("trips", "Booking", {"city": "Oslo"})
    return World(("payments", command_id), ("payments", trouble_id), batch_id, process_id)


def _cursor(world: World) -> str:
    """Before the command in troubleshooting."""
    domain, command_id = world.trouble
    return f"{LATER.isoformat()} {domain} {command_id}"


def reads(bus: CommandBus, c: Any, world: World) -> dict[str, object]:
    """The results of every call that reads. Ages differ."""
    return {
        **read_commands(bus, c, world),
        **search(bus, c, world),
        **read_trouble(bus, c, world),
        "limits": bus.limits.list(connection=c),
        "breakers": bus.breakers.list(connection=c),
        "schedules": bus.schedules.list(connection=c),
        "next": bus.schedules.next("nightly", 3, connection=c),
    }


def read_commands(bus: CommandBus, c: Any, world: World) -> dict[str, object]:
    domains = bus.domains(connection=c)
    return {
        "get": bus.get(*world.command, connection=c),
        "query": bus.query(connection=c),
        "query all": bus.query(
            *("payments", "PENDING", "Debit", PAST, LATER, 5, 0), key="k", connection=c
        ),
        "audit": bus.audit(*world.command, connection=c),
        "count_waiting": bus.count_waiting("payments", type="Debit", connection=c),
        "snapshot": {**bus.snapshot("payments", connection=c), "oldest_age": None},
        "domains": [(each.domain, each.all.depth, each.paused) for each in domains],
        "domain_audit": bus.domain_audit("invoices", connection=c),
        "explain": bus.explain(*world.command, connection=c),
        "get_batch": bus.get_batch(world.batch_id, connection=c),
        "list_batches": bus.list_batches("PENDING", since=PAST, until=LATER, connection=c),
        "batch_commands": bus.batch_commands(world.batch_id, connection=c),
        "batch_audit": bus.batch_audit(world.batch_id, connection=c),
        "get_process": bus.get_process(world.process_id, connection=c),
        "query_processes": bus.query_processes("Booking", domain="trips", since=PAST, connection=c),
        "process_steps": bus.process_steps(world.process_id, connection=c),
        "process_audit": bus.process_audit(world.process_id, connection=c),
    }


def search(bus: CommandBus, c: Any, world: World) -> dict[str, object]:
    return {
        "search": bus.search(limit=2, connection=c),
        "search on": bus.search(limit=2, after=bus.search(limit=2).next, connection=c),
        "search by conditions": bus.search(
            "payments",
            "PENDING",
            "Debit",
            PAST,
            LATER,
            error_code="NONE",
            key="k",
            batch_id=world.batch_id,
            correlation_id=world.batch_id,
            text="x",
            connection=c,
        ),
        "search by id": bus.search(command_id=world.command[1], connection=c),
        "find": bus.find([world.command, world.trouble], connection=c),
        "known types": bus.known_types(connection=c),
    }


def read_trouble(bus: CommandBus, c: Any, world: World) -> dict[str, object]:
    return {
        "tsq list": bus.troubleshooting.list(since=PAST, connection=c),
        "tsq page": bus.troubleshooting.page(
            "payments", since=PAST, with_data=False, after=_cursor(world), connection=c
        ),
        "tsq groups": bus.troubleshooting.groups("payments", connection=c),
        "tsq count": bus.troubleshooting.count("payments", connection=c),
        "tsq summary": bus.troubleshooting.summary(connection=c),
    }


@drivers
def test_what_a_call_reads_is_the_same_over_every_driver(
    own: Transaction, bus: CommandBus, sender: psycopg.Connection, world: World
) -> None:
    expected, found = reads(bus, sender, world), reads(bus, own.connection, world)
    for name in expected:
        assert found[name] == expected[name], name
        assert repr(found[name]) == repr(expected[name]), name


def changes(bus: CommandBus, c: Any, world: World) -> list[object]:
    """Everything that changes something, but sends, and what it leaves."""
    counts = []
    bus.reschedule(*world.command, delay=60, priority="high", connection=c)
    bus.reschedule(*world.command, run_at=LATER, operator="ann", connection=c)
    bus.cancel(*world.command, reason=TEXT, operator="ann", connection=c)
    counts.append(bus.cancel_all("payments", key="k", connection=c))
    bus.configure("payments", max_depth=9, keep=timedelta(days=2), connection=c)
    bus.configure("payments", warn_depth=None, accepting=True, connection=c)
    bus.pause("payments", reason=TEXT, connection=c)
    bus.resume("payments", connection=c)
    bus.signal_process(world.process_id, "go", DATA, connection=c)
    bus.cancel_process(world.process_id, operator="ann", connection=c)
    tsq = bus.troubleshooting
    tsq.retry(*world.trouble, operator="ann", data={"text": TEXT}, connection=c)
    counts.append(tsq.complete_all("payments", operator="ann", result=DATA, connection=c))
    bus.cancel_batch(world.batch_id, connection=c)
    bus.limits.set("payments", "Debit", rate="2/s", connection=c)
    bus.limits.clear("payments", "Credit", connection=c)
    bus.schedules.add("hourly", "payments", "Debit", every=3600, data=DATA, connection=c)
    bus.schedules.pause("nightly", connection=c)
    bus.schedules.remove("nightly", connection=c)
    counts.append(bus.cancel_all("payments", until=LATER, connection=c))
    return [
        *counts,
        bus.query("payments", connection=c),
        bus.audit(*world.command, connection=c),
        bus.audit(*world.trouble, connection=c),
        bus.domain_audit("payments", connection=c),
        bus.limits.list(connection=c),
        bus.schedules.list(connection=c),
        bus.process_audit(world.process_id, connection=c),
        bus.purge("payments", connection=c),
    ]


@drivers
def test_what_a_call_changes_is_the_same_over_every_driver(
    own: Transaction, dsn: str, sender: psycopg.Connection, world: World
) -> None:
    with CommandBus(dsn, purge_allowed=True) as bus:
        expected = [*map(without_times, changes(bus, sender, world))]
        sender.rollback()
        found = [*map(without_times, changes(bus, own.connection, world))]
        own.rollback()
    assert found == expected


def without_times(result: object) -> str:
    times = r"datetime\.datetime\([^)]*(\(.*?\))?\)|\d+\.\d{3,}|\d{4}-\d\d-\d\dT[\d:+.]*"
    return re.sub(times, "", repr(result))


@drivers
@pytest.mark.parametrize("call", ["send", "send_many", "create_batch"])
def test_a_command_is_the_one_that_was_sent(
    own: Transaction, bus: CommandBus, dsn: str, call: str
) -> None:
    options: dict[str, Any] = {
        **{"command_id": uuid4(), "priority": "high", "run_at": LATER, "max_attempts": 7},
        **{"correlation_id": uuid4(), "reply_to": "orders", "key": TEXT},
        **{"unique": TEXT, "unique_until": 60, "expires": LATER + timedelta(days=1)},
        "headers": {"tenant": "blue", "own": TEXT},
    }
    request = SendRequest("payments", "Debit", DATA, **options)
    match call:
        case "send":
            bus.send("payments", "Debit", DATA, connection=own.connection, **options)
        case "send_many":
            bus.send_many([request, SendRequest("payments", "Other")], connection=own.connection)
        case "create_batch":
            bus.create_batch("payments", [request], data=DATA, connection=own.connection)
    own.commit()
    [found] = bus.query("payments", type="Debit")
    assert (found.command_id, found.priority, found.due_at) == (options["command_id"], 0, LATER)
    assert (found.correlation_id, found.reply_to) == (options["correlation_id"], "orders")
    assert (found.key, found.unique_key) == (TEXT, TEXT)
    assert (found.expires_at, found.max_attempts) == (options["expires"], 7)
    assert found.headers == options["headers"]
    assert text_of_data(dsn) == encode(DATA)


def text_of_data(dsn: str) -> str:
    """Not only a value that is equal."""
    with connect(dsn) as connection:
        return str(scalar(connection, "SELECT data::text FROM cmdbus.command WHERE type = 'Debit'"))


@drivers
def test_what_a_hook_changes_is_on_record(own: Transaction, dsn: str) -> None:
    with CommandBus(dsn, on_send=give_key) as bus:
        sent = bus.send("payments", "Debit", connection=own.connection)
        more = bus.send_many([SendRequest("payments", "Debit")], connection=own.connection)
        own.commit()
        for command_id in (sent, *more):
            [event] = [
                event for event in bus.audit("payments", command_id) if "CHANGED" in event.kind
            ]
            assert event.details == {"key": {"before": None, "after": "it's \\ mine"}}


def give_key(request: SendRequest) -> SendRequest:
    request.key = "it's \\ mine"
    return request


@drivers
def test_keys_and_conflicts_are_handled_over_every_driver(
    own: Transaction, bus: CommandBus
) -> None:
    holder = bus.send("payments", "Debit", unique="one")
    options: dict[str, Any] = {"unique": "one", "connection": own.connection}
    assert bus.send("payments", "Debit", on_conflict="existing", **options) == holder
    requests = [
        SendRequest("payments", "Debit", unique="one", on_conflict="existing"),
        SendRequest("payments", "Debit", unique="two"),
    ]
    assert bus.send_many(requests, connection=own.connection)[0] == holder
    newer = bus.send("payments", "Debit", on_conflict="replace", **options)
    with pytest.raises(DuplicateCommandError):
        bus.send("payments", "Debit", **options)
    bus.configure("invoices", max_waiting_per_key=1)
    with pytest.raises(QueueFullError, match="key"):
        two = [SendRequest("invoices", "Bill", key="ann")] * 2
        bus.send_many(two, connection=own.connection)
    own.commit()
    record = bus.get("payments", holder)
    assert record is not None and record.error_code == "REPLACED"
    assert newer in [found.command_id for found in bus.query("payments", "PENDING")]
    assert bus.query("invoices") == []


@drivers
def test_processes_are_started_and_batches_joined_over_every_driver(
    own: Transaction, bus: CommandBus
) -> None:
    alone = bus.start_process("trips", "Booking", {"city": TEXT}, connection=own.connection)
    processes = [ProcessRequest("trips", "Booking")]
    batch_id = bus.create_batch("trips", [], processes=processes, connection=own.connection)
    run = bus.schedules.add
    run("now", "payments", "Debit", every=3600, data=DATA, connection=own.connection)
    sent = bus.schedules.run("now", connection=own.connection)
    own.commit()
    process, batch = bus.get_process(alone), bus.get_batch(batch_id)
    assert process is not None and process.state == {"city": TEXT}
    assert batch is not None and batch.total == 1
    command = bus.get("payments", sent)
    assert command is not None and command.data == DATA


@drivers
def test_many_commands_are_written_in_parts_and_in_their_order(
    own: Transaction, bus: CommandBus
) -> None:
    requests = [SendRequest("payments", "Debit", number) for number in range(2_500)]
    ids = bus.send_many(requests, connection=own.connection)
    own.commit()
    found = bus.query("payments", limit=3_000)
    assert {record.command_id: record.data for record in found} == dict(
        zip(ids, range(2_500), strict=True)
    )
