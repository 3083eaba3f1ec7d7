"""A fleet that notifications do not wake: without them, behind a pooler, or while its listening
session ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from eventually import eventually
from fleet import Fleet, await_rest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from cmdbus import CommandBus

pytestmark = pytest.mark.fleet

_END_LISTENERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND starts_with(application_name, 'cmdbus:')
        AND query ~ '(^LISTEN |listening session)'"""


@pytest.mark.fleet(procs=1, threads=2, poll_interval=1)
def test_without_notifications_the_poll_finds_everything(
    fleet: Fleet, connection: psycopg.Connection
) -> None:
    """Those of senders that switch them off; and while the listening session is ended again and
    again, as the board shows."""
    await_rest(fleet)
    with connection.transaction():
        connection.execute("SET LOCAL cmdbus.notify = off")
        connection.execute("SELECT cmdbus.send('shop', 'Noop')")
    fleet.await_completions(1)
    with repeatedly(lambda: fleet.query(_END_LISTENERS)):
        for _ in range(3):
            eventually(lambda: not fleet.look().listening)
            fleet.await_completed(fleet.send("Noop"))
    eventually(lambda: fleet.look().listening)


@pytest.mark.fleet(procs=1, threads=2, wake="poll", poll_interval=0.2, watchdog_timeout=20)
def test_a_fleet_that_polls_drains_and_its_main_threads_beat_meanwhile(fleet: Fleet) -> None:
    """As behind a pooler without LISTEN. No heartbeat gets half as old as it may be."""
    assert not fleet.look().listening
    watchdog = float(str(fleet.options["watchdog-timeout"]))
    beats: dict[int, set[int]] = {number: set() for number in fleet.workers()}
    waiting = "SELECT count(*) FROM cmdbus.ready WHERE lease_until IS NULL"
    while not all(len(times) > 2 for times in beats.values()):
        if fleet.query(waiting)[0][0] < 1_000:
            fleet.send("Noop", 2_000)
        for number, seat in fleet.workers().items():
            beats[number].add(seat.due or 0)
            age = watchdog - ((seat.due or 0) / 1e9 - time.monotonic())
            assert age < watchdog / 2, f"worker {number} has beaten {age:.1f} s ago"
    eventually(lambda: fleet.query(waiting) == [(0,)], 20)
    assert fleet.query("SELECT last_value FROM cmdbus.armed") == [(0,)]
    # A process that stalls may release what it has prefetched, which is claimed once more then.
    assert fleet.query("SELECT max(attempts) FROM cmdbus.finished") == [(1,)]
    assert fleet.query("SELECT kind FROM cmdbus.event") == [], "none was lost"


@contextmanager
def repeatedly(act: Callable[[], object]) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.02):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


@pytest.mark.fleet(started=False, procs=1, threads=2)
def test_due_commands_run_on_time_though_notifications_are_off_for_the_database(
    fleet: Fleet, dsn: str, connection: psycopg.Connection
) -> None:
    database = Identifier(str(conninfo_to_dict(dsn)["dbname"]))
    connection.execute(SQL("ALTER DATABASE {} SET cmdbus.notify = off").format(database))
    fleet.start()
    fleet.wait_until_ready()
    await_rest(fleet)
    with CommandBus(make_conninfo(dsn, options="-c cmdbus.notify=on")) as loud:
        ids = [loud.send("shop", "Noop", delay=delay) for delay in (0.3, 0.6)]
    fleet.await_completed(ids, within=10)
