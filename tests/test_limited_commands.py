"""Commands that wait at a limit: they are found, counted, canceled and moved like all that wait."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import psycopg
import pytest
from batches import batch_of
from cli import done, here
from handlers import await_drained, connect, found, handling, kinds, running
from queries import claim_by_hand, limit_by_hand, rows, scalar
from roles import role

from cmdbus import CommandBus, InvalidOperationError, QueueFullError, SendRequest, Status
from cmdbus.producer import steering

pytestmark = pytest.mark.new_database

WHERE = """
    SELECT 'ready', lane_position IS NOT NULL FROM cmdbus.ready WHERE command_id = %(id)s
    UNION ALL SELECT 'scheduled', lane_position IS NOT NULL FROM cmdbus.scheduled
        WHERE command_id = %(id)s
    UNION ALL SELECT 'limited', true FROM cmdbus.limited WHERE command_id = %(id)s"""


def limited(dsn: str, bus: CommandBus, count: int = 1, **request: object) -> list[UUID]:
    """Commands of payments that wait at a limit."""
    requests = [SendRequest("payments", "Debit", **request)] * count  # type: ignore[arg-type]
    ids = bus.send_many(requests)
    limit_by_hand(dsn, *ids)
    return ids


def place(dsn: str, command_id: UUID) -> tuple[str, bool]:
    """Its table, and whether it has a position in a lane."""
    with psycopg.connect(dsn) as connection:
        [row] = connection.execute(WHERE, {"id": command_id}).fetchall()
    return row


def test_it_is_pending_and_found(dsn: str, bus: CommandBus) -> None:
    [id_] = limited(dsn, bus, key="a")
    record = found(bus, id_)
    assert (record.status, record.key, record.started_at) == (Status.PENDING, "a", None)
    assert [each.command_id for each in bus.query("payments", "PENDING", key="a")] == [id_]
    assert kinds(bus, id_) == ["SENT"]


def test_it_counts_by_itself_and_in_the_depth(dsn: str, bus: CommandBus) -> None:
    limited(dsn, bus, 2)
    bus.send("payments", "Debit")
    bus.send("payments", "Debit", delay=60)
    snapshot = bus.snapshot("payments")
    assert (snapshot["ready"], snapshot["scheduled"], snapshot["limited"]) == (1, 1, 2)
    assert snapshot["depth"] == 4
    [domain] = bus.domains("payments")
    assert (domain.types["Debit"].limited, domain.all.depth) == (2, 4)
    status = done(here("status", CMDBUS_DSN=dsn))
    head, row, *_ = [line.split() for line in status.splitlines()]
    assert head[:3] == ["READY", "LATER", "LIMITED"] and row[:4] == ["payments", "1", "1", "2"]
    shown = json.loads(done(here("status", "--json", CMDBUS_DSN=dsn)))["domains"]
    assert shown[0]["all"]["limited"] == 2
    with role(dsn, "monitor") as monitor:
        assert bus.domains(connection=monitor)[0].all.limited == 2


def test_the_depth_that_sends_are_refused_at_includes_it(dsn: str, bus: CommandBus) -> None:
    limited(dsn, bus, 2)
    bus.configure("payments", max_depth=3)
    bus.send("payments", "Debit")
    with pytest.raises(QueueFullError) as full:
        bus.send("payments", "Debit")
    assert full.value.depth == 3
    with pytest.raises(QueueFullError):
        bus.send_many([SendRequest("payments", "Debit")])


def test_one_without_a_handler_is_reported(dsn: str, bus: CommandBus) -> None:
    limited(dsn, bus)
    assert bus.domains("payments")[0].unhandled == []
    long_ago = datetime.now(UTC) - timedelta(minutes=2)
    rows(dsn, "UPDATE cmdbus.limited SET created_at = %s RETURNING 1", long_ago)
    assert bus.domains("payments")[0].unhandled == ["Debit"]
    assert bus.snapshot("payments")["oldest_age"] >= 120
    assert "payments/Debit waits for 2m" in done(here("status", CMDBUS_DSN=dsn))


@pytest.mark.parametrize("running", [False, True])
def test_it_is_canceled_with_its_event_its_reply_and_its_batch(
    dsn: str, bus: CommandBus, running: bool
) -> None:
    request = SendRequest("payments", "Debit", reply_to="orders")
    batch_id = bus.create_batch("payments", [request])
    [id_] = [record.command_id for record in bus.batch_commands(batch_id)]
    limit_by_hand(dsn, id_)
    assert [record.status for record in bus.batch_commands(batch_id, "PENDING")] == ["PENDING"]
    bus.cancel("payments", id_, reason="twice", running=running)
    record = found(bus, id_)
    assert (record.status, record.error_message) == (Status.CANCELED, "twice")
    assert kinds(bus, id_) == ["SENT", "CANCELED"]
    assert [reply.data["outcome"] for reply in bus.query("orders")] == ["CANCELED"]
    assert (batch_of(bus, batch_id).canceled, batch_of(bus, batch_id).remaining) == (1, 0)


def test_a_batch_cancels_what_waits_at_a_limit(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "CHUNK", 2)
    batch_id = bus.create_batch("payments", [SendRequest("payments", "Debit")] * 8)
    ids = [record.command_id for record in bus.batch_commands(batch_id)]
    limit_by_hand(dsn, *ids[:5])
    assert {record.command_id for record in bus.batch_commands(batch_id)} == {*ids}
    bus.cancel_batch(batch_id)
    record = batch_of(bus, batch_id)
    assert (record.status, record.canceled) == ("CANCELED", 8)


def test_all_are_canceled_in_chunks(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "CHUNK", 2)
    keys = ["a", "b", None]
    requests = [
        SendRequest("payments", type_, key=key, priority=priority)
        for key in keys
        for type_ in ("Debit", "Other")
        for priority in (5, 0, 5)
    ]
    ids = bus.send_many(requests)
    limit_by_hand(dsn, *ids)
    later = bus.send("payments", "Debit", key="a")
    stays = limited(dsn, bus)
    others = bus.send_many([SendRequest("orders", "Debit", key="a")])
    limit_by_hand(dsn, *others)
    until = found(bus, stays[0]).created_at
    assert bus.count_waiting("payments", until=until) == 19
    assert bus.count_waiting("payments", "Other", until=until) == 9
    assert bus.cancel_all("payments", "Other", until=until) == 9
    assert bus.cancel_all("payments", until=until, operator="ann", reason="wrong") == 10
    assert {found(bus, id_).status for id_ in [*ids, later]} == {Status.CANCELED}
    assert [record.status for record in bus.query("orders")] == [Status.PENDING]
    assert kinds(bus, ids[0]) == ["SENT", "CANCELED"]
    assert bus.cancel_all("payments") == 1


def test_all_of_a_key_are_canceled_wherever_they_wait(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "CHUNK", 2)
    sent = {}
    for key in ("a", "b", None):
        now = bus.send_many([SendRequest("payments", "Debit", key=key)] * 10)
        limit_by_hand(dsn, *now[:5])
        delayed = SendRequest("payments", "Debit", key=key, delay=60)
        sent[key] = [*now, *bus.send_many([delayed] * 5)]
    claim_by_hand(dsn, sent["a"][5])
    other = bus.send("payments", "Other", key="a", reply_to="orders")
    bus.send("orders", "Debit", key="a")
    assert bus.count_waiting("payments", key="a") == 15
    assert bus.cancel_all("payments", "Other", key="a", reason="wrong") == 1
    assert kinds(bus, other) == ["SENT", "CANCELED"]
    assert [reply.data["result"]["message"] for reply in bus.query("orders", type="Reply")] == [
        "wrong"
    ]
    command = ("cancel", "payments", "--all", "--key", "a")
    assert "14 commands would be canceled" in here(*command, CMDBUS_DSN=dsn, stdin="y\n").stderr
    assert done(here(*command, "--yes", CMDBUS_DSN=dsn)) == "canceled 14 commands\n"
    assert found(bus, sent["a"][5]).status == Status.IN_PROGRESS
    assert {found(bus, id_).status for key in ("b", None) for id_ in sent[key]} == {"PENDING"}
    since = found(bus, sent["b"][10]).created_at
    assert bus.cancel_all("payments", key="b", since=since) == 5
    assert bus.cancel_all("payments", key="b", until=since) == 10
    assert bus.query("orders", "PENDING", "Debit") != []


def test_a_chunk_is_bounded_in_bytes(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "CHUNK_BYTES", 10)
    limited(dsn, bus, 5)
    limited(dsn, bus, 5, key="a")
    bus.send_many([SendRequest("payments", "Debit", key="a")] * 5)
    assert bus.cancel_all("payments", key="a") == 10
    assert bus.cancel_all("payments") == 5


def test_a_locked_command_is_left(dsn: str, bus: CommandBus) -> None:
    ids = limited(dsn, bus, 3, key="a")
    lock = "SELECT FROM cmdbus.limited WHERE command_id = %s FOR UPDATE"
    with psycopg.connect(dsn) as holder:
        holder.execute(lock, (ids[1],))
        assert bus.cancel_all("payments", key="a") == 2
        assert bus.cancel_all("payments") == 0
    assert bus.cancel_all("payments") == 1


def test_a_delay_takes_it_out_of_its_lane(dsn: str, bus: CommandBus) -> None:
    [id_] = limited(dsn, bus, key="a")
    bus.reschedule("payments", id_, delay=60)
    assert place(dsn, id_) == ("scheduled", False)
    assert kinds(bus, id_) == ["SENT", "RESCHEDULED"]
    bus.reschedule("payments", id_, delay=0)
    assert place(dsn, id_) == ("ready", False)


def test_one_that_has_begun_keeps_its_position_in_its_lane(dsn: str, bus: CommandBus) -> None:
    [id_] = limited(dsn, bus)
    rows(dsn, "UPDATE cmdbus.limited SET claimed_at = now() RETURNING 1")
    bus.reschedule("payments", id_, delay=60)
    assert place(dsn, id_) == ("scheduled", True)


def test_a_delay_gives_up_a_place_that_was_not_used(dsn: str, bus: CommandBus) -> None:
    """A claim that was released before its handler began."""
    id_ = bus.send("payments", "Debit", key="a")
    rows(dsn, "UPDATE cmdbus.ready SET lane_position = 7 RETURNING 1")
    bus.reschedule("payments", id_, delay=60)
    assert place(dsn, id_) == ("scheduled", False)
    assert rows(dsn, "SELECT domain, type, key FROM cmdbus.turn") == [("payments", "Debit", "a")]


@pytest.mark.parametrize("change", [{"priority": "high"}, {"delay": 0}], ids=["priority", "time"])
def test_another_priority_leaves_it_at_its_position(
    dsn: str, bus: CommandBus, change: dict[str, object]
) -> None:
    [id_] = limited(dsn, bus, key="a")
    position = "SELECT lane_position FROM cmdbus.limited"
    before = rows(dsn, position)
    bus.reschedule("payments", id_, **change)  # type: ignore[arg-type]
    assert rows(dsn, position) == before
    assert (found(bus, id_).priority, found(bus, id_).key) == (
        0 if "priority" in change else 5,
        "a",
    )


def test_a_purge_removes_it(dsn: str) -> None:
    with CommandBus(dsn, purge_allowed=True) as bus:
        limited(dsn, bus, 3)
        bus.send("payments", "Debit")
        assert bus.purge("payments") == 4
        assert bus.query("payments") == []


def test_a_row_that_cannot_be_moved_on_is_set_aside(dsn: str, bus: CommandBus) -> None:
    [id_] = limited(dsn, bus, key="a")
    with connect(dsn) as connection:
        query = """
            SELECT cmdbus.set_aside('limited', domain, priority, lane_position, token, command_id,
                                    claimer, 'NOT_CLAIMABLE', 'it is rejected')
            FROM cmdbus.limited"""
        assert scalar(connection, query)
        assert connection.execute(query.encode()).fetchall() == []
    [trouble] = bus.troubleshooting.list()
    assert (trouble.command_id, trouble.key, trouble.reason) == (id_, "a", "NOT_CLAIMABLE")


def test_a_sequence_behind_its_positions_is_found(dsn: str, bus: CommandBus) -> None:
    limited(dsn, bus, 2)
    from cmdbus.database.statements import statement

    with connect(dsn) as connection:
        behind = statement("read_sequences", "cmdbus")
        assert connection.execute(behind).fetchall() == []
        connection.execute("SELECT setval('cmdbus.ready_id_seq', 1)")
        assert connection.execute(behind).fetchall() == [
            ("limited", "lane_position", "ready_id_seq")
        ]


READ = """
    SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) FROM pg_class
    WHERE relname ~ '^(ready|scheduled|limited)' AND relkind IN ('r', 'i')"""


def test_a_cancel_of_a_key_reads_no_other_commands(dsn: str, bus: CommandBus) -> None:
    """Whatever the statistics say."""
    keys = [*("a" * 10), *[None] * 10_000]
    for delay in (None, 60):
        bus.send_many([SendRequest("payments", "Debit", key=key, delay=delay) for key in keys])
    others = bus.send_many([SendRequest("payments", "Debit", key=key) for key in keys])
    limit_by_hand(dsn, *others)
    with connect(dsn) as connection, connection.transaction():
        before = scalar(connection, READ)
        assert bus.cancel_all("payments", key="a", connection=connection) == 30
        # Each of the 30 is read once to be chosen, and once by its id in each table.
        assert scalar(connection, READ) - before < 1000
        before = scalar(connection, READ)
        query = (
            "SELECT canceled FROM cmdbus.cancel_limited("
            "'payments', NULL, NULL, now(), '', '', 0::smallint, 0, 10, 1000000, NULL, NULL)"
        )
        assert scalar(connection, query) == 10
        assert scalar(connection, READ) - before < 300


def test_a_process_that_ends_its_batch_cancels_what_waits_at_a_limit(
    dsn: str, bus: CommandBus
) -> None:
    batch_id = bus.create_batch("payments", [SendRequest("payments", "Debit")] * 4)
    ids = [record.command_id for record in bus.batch_commands(batch_id)]
    limit_by_hand(dsn, *ids[:2])
    with connect(dsn) as connection:
        assert scalar(connection, "SELECT cmdbus.end_batch_now(%s, NULL, NULL)", batch_id)
    assert (batch_of(bus, batch_id).status, batch_of(bus, batch_id).canceled) == ("CANCELED", 4)


def test_each_command_ends_once_whatever_is_canceled_and_rescheduled(
    dsn: str, bus: CommandBus
) -> None:
    """While workers take commands out of their lanes and put others into them."""
    pause = partial(time.sleep, 0.002)
    registry = handling(lambda command, context: pause(), concurrency=1)
    requests = [
        SendRequest("payments", "Debit", n, key=f"k{n % 5}", delay=n % 3 * 0.1) for n in range(150)
    ]
    ids = bus.send_many(requests)
    canceled = Counter[str]()

    def cancel() -> None:
        for id_ in ids[::4]:
            with suppress(InvalidOperationError):
                bus.cancel("payments", id_)
                canceled["one"] += 1
            pause()

    def cancel_key() -> None:
        for _ in range(3):
            canceled["key"] += bus.cancel_all("payments", key="k0")

    def reschedule() -> None:
        for n, id_ in enumerate(ids[1::3]):
            change: dict[str, object] = {"delay": 0.05} if n % 2 else {"priority": n % 10}
            with suppress(InvalidOperationError):
                bus.reschedule("payments", id_, **change)  # type: ignore[arg-type]
            pause()

    with running(dsn, registry), running(dsn, registry):
        with ThreadPoolExecutor() as pool:
            for done_ in [pool.submit(call) for call in (cancel, cancel_key, reschedule)]:
                done_.result()
        await_drained(bus)
    ended = Counter(found(bus, id_).status for id_ in ids)
    assert ended == {"CANCELED": canceled.total(), "COMPLETED": len(ids) - canceled.total()}
    assert rows(dsn, "SELECT count(*) FROM cmdbus.command") == [(len(ids),)]
