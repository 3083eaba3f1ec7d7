"""Batches as they are created and listed, and what is refused."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from batches import (
    DEBIT,
    FAILED,
    TROUBLE,
    batch_of,
    check_counters,
    end,
)
from claiming import Claimer, ended, want
from proxy import Proxy
from psycopg.types.json import Json
from queries import count

from cmdbus import (
    BatchNotFoundError,
    BatchStatus,
    CommandBus,
    DatabaseUnavailableError,
    DuplicateCommandError,
    QueueFullError,
    SendRequest,
)


def test_commands_of_many_domains_and_sizes_are_created_in_parts(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """By an iterator that is read as it is written, and by one with ids of the caller's."""

    def requests() -> Iterator[SendRequest]:
        for number in range(2500):
            own = uuid4() if number % 100 == 0 else None
            yield SendRequest(f"domain{number % 3}", "Debit", number, own, delay=number % 2)

    batch_id = bus.create_batch("payments", requests())
    assert check_counters(connection, batch_id) == "PENDING"
    assert batch_of(bus, batch_id).total == 2500
    assert count(connection, "cmdbus.identity") == 25
    with psycopg.connect(connection.info.dsn) as mine:
        own = bus.create_batch("payments", [DEBIT] * 1500, connection=mine)
        assert bus.get_batch(own) is None
        assert bus.get_batch(own, connection=mine) is not None
    assert batch_of(bus, own).total == 1500


OWN, TWICE = uuid4(), SendRequest("payments", "Debit", command_id=uuid4())
MANY = [DEBIT] * 1200
FULL = SendRequest("orders", "X")
WRONG: Any = "wrong"


def failing() -> Iterator[SendRequest]:
    yield from MANY
    raise LookupError("it was read in vain")


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize(
    ("requests", "more", "error", "sentence"),
    [
        (list, {}, ValueError, "Batch must contain at least one command"),
        (lambda: iter([]), {}, ValueError, "Batch must contain at least one command"),
        (lambda: 7, {}, ValueError, "requests must be an iterable of SendRequests, not int"),
        (lambda: [*MANY, WRONG], {}, ValueError, "requests must be SendRequests, not str"),
        (lambda: MANY, {"on_complete": WRONG}, ValueError, "must be SendRequests, not str"),
        (lambda: [*MANY, SendRequest("a b", "X")], {}, ValueError, "domain must be a letter"),
        (lambda: MANY, {"data": float("nan")}, ValueError, "data"),
        (lambda: [*MANY, SendRequest("payments", "X", {1: 2})], {}, ValueError, "data"),
        (lambda: [TWICE, *MANY, TWICE], {}, DuplicateCommandError, str(TWICE.command_id)),
        (
            lambda: [*MANY, SendRequest("payments", "X", None, OWN)],
            {},
            DuplicateCommandError,
            str(OWN),
        ),
        (
            lambda: MANY,
            {"on_cancel": SendRequest("payments", "X", None, OWN)},
            DuplicateCommandError,
            str(OWN),
        ),
        (lambda: [*MANY, FULL, FULL], {}, QueueFullError, "never takes 2 commands"),
        (failing, {}, LookupError, "in vain"),
    ],
)
def test_a_batch_that_cannot_be_created_has_written_nothing(
    bus: CommandBus,
    sender: psycopg.Connection,
    requests: Callable[[], Any],
    more: dict[str, Any],
    error: type[Exception],
    sentence: str,
    connected: bool,
) -> None:
    """And the caller's transaction goes on."""
    bus.configure("orders", max_depth=1)
    bus.send("payments", "Debit", command_id=OWN)
    sender.execute("SELECT 1")
    with pytest.raises(error, match=sentence):
        bus.create_batch("payments", requests(), **more, connection=sender if connected else None)
    sender.execute("SELECT 1")
    sender.commit()
    assert bus.list_batches() == []
    assert bus.snapshot("payments")["depth"] == 1
    assert count(sender, "cmdbus.identity") == 1


@pytest.mark.parametrize("at", [b"FROM STDIN", b"COMMIT"])
def test_a_call_whose_connection_dies_creates_its_batch_once(
    dsn: str, connection: psycopg.Connection, at: bytes
) -> None:
    """Its requests are read again, unless the first try was carried out; an iterator cannot be."""
    cut: list[bytes] = []

    def cut_once(data: bytes) -> bytes:
        if at in data and not cut:
            cut.append(data)
            proxy.cut()
        return data

    with Proxy(dsn, cut_once) as proxy, CommandBus(proxy.dsn) as bus:
        for requests in ([DEBIT] * 3, iter([DEBIT] * 3)):
            cut.clear()
            if at == b"COMMIT" or isinstance(requests, list):
                batch_id = bus.create_batch("payments", requests)
                assert cut and check_counters(connection, batch_id) == "PENDING"
                continue
            with pytest.raises(DatabaseUnavailableError, match="cannot be read again"):
                bus.create_batch("payments", requests)
    created = 1 if at == b"FROM STDIN" else 2
    assert count(connection, "cmdbus.batch") == created
    assert count(connection, "cmdbus.ready") == 3 * created


