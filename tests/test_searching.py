"""Searches for commands, page by page."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from claiming import Claimer, ended, want
from queries import NOWHERE, claim_by_hand, limit_by_hand, move_to_troubleshooting

from cmdbus import CommandBus, FoundCommand, SendRequest, Status
from cmdbus.worker.claims.outcomes import completed

FINISH = """
WITH gone AS (DELETE FROM cmdbus.ready WHERE domain = %s RETURNING *)
INSERT INTO cmdbus.finished (token, claimer, claimed_at, created_at, command_id, correlation_id,
    priority, attempts, losses, domain, type, status, data, error_code, batch_id, key)
SELECT 1, NULL, created_at, created_at, command_id, correlation_id, priority, 1, 0, domain, type,
    %s, data, %s, batch_id, key
FROM gone"""


def finish(
    connection: psycopg.Connection, domain: str, status: str = "COMPLETED", code: str | None = None
) -> None:
    """Everything that is ready in a domain, as workers would."""
    connection.execute(FINISH, (domain, status, code))


def pages(bus: CommandBus, limit: int, **conditions: Any) -> Iterator[list[FoundCommand]]:
    after = None
    while True:
        page = bus.search(limit=limit, after=after, **conditions)
        yield page.commands
        after = page.next
        if after is None:
            break


def found(bus: CommandBus, limit: int = 3, **conditions: Any) -> list[UUID]:
    return [each.command_id for page in pages(bus, limit, **conditions) for each in page]


@pytest.fixture
def commands(dsn: str, bus: CommandBus, connection: psycopg.Connection) -> dict[str, UUID]:
    """One in each state, the first one sent first."""
    ids = {"completed": bus.send("old", "Debit", {"name": "Ann"}, key="k")}
    finish(connection, "old")
    ids["failed"] = bus.send("old", "Credit", correlation_id=ids["completed"])
    finish(connection, "old", "FAILED", "NO_MONEY")
    ids["canceled"] = bus.send("payments", "Debit", key="k")
    bus.cancel("payments", ids["canceled"])
    ids["trouble"] = bus.send("payments", "Debit", ["Ann's"])
    move_to_troubleshooting(dsn, "GONE", "account of ANN is gone")
    ids["scheduled"] = bus.send("payments", "Debit", delay=60, key="k")
    ids["limited"] = bus.send("payments", "Credit", key="k")
    limit_by_hand(dsn, ids["limited"])
    ids["running"] = bus.send("payments", "Debit", priority="high", key="k")
    claim_by_hand(dsn, ids["running"])
    ids["ready"] = bus.send("payments", "Debit", correlation_id=ids["completed"], key="other")
    return ids


def test_all_commands_and_their_types_are_found_the_last_sent_first(
    bus: CommandBus, commands: dict[str, UUID]
) -> None:
    newest_first = [*commands.values()][::-1]
    for limit in (1, 2, 3, 100):
        assert found(bus, limit) == newest_first
    page = bus.search()
    records = {each.command_id: each for each in bus.query()}
    for each in page.commands:
        record = records[each.command_id]
        for name in each.__slots__:
            assert getattr(each, name) == getattr(record, name), name
    assert (page.next, page.stopped, page.restricted) == (None, None, False)
    bus.configure("idle", max_depth=1)
    assert bus.known_types() == {
        "idle": [],
        "old": ["Credit", "Debit"],
        "payments": ["Credit", "Debit"],
    }


#: The commands that meet these conditions.
EXPECTED: list[tuple[dict[str, Any], str]] = [
    ({"status": "PENDING"}, "ready limited scheduled"),
    ({"status": "IN_PROGRESS"}, "running"),
    ({"status": "IN_TROUBLESHOOTING_QUEUE"}, "trouble"),
    ({"status": "COMPLETED"}, "completed"),
    ({"status": Status.FAILED}, "failed"),
    ({"status": "CANCELED"}, "canceled"),
    ({"domain": "old"}, "failed completed"),
    ({"domain": "none"}, ""),
    ({"type": "Credit"}, "limited failed"),
    ({"type": "Credit", "domain": "payments", "status": "PENDING"}, "limited"),
    ({"error_code": "NO_MONEY"}, "failed"),
    ({"error_code": "GONE"}, "trouble"),
    ({"key": "k"}, "running limited scheduled canceled completed"),
    ({"key": "k", "domain": "payments"}, "running limited scheduled canceled"),
    ({"key": "k", "domain": "payments", "status": "PENDING"}, "limited scheduled"),
    ({"key": "k", "domain": "payments", "status": "IN_PROGRESS"}, "running"),
    ({"text": "ann"}, "trouble completed"),
    ({"text": "ANN'S"}, "trouble"),
    ({"text": "%"}, ""),
]


def test_commands_are_found_by_each_condition(bus: CommandBus, commands: dict[str, UUID]) -> None:
    names = {id_: name for name, id_ in commands.items()}
    for conditions, expected in EXPECTED:
        assert " ".join(names[id_] for id_ in found(bus, **conditions)) == expected, conditions
    times = [each.created_at for each in bus.search().commands]
    for since in times:
        assert len(found(bus, since=since)) == times.index(since) + 1
        assert len(found(bus, until=since)) == len(times) - times.index(since) - 1
    assert found(bus, since=times[2], until=times[1]) == found(bus, 100)[2:3]


def test_what_belongs_to_a_command_of_the_bus_is_found_by_its_correlation_id(
    bus: CommandBus, commands: dict[str, UUID]
) -> None:
    own = found(bus, 100, correlation_id=commands["completed"])
    assert own == [commands[name] for name in ("ready", "failed", "completed")]
    assert {*found(bus, 1, correlation_id=commands["completed"])} == {*own}
    brought = uuid4()
    sent = bus.send("old", "Debit", correlation_id=brought)
    assert found(bus, correlation_id=brought) == [sent]


def test_a_command_is_found_by_its_id(bus: CommandBus, commands: dict[str, UUID]) -> None:
    for id_ in commands.values():
        assert found(bus, command_id=id_) == [id_]
    id_ = uuid4()
    for domain in ("payments", "mail", "orders"):
        bus.send(domain, "Debit", command_id=id_)
    assert [each.domain for each in bus.search(command_id=str(id_)).commands] == [
        "orders",
        "mail",
        "payments",
    ]
    assert [each.domain for each in bus.search("mail", command_id=id_).commands] == ["mail"]
    assert bus.search(command_id=uuid4()).commands == []
    with pytest.raises(ValueError, match="without any condition but domain"):
        bus.search(command_id=id_, status="PENDING")


def test_the_commands_of_a_batch_are_found(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    requests = [SendRequest("shop", "Debit", n, delay=60 * (n == 0)) for n in range(6)]
    batch = bus.create_batch("shop", requests)
    other = bus.create_batch("shop", requests)
    ids = [each.command_id for each in bus.batch_commands(batch)]
    assert {*found(bus, 2, batch_id=batch)} == {*ids}
    ready = [each.command_id for each in bus.batch_commands(batch, "PENDING") if each.data]
    limit_by_hand(dsn, ready[0])
    assert {*found(bus, 2, batch_id=batch, status="PENDING")} == {*ids}
    finish(connection, "shop", "FAILED", "NO")
    assert len(found(bus, 2, batch_id=batch, status="FAILED")) == 4
    assert len(found(bus, 2, batch_id=other, status="FAILED")) == 5
    assert found(bus, batch_id=batch, status="COMPLETED") == []
    assert {*found(bus, 2, batch_id=batch)} == {*ids}
    bus.send("shop", "Debit")
    move_to_troubleshooting(dsn)
    assert {*found(bus, 2, batch_id=batch)} == {*ids}


def test_commands_that_move_between_pages_break_nothing(
    dsn: str, bus: CommandBus, claimer: Claimer
) -> None:
    ids = bus.send_many([SendRequest("payments", "Debit", n) for n in range(30)])
    seen = []
    for page in pages(bus, 4):
        seen += [each.command_id for each in page]
        for claim in claimer.settle_and_claim([], want(2)):
            claimer.settle(ended(claim, completed(1)))
    assert {*ids} <= {*seen}


def test_a_search_says_where_it_has_stopped(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    ids = bus.send_many([SendRequest("payments", "Debit", n) for n in range(2000)])
    rare = bus.send_many([SendRequest("payments", "Credit", delay=60)])
    times = [each.created_at for each in bus.query("payments", limit=3000)]
    page = bus.search(type="Credit", max_rows=400)
    assert [each.command_id for each in page.commands] == rare
    assert page.stopped and page.next and page.stopped.rows >= 400
    assert page.stopped.reached in times and page.stopped.seconds < 60
    finish(connection, "payments")
    assert bus.search(type="Credit", max_rows=400, after=page.next).commands == []
    oldest = found(bus, limit=500, type="Debit")
    assert oldest == ids[::-1]
    assert bus.search(limit=1, max_seconds=1e-9, type="Credit").stopped
    full = bus.search(limit=10, max_rows=1)
    assert full.stopped is None and len(full.commands) == 10


def test_ids_of_callers_are_found_page_by_page(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    requests = [
        SendRequest(domain, "Debit", n, command_id=uuid4(), delay=60 * (n % 2))
        for n in range(20)
        for domain in ("payments", "mail")
    ]
    ids = {*bus.send_many(requests)}
    for _ in range(2):
        assert {*found(bus, 7)} == ids and len(found(bus, 7)) == len(ids)
        assert len(found(bus, 7, domain="mail")) == 20
        finish(connection, "mail")


def test_a_domain_that_is_rare_in_the_history_is_found_in_one_page(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    rare = bus.send_many([SendRequest("rare", "Debit", n) for n in range(150)])
    finish(connection, "rare")
    connection.execute(
        "INSERT INTO cmdbus.finished (token, created_at, command_id, correlation_id, priority,"
        " attempts, losses, domain, type, status, data) SELECT 1, clock_timestamp(),"
        " gen_random_uuid(), gen_random_uuid(), 5, 1, 0, 'busy', 'Debit', 'COMPLETED', '{}'"
        " FROM generate_series(1, 3000)"
    )
    page = bus.search("rare", max_rows=500)
    assert len({each.command_id for each in page.commands} & {*rare}) == 100
    assert {*found(bus, 100, domain="rare", max_rows=500)} == {*rare}
    assert len(found(bus, 1000, domain="busy")) == 3000


def test_with_many_domains_each_command_is_found_once(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    for table in ("ready", "scheduled"):
        connection.execute(
            f"INSERT INTO cmdbus.{table} (domain, priority, command_id, correlation_id, type, data,"
            f" due_at) SELECT 'd' || n, 5, gen_random_uuid(), gen_random_uuid(), 'Debit', '1',"
            f" now() + n * interval '1 day' FROM generate_series(1, 600) n".encode()
        )
    ids = found(bus, 500)
    assert len(ids) == len({*ids}) == 1200
    assert len(bus.known_types()) == 600 and bus.known_types()["d7"] == ["Debit"]


@pytest.mark.parametrize(
    "after",
    [
        "",
        "x",
        "W10",
        "é",
        "A" * 5000,
        1,
        b"x",
        "W1siYSJdLHt9XQ",
    ],
)
def test_a_cursor_that_is_none_is_refused_in_a_sentence(after: Any) -> None:
    with (
        CommandBus(NOWHERE) as bus,
        pytest.raises(ValueError, match="after must be the `next` of a search with the same"),
    ):
        bus.search(after=after)


def test_a_cursor_belongs_to_its_conditions(bus: CommandBus, commands: dict[str, UUID]) -> None:
    cursor = bus.search("payments", limit=1).next
    assert bus.search("payments", limit=2, after=cursor).commands
    with pytest.raises(ValueError, match="the same conditions"):
        bus.search("old", limit=1, after=cursor)
    with pytest.raises(ValueError, match="the same conditions"):
        bus.search("payments", status="PENDING", limit=1, after=cursor)


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [
        ({"status": "DONE"}, "status must be one of PENDING, "),
        ({"domain": "a b"}, "domain must be a letter"),
        ({"limit": 0}, "limit must be a whole number from 1 to 1000"),
        ({"limit": 1001}, "limit must be a whole number from 1 to 1000"),
        ({"batch_id": "x"}, "batch_id must be a UUID"),
        ({"text": " "}, "text must not be blank"),
        ({"text": "a\0"}, "text must be text"),
        ({"max_rows": 0}, "max_rows must be"),
        ({"max_seconds": 0}, "max_seconds must be"),
        ({"since": datetime(2026, 1, 1)}, "since must be an aware datetime"),
    ],
)
def test_wrong_conditions_are_refused(conditions: dict[str, Any], sentence: str) -> None:
    with CommandBus(NOWHERE) as bus, pytest.raises(ValueError, match=sentence):
        bus.search(**conditions)


def test_times_beyond_pythons_break_no_page(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    id_ = bus.send("payments", "Debit", delay=60)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = '9999-12-31 23:59:59+00'")
    [command] = bus.search().commands
    assert command.command_id == id_ and command.due_at.year == 9998
    assert datetime.now(UTC) - command.created_at < timedelta(minutes=1)
