"""A session that listens and does not read fills the server's queue of notifications."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from fleet import supervised
from own_servers import own_server
from queries import scalar

from cmdbus import CommandBus
from cmdbus.database.schema import install
from cmdbus.embedded.programs import find_programs

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(90)]

#: The first major version of PostgreSQL whose queue can be made small.
_SMALL_QUEUES = 17


@pytest.fixture(scope="module")
def small_dsn(memory: Path | None) -> Iterator[str]:
    """A database with the schema, on a server whose queue is full after 512 KiB."""
    if find_programs().major < _SMALL_QUEUES:
        pytest.skip(f"before PostgreSQL {_SMALL_QUEUES} the queue holds 8 GiB")
    with own_server(memory, settings={"max_notify_queue_pages": 64}) as server:
        install(server.dsn)
        yield server.dsn


@contextmanager
def unread(dsn: str, share: float) -> Iterator[None]:
    """Meanwhile at least this share of the queue, or all of it, waits for a session that idles."""
    with psycopg.connect(dsn) as sleeper, psycopg.connect(dsn, autocommit=True) as noisy:
        sleeper.execute("LISTEN noise")
        sleeper.commit()
        sleeper.execute("SELECT 1")
        try:
            while usage(noisy) < share:
                noisy.execute("SELECT pg_notify('noise', repeat('x', 7000))")
        except psycopg.errors.ProgramLimitExceeded:
            assert share == 1.0
        yield
        sleeper.rollback()


def usage(connection: psycopg.Connection) -> float:
    return float(scalar(connection, "SELECT pg_notification_queue_usage()"))


def test_a_full_queue_of_notifications_fails_no_sender(small_dsn: str, tmp_path: Path) -> None:
    """Senders, commands that become due, and replies. Workers poll meanwhile."""
    with supervised(small_dsn, tmp_path, poll_interval=2, procs=1) as fleet:
        due = fleet.send("Noop", 5, delay=2)
        answered = fleet.send("FailOnce", delay=2, reply_to="shop")
        eventually(lambda: fleet.look().armed)
        with unread(small_dsn, 1.0), psycopg.connect(small_dsn) as sender:
            ids = [*due, *fleet.send("Noop", 5)]
            sender.execute("SELECT cmdbus.send('shop', 'Noop', p_delay => '0.1 s')")
            sender.commit()
            with CommandBus(small_dsn) as bus:
                bus.pause("shop")
                bus.resume("shop")
            fleet.await_saying("more than half full")
            fleet.await_completed(ids)
            fleet.await_outcomes(answered, {("COMPLETED", 2): 1})
        fleet.await_saying("is read again: listening")
        eventually(lambda: fleet.look().armed)
        assert fleet.query("SELECT count(*) FROM cmdbus.troubleshooting") == [(0,)]
