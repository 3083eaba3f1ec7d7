"""The bus and its connections: a call is repeated once when one dies, and a forked child opens its
own."""

import threading
import time
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from forks import result_of_child
from handlers import connect
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool

from cmdbus import CommandBus, DatabaseUnavailableError, DuplicateCommandError, SendRequest

SECRET = "s3cr3t"


def end_sessions_of_the_bus(dsn: str) -> int:
    with connect(dsn) as connection:
        return connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'cmdbus:bus'"
        ).rowcount


def test_every_call_survives_the_death_of_its_connection(dsn: str) -> None:
    with CommandBus(dsn, purge_allowed=True) as bus:
        own, made = uuid4(), bus.send("payments", "Debit")
        calls: list[Callable[[], object]] = [
            lambda: bus.send("payments", "Debit"),
            lambda: bus.send("payments", "Debit", command_id=own),
            lambda: bus.send_many([SendRequest("payments", "Debit")] * 3),
            lambda: bus.send_many([SendRequest("payments", "Debit", command_id=uuid4())] * 1),
            lambda: bus.get("payments", made),
            lambda: bus.query("payments"),
            lambda: bus.audit("payments", made),
            lambda: bus.snapshot("payments"),
            lambda: bus.configure("payments", max_depth=100),
            lambda: bus.pause("payments"),
            lambda: bus.resume("payments"),
            lambda: bus.cancel("payments", made),
            lambda: bus.purge("payments"),
        ]
        for call in calls[:-1]:
            assert end_sessions_of_the_bus(dsn) >= 1
            call()
        assert bus.snapshot("payments")["depth"] == 6
        end_sessions_of_the_bus(dsn)
        assert calls[-1]() == 6


def test_in_a_callers_transaction_nothing_is_repeated(dsn: str) -> None:
    with CommandBus(dsn) as bus:
        connection = psycopg.connect(make_conninfo(dsn, application_name="cmdbus:bus"))
        bus.send("payments", "Debit", connection=connection)
        end_sessions_of_the_bus(dsn)
        with pytest.raises(psycopg.OperationalError):
            bus.send("payments", "Debit", connection=connection)
        connection.close()
        assert bus.snapshot("payments")["depth"] == 0


@pytest.mark.process
def test_a_forked_child_has_connections_of_its_own(dsn: str) -> None:
    def send() -> str:
        bus.send("payments", "Debit")
        bus.close()
        return "sent"

    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
        own = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cmdbus:bus'"
            " AND datname = current_database()"
        )
        assert result_of_child(send) == "sent"
        with connect(dsn) as watcher:
            eventually(lambda: watcher.execute(own).fetchone() == (1,))
        bus.send("payments", "Debit")
        assert end_sessions_of_the_bus(dsn) == 1, "the parent's session outlived the child"


def test_a_bus_waits_no_longer_than_it_is_told_for_a_server_that_takes_writes(dsn: str) -> None:
    standby = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    with CommandBus(standby, timeout=0.2) as bus:
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailableError, match="read-only"):
            bus.send("payments", "Debit")
        assert time.monotonic() - began < 10
    with pytest.raises(ValueError, match="timeout"):
        CommandBus(dsn, timeout=0)


def test_a_bus_keeps_few_connections(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as watcher:
        barrier = threading.Barrier(16)

        def send() -> None:
            barrier.wait(10)
            for _ in range(20):
                bus.send("payments", "Debit")

        threads = [threading.Thread(target=send) for _ in range(16)]
        for thread in threads:
            thread.start()
        own = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cmdbus:bus'"
            " AND datname = current_database()"
        )
        for thread in threads:
            row = watcher.execute(own).fetchone()
            assert row is not None and row[0] <= 4
            thread.join(20)
        assert bus.snapshot("payments")["depth"] == 320


def test_a_pool_of_the_callers_is_used_and_left_open(dsn: str) -> None:
    with ConnectionPool(dsn, min_size=1, max_size=1, open=True) as pool:
        with CommandBus(pool=pool) as bus:
            bus.send("payments", "Debit")
            bus.send_many([SendRequest("payments", "Debit")])
            assert bus.snapshot("payments")["depth"] == 2
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("what", ["command", "batch", "call"])
def test_a_wait_waits_for_a_connection_no_longer_than_for_its_command(dsn: str, what: str) -> None:
    with (
        ConnectionPool(dsn, min_size=1, max_size=1, open=True) as pool,
        CommandBus(pool=pool) as bus,
    ):
        id_ = bus.send("payments", "Debit")
        batch_id = bus.create_batch("payments", [SendRequest("payments", "Debit")])
        with (
            pool.connection(),
            pytest.raises(DatabaseUnavailableError, match="no connection to give for 2 s"),
        ):
            if what == "command":
                bus.wait("payments", id_, timeout=0.1)
            elif what == "batch":
                bus.wait_batch(batch_id, timeout=0.1)
            else:
                bus.call("payments", "Debit", timeout=0.1)


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_pool_may_commit_as_it_likes(dsn: str, autocommit: bool) -> None:
    with (
        ConnectionPool(dsn, kwargs={"autocommit": autocommit}, min_size=1, open=True) as pool,
        CommandBus(pool=pool) as bus,
        connect(dsn) as watcher,
    ):
        ids = [bus.send("payments", "Debit"), *bus.send_many([SendRequest("payments", "Debit")])]
        with pytest.raises(DuplicateCommandError):
            bus.send("payments", "Debit", command_id=ids[0])
        assert watcher.execute("SELECT count(*) FROM cmdbus.ready").fetchone() == (2,)


def test_a_bus_needs_either_a_dsn_or_a_pool() -> None:
    with pytest.raises(ValueError, match="exactly one of them"):
        CommandBus()


def test_a_server_that_is_not_there_is_said_at_once_without_the_password() -> None:
    bus = CommandBus(f"postgresql://ann:{SECRET}@127.0.0.1:1/shop")
    sentence = r"cannot connect to database 'shop' at 127\.0\.0\.1 port 1 as ann: .*refused"
    with pytest.raises(DatabaseUnavailableError, match=sentence) as refused:
        bus.send("payments", "Debit")
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_closed_bus_says_so(dsn: str) -> None:
    bus = CommandBus(dsn)
    bus.send("payments", "Debit")
    bus.close()
    with pytest.raises(psycopg.OperationalError, match="this CommandBus is closed"):
        bus.send("payments", "Debit")