def test_batches_and_their_commands_are_listed(bus: CommandBus, claimer: Claimer) -> None:
    one = bus.create_batch("payments", [DEBIT] * 4, name="one")
    two = bus.create_batch("orders", [DEBIT], name="two")
    claims = claimer.claim(3)
    claimer.settle(ended(claims[0]), ended(claims[1], FAILED), ended(claims[2], TROUBLE))
    assert [record.batch_id for record in bus.list_batches()] == [two, one]
    assert [record.batch_id for record in bus.list_batches(limit=1, offset=1)] == [one]
    assert [record.batch_id for record in bus.list_batches(name="one")] == [one]
    assert [record.batch_id for record in bus.list_batches(status="PENDING")] == [two, one]
    assert bus.list_batches(status=BatchStatus.COMPLETED) == []
    assert bus.list_batches(until=datetime.now(UTC) - timedelta(hours=1)) == []
    assert len(bus.list_batches(since=datetime.now(UTC) - timedelta(hours=1))) == 2
    found = bus.batch_commands(one)
    assert [record.created_at for record in found] == sorted(
        (record.created_at for record in found), reverse=True
    )
    for status, expected in (
        ("COMPLETED", {claims[0].command_id}),
        ("FAILED", {claims[1].command_id}),
        ("IN_TROUBLESHOOTING_QUEUE", {claims[2].command_id}),
        ("IN_PROGRESS", set()),
        ("CANCELED", set()),
    ):
        assert {r.command_id for r in bus.batch_commands(one, status)} == expected, status
    assert len(bus.batch_commands(one, "PENDING")) == 1
    assert bus.batch_commands(one, limit=2, offset=2) == found[2:]
    assert bus.batch_commands(uuid4()) == [] == bus.batch_audit(uuid4())


def test_bad_arguments_are_refused(bus: CommandBus) -> None:
    calls: list[tuple[Any, str]] = [
        (lambda: bus.get_batch("7"), "batch_id must be a UUID"),
        (lambda: bus.list_batches("DONE"), "status must be one of PENDING, IN_PROGRESS, COMPLETED"),
        (lambda: bus.batch_commands(uuid4(), "DONE"), "status must be one of PENDING"),
        (lambda: bus.batch_commands(uuid4(), limit=0), "limit must be"),
        (lambda: bus.create_batch("a b", [DEBIT]), "domain must be a letter"),
        (lambda: bus.create_batch("a", [DEBIT], name="x" * 2001), "name must be text"),
        (lambda: bus.cancel_batch(uuid4(), operator=" "), "operator must be"),
        (lambda: bus.wait_batch(uuid4(), timeout=0), "timeout must be"),
    ]
    for call, sentence in calls:
        with pytest.raises(ValueError, match=sentence):
            call()


def test_an_unknown_batch_is_named(bus: CommandBus) -> None:
    unknown = uuid4()
    assert bus.get_batch(unknown) is None
    for call in (bus.cancel_batch, bus.wait_batch):
        with pytest.raises(BatchNotFoundError, match=f"there is no batch {unknown}"):
            call(unknown)


def test_what_a_producer_writes_into_a_batch_of_another_hurts_no_worker(
    bus: CommandBus, claimer: Claimer, connection: psycopg.Connection
) -> None:
    """More commands than it counts, and those of one that does not exist."""
    batch_id = bus.create_batch("payments", [DEBIT])
    for target in (batch_id, uuid4()):
        connection.execute(
            "INSERT INTO cmdbus.ready (domain, priority, command_id, type, data, correlation_id,"
            " batch_id) VALUES ('payments', 5, gen_random_uuid(), 'Debit', '1',"
            " gen_random_uuid(), %s)",
            (target,),
        )
    claims = claimer.settle_and_claim([], want(9))
    claimer.settle_as_batch(*map(ended, claims))
    end(claimer, batch_id)
    assert batch_of(bus, batch_id).status is BatchStatus.COMPLETED
    claimer.statements.value(connection, "retain_batches", size=10)
    assert count(connection, "cmdbus.tally") == 0
    one = str(uuid4())
    bad = {"command_id": one}, {"command_id": one, "domain": "a b"}
    for total, request in ((1, Json(bad[0])), (1, Json(bad[1])), (0, None)):
        with pytest.raises(psycopg.Error):
            connection.execute(
                "SELECT cmdbus.create_batch(gen_random_uuid(), 'a', NULL, 'null', %s, %s, NULL)",
                (total, request),
            )
