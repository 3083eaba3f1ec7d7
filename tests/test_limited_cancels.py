"""Commands that wait at a limit are canceled: one by one, with their batch, and in chunks."""

import psycopg
import pytest
from batches import batch_of
from cli import done, here
from handlers import connect, found, kinds
from queries import claim_by_hand, limit_by_hand, scalar
from test_limited_commands import limited

from cmdbus import CommandBus, SendRequest, Status
from cmdbus.producer import steering

pytestmark = pytest.mark.new_database


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
