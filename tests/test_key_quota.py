"""How many commands of one key may wait: who floods a domain is refused, and nobody else."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from cli import done, here
from handlers import connect, handling, running
from queries import claim_by_hand, limit_by_hand, rows, scalar
from roles import role
from senders import counts

from cmdbus import CommandBus, QueueFullError, SendRequest

pytestmark = pytest.mark.new_database


def request(key: str | None, **more: Any) -> SendRequest:
    return SendRequest("payments", "Debit", key=key, **more)


def test_a_noisy_key_is_refused_and_no_other(dsn: str, bus: CommandBus) -> None:
    bus.configure("payments", max_waiting_per_key=3)
    for _ in range(3):
        bus.send("payments", "Debit", key="noisy")
    before = counts(dsn)
    with pytest.raises(QueueFullError) as full:
        bus.send("payments", "Debit", key="noisy", command_id=uuid4())
    refused = full.value
    assert (refused.domain, refused.key) == ("payments", "noisy")
    assert (refused.depth, refused.max_depth, refused.retry_after) == (3, 3, 1.0)
    assert str(refused) == (
        "key 'noisy' of domain 'payments' is full: its depth is 3, its max_waiting_per_key 3; "
        "send again in 1 s"
    )
    assert counts(dsn) == before
    bus.send("payments", "Debit", key="quiet")
    bus.send("payments", "Debit")
    bus.send("orders", "Debit", key="noisy")
    bus.send_many([request("quiet"), request(None)] * 2)


def test_what_waits_anywhere_counts_and_what_runs_does_not(dsn: str, bus: CommandBus) -> None:
    bus.configure("payments", max_waiting_per_key=3)
    ready, limited = bus.send_many([request("a")] * 2)
    limit_by_hand(dsn, limited)
    bus.send("payments", "Debit", key="a", delay=60)
    with pytest.raises(QueueFullError):
        bus.send("payments", "Debit", key="a")
    claim_by_hand(dsn, ready)
    bus.send("payments", "Debit", key="a")
    with pytest.raises(QueueFullError):
        bus.send("payments", "Debit", key="a", delay=60)
    assert bus.cancel_all("payments", key="a") == 3
    bus.send("payments", "Debit", key="a")


def test_what_has_expired_does_not_count(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.configure("payments", max_waiting_per_key=1)
    for delay in (0.001, None, None):
        late = bus.send("payments", "Debit", key="a", delay=delay, expires=0.002)
        scalar(connection, "SELECT pg_sleep(0.01)")
    limit_by_hand(dsn, late)
    bus.send("payments", "Debit", key="a")
    with pytest.raises(QueueFullError):
        bus.send("payments", "Debit", key="a")


def test_a_bulk_counts_its_own_of_each_key(dsn: str, bus: CommandBus) -> None:
    bus.configure("payments", max_waiting_per_key=3)
    bus.send("payments", "Debit", key="a")
    before = counts(dsn)
    with pytest.raises(QueueFullError) as full:
        bus.send_many([request("b")] * 3 + [request("a")] * 3)
    assert (full.value.key, full.value.depth) == ("a", 1)
    with pytest.raises(QueueFullError) as full:
        bus.send_many([request("b")] * 4)
    assert str(full.value) == (
        "key 'b' of domain 'payments' never takes 4 commands at once: its max_waiting_per_key is "
        "3; send fewer at once"
    )
    with pytest.raises(QueueFullError):
        bus.create_batch("payments", [request("b")] * 4)
    with psycopg.connect(dsn) as mine:
        with pytest.raises(QueueFullError):
            bus.send_many([request("b")] * 4, connection=mine)
        bus.send_many([request("b")] * 3, connection=mine)
        with pytest.raises(QueueFullError):
            bus.send("payments", "Debit", key="b", connection=mine)
        mine.rollback()
    assert counts(dsn) == before
    bus.send_many([request(f"k{n % 1000}") for n in range(3000)])


def test_a_batch_of_many_parts_counts_them_together(bus: CommandBus) -> None:
    bus.configure("payments", max_waiting_per_key=1500)
    with pytest.raises(QueueFullError) as full:
        bus.create_batch("payments", [request("a")] * 1501)
    assert full.value.key == "a"
    bus.create_batch("payments", [request("a")] * 1500)


def test_sql_is_refused_likewise(dsn: str, bus: CommandBus) -> None:
    bus.configure("payments", max_waiting_per_key=1)
    send = "SELECT cmdbus.send('payments', 'Debit', p_key => 'a\"b')"
    sentence = 'key "a\\\\"b" of domain payments is full: its depth is 1, its max_waiting_per_key 1'
    with connect(dsn) as connection:
        connection.execute(send.encode())
        for more in ("", ", p_unique => 'u'"):
            refused = pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match=sentence)
            with refused:
                connection.execute(f"{send[:-1]}{more})".encode())
        connection.execute("SELECT cmdbus.send('payments', 'Debit', p_key => 'c')")


def test_a_producers_role_is_refused_likewise(dsn: str, bus: CommandBus) -> None:
    bus.configure("payments", max_waiting_per_key=1)
    with role(dsn, "producer") as producer:
        bus.send("payments", "Debit", key="a", connection=producer)
        with pytest.raises(QueueFullError):
            bus.send_many([request("a")], connection=producer)


def test_the_limits_of_the_domain_come_first(bus: CommandBus) -> None:
    bus.configure("payments", max_waiting_per_key=1, max_depth=1)
    bus.send("payments", "Debit", key="a")
    for send in (
        lambda: bus.send("payments", "Debit", key="a"),
        lambda: bus.send_many([request("a")]),
    ):
        with pytest.raises(QueueFullError) as full:
            send()
        assert full.value.key is None and "domain 'payments' is full" in str(full.value)


def test_a_key_that_was_full_is_open_once_its_commands_have_run(dsn: str, bus: CommandBus) -> None:
    bus.configure("payments", max_waiting_per_key=2)
    ids = bus.send_many([request("a")] * 2)
    with running(dsn, handling()):
        for id_ in ids:
            bus.wait("payments", id_, 10)
        bus.call("payments", "Debit", key="a")


def test_it_is_configured_and_shown(dsn: str, bus: CommandBus) -> None:
    configure = ("domain", "configure", "payments", "--max-waiting-per-key")
    done(here(*configure, "7", CMDBUS_DSN=dsn))
    assert bus.domains("payments")[0].max_waiting_per_key == 7
    shown = done(here("domain", "show", "payments", CMDBUS_DSN=dsn))
    assert "  per key     7: sends with the key are refused then\n" in shown
    listed = done(here("domain", "list", CMDBUS_DSN=dsn)).splitlines()
    assert "PER KEY" in listed[0] and listed[1].split()[-2] == "7"
    bus.configure("payments", warn_depth=5)
    assert bus.domains("payments")[0].max_waiting_per_key == 7
    bus.configure("payments", max_waiting_per_key=None, operator="ann")
    assert bus.domains("payments")[0].max_waiting_per_key is None
    assert bus.domain_audit("payments")[-1].details == {
        "before": {"max_waiting_per_key": 7},
        "after": {"max_waiting_per_key": None},
    }
    done(here(*configure, "none", CMDBUS_DSN=dsn))


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "7", 2**31])
def test_what_is_no_quota_gets_one_sentence(bus: CommandBus, number: Any) -> None:
    with pytest.raises(ValueError, match="max_waiting_per_key must be a whole number from 1"):
        bus.configure("payments", max_waiting_per_key=number)


def test_what_is_no_quota_in_sql_gets_one_sentence(dsn: str) -> None:
    sentence = "p_max_waiting_per_key must be at least 1"
    configure = (
        "SELECT cmdbus.configure_domain('payments', '{max_waiting_per_key}', NULL, NULL,"
        " p_max_waiting_per_key => 0)"
    )
    invalid = pytest.raises(psycopg.errors.InvalidParameterValue, match=sentence)
    with connect(dsn) as connection, invalid:
        connection.execute(configure.encode())


def test_only_the_commands_of_the_key_are_read(dsn: str, bus: CommandBus) -> None:
    """Not the queue of the domain, whatever the statistics say."""
    bus.configure("payments", max_waiting_per_key=10)
    bus.send_many([request(None)] * 20_000 + [request(f"k{n}") for n in range(5_000)])
    blocks = """
        SELECT pg_stat_get_xact_blocks_fetched('cmdbus.ready'::regclass)
            + (SELECT sum(pg_stat_get_xact_blocks_fetched(indexrelid)) FROM pg_index
               WHERE indrelid = 'cmdbus.ready'::regclass)"""
    with psycopg.connect(dsn) as connection:
        [(before,)] = connection.execute(blocks.encode()).fetchall()
        connection.execute("SELECT cmdbus.find_full_key('{payments}', '{k7}', '{1}')")
        [(after,)] = connection.execute(blocks.encode()).fetchall()
    assert after - before < 20
    assert rows(dsn, "SELECT count(*) FROM cmdbus.ready") == [(25_000,)]
