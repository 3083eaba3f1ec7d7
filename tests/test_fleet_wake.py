"""A fleet's wake-ups: one listener, one byte, one process; nothing is lost, and no
process claims in vain for long."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from statistics import median

import psutil
import psycopg
import pytest
from databases import Databases
from eventually import eventually, stays
from fleet import Fleet, await_rest, kill, supervised, write_app
from psycopg.conninfo import conninfo_to_dict
from queries import scalar

from cmdbus.board.records import Role
from cmdbus.database.session_names import session_name

pytestmark = pytest.mark.fleet

#: Whether there are at most one for each of 4 x 2 threads and four more; how many have an open
#: transaction, and how many listen.
_SESSIONS = """
    SELECT count(*) <= 4 * 2 + 4, count(*) FILTER (WHERE state = 'idle in transaction'),
        count(*) FILTER (WHERE query ~ '(^LISTEN |listening session)')
    FROM pg_stat_activity
    WHERE datname = current_database() AND starts_with(application_name, 'cmdbus:')"""
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
_WAITED = """
    SELECT max(extract(epoch FROM claimed_at - coalesce(due_at, created_at)))::float8,
        min(extract(epoch FROM claimed_at - coalesce(due_at, created_at)))::float8
    FROM cmdbus.finished WHERE domain = 'shop'"""

#: When a node's last lease has ended, the others look whether it has left something.
NO_LEASE_ENDS = {"visibility_timeout": 3000, "thread_timeout": 3500, "watchdog_timeout": 4000}


@pytest.fixture
def other(fleet: Fleet) -> Iterator[Fleet]:
    """A second node, with the same options."""
    options = {**fleet.options, "name": "b"}
    with supervised(fleet.dsn, fleet.place, alone=False, **options) as other:
        yield other


def looks(fleet: Fleet) -> tuple[int, int]:
    """Claims so far that found something, and that found nothing."""
    counts = fleet.board().counters().counts
    return counts["batches_processed"], counts["empty_receives"]


@pytest.mark.fleet(procs=4, threads=2, poll_interval=600, **NO_LEASE_ENDS)
def test_one_command_is_found_by_one_look_and_at_most_one_more_is_in_vain(fleet: Fleet) -> None:
    await_rest(fleet)
    eventually(lambda: fleet.query(_SESSIONS) == [(True, 0, 1)])
    # The last byte of the arming may still be on its way.
    fleet.await_completed(fleet.send("Noop"))
    assert_few_vain([looks_for_one(fleet) for _ in range(5)])


@pytest.mark.fleet(procs=1, threads=2, poll_interval=600, **NO_LEASE_ENDS)
def test_a_second_node_makes_one_more_vain_look(fleet: Fleet, other: Fleet) -> None:
    """Also for a command that is due later."""
    looks_for_one(fleet, other)
    for delay in (None, 0.3):
        seen = [looks_for_one(fleet, other, delay=delay) for _ in range(5)]
        assert_few_vain(seen)


def assert_few_vain(seen: list[list[tuple[int, int]]]) -> None:
    """One look finds each command; and most commands cost each node one vain look at most: once it
    is armed, a node looks again when a transaction has ended that was open then, which may be
    another process's that stalls, or the test's."""
    assert {sum(found for found, _ in of_fleets) for of_fleets in seen} == {1}, seen
    for of_fleet in zip(*seen, strict=True):
        assert median(vain for _, vain in of_fleet) <= 1, seen


def looks_for_one(*fleets: Fleet, delay: float | None = None) -> list[tuple[int, int]]:
    """The looks of each fleet until all are at rest again, of which one has run a command."""
    await_rest(*fleets)
    before = [looks(fleet) for fleet in fleets]
    fleets[0].await_completed(fleets[0].send("Noop", delay=delay))
    await_rest(*fleets)
    after = [looks(fleet) for fleet in fleets]
    return [
        (found - found_before, vain - vain_before)
        for (found, vain), (found_before, vain_before) in zip(after, before, strict=True)
    ]


@pytest.mark.fleet(procs=4, threads=2, poll_interval=600, **NO_LEASE_ENDS)
def test_a_burst_wakes_every_process_though_it_is_one_notification(
    fleet: Fleet, connection: psycopg.Connection
) -> None:
    await_rest(fleet)
    connection.execute("LISTEN cmdbus_ready")
    ids = fleet.send("Gate", 20, data="open")
    eventually(lambda: len(fleet.executing("Gate")) == 8)
    assert Counter(fleet.executing("Gate")) == dict.fromkeys(fleet.pids().values(), 2)
    fleet.open_gate()
    fleet.await_completed(ids)
    heard = [notification.payload for notification in connection.notifies(timeout=0)]
    # One more for each time that a busy machine releases commands that it has prefetched.
    assert {*heard} == {"shop"} and len(heard) < 4, heard
    assert fleet.query("SELECT max(token) FROM cmdbus.finished") == [(1,)], "one claim for each"
    await_rest(fleet)


@pytest.mark.fleet(procs=4, threads=2, poll_interval=600)
def test_an_idle_fleet_uses_neither_its_database_nor_its_cpus(
    fleet: Fleet, dsn: str, databases: Databases
) -> None:
    """By a hundredth of what 4 processes would ask that poll every 50 ms, with two statements."""
    await_rest(fleet)
    name = str(conninfo_to_dict(dsn)["dbname"])

    def transactions() -> int:
        return int(scalar(databases.admin, _TRANSACTIONS, name))

    # The sessions' own counts of the start arrive within seconds.
    seen = [(time.monotonic(), transactions(), cpu_seconds(fleet))]

    def idle_for_2_s() -> bool:
        now, count, used = time.monotonic(), transactions(), cpu_seconds(fleet)
        begun, before, used_before = seen[-1]
        if count - before > 0.01 * 4 * 20 * 2 * 2 or used - used_before > 0.08:
            seen.append((now, count, used))
        return now - begun >= 2

    eventually(idle_for_2_s, 30)


def cpu_seconds(fleet: Fleet) -> float:
    """Of the workers."""
    times = [psutil.Process(pid).cpu_times() for pid in fleet.pids().values()]
    return sum(each.user + each.system for each in times)


@pytest.mark.fleet(procs=1, threads=2, poll_interval=600)
def test_what_is_due_runs_on_time_and_never_before(fleet: Fleet, other: Fleet) -> None:
    """Also a second timer, an earlier one, and a retry; while another node runs."""
    await_rest(fleet, other)
    ids = [id for delay in (1.2, 0.6, 0.9, 0.3) for id in fleet.send("Noop", delay=delay)]
    fleet.await_completed(ids)
    latest, earliest = fleet.query(_WAITED)[0]
    assert earliest >= 0
    assert latest < 10, "it was found by its timer, not by a poll"
    [retried] = fleet.send("FailOnce", 1)
    fleet.await_outcomes([retried], {("COMPLETED", 2): 1})


@pytest.mark.fleet(procs=1, poll_interval=600)
def test_a_steward_that_dies_or_freezes_costs_nothing_but_time(fleet: Fleet) -> None:
    """Nothing that was sent meanwhile waits for the fallback poll."""
    workers = fleet.pids()
    for number in (signal.SIGKILL, signal.SIGSTOP):
        steward = fleet.steward()
        assert steward is not None
        ids = fleet.send("Debit", 200, 0.005)
        kill(steward, number)
        fleet.succeeded(steward)
        eventually(lambda: fleet.look().listening and fleet.look().armed)
        ids += fleet.send("Debit", 100)
        fleet.await_completed(ids, within=15)
        assert fleet.effects(ids) == {1: 300}
    assert fleet.pids() == workers


@pytest.mark.fleet(started=False, procs=1, threads=2, poll_interval=600, http="127.0.0.1:0")
def test_a_steward_one_of_whose_threads_ends_is_replaced(fleet: Fleet, tmp_path: Path) -> None:
    """Alive, it would renew and promote nothing, hear nothing, or answer no probe."""
    write_app(
        tmp_path,
        "from end_thread import end_threads\n"
        "from fleet_app import registry as registry\n"
        f"end_threads({str(tmp_path / 'end')!r})",
    )
    fleet.start()
    fleet.wait_until_ready()
    for name in ("steward", "cmdbus-listener", "steward-http"):
        steward = fleet.steward()
        assert steward is not None
        (tmp_path / "end").write_text(f"{steward} {name}")
        while fleet.steward() == steward:  # a notification or a probe makes it execute Python
            fleet.query("SELECT pg_notify('cmdbus_ready', 'shop')")
            with suppress(OSError, HTTPException):
                fleet.ask("/livez", 0.2)
        fleet.succeeded(steward)
        fleet.await_saying("a thread of the steward has ended")
        eventually(lambda: fleet.look().listening)
        fleet.await_completed(fleet.send("Noop", delay=0.3))
    assert fleet.query(_WAITED)[0][0] < 10, "none waited for a poll"


@pytest.mark.fleet(procs=1, threads=2, poll_interval=600)
def test_a_listener_that_is_ended_listens_again_and_looks(fleet: Fleet) -> None:
    """Sends in the gap are found; forged notifications and odd payloads do no harm."""
    await_rest(fleet)
    [steward] = fleet.look().with_role(Role.STEWARD)
    fleet.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %s",
        session_name("cmdbus", steward.incarnation or 0),
    )
    for _ in range(20):
        fleet.await_completed(fleet.send("Noop"))
    for payload in ("", "garbage", "9" * 30, "x" * 7000):
        for channel in ("cmdbus_ready", "cmdbus_due"):
            fleet.query("SELECT pg_notify(%s, %s)", channel, payload)
    fleet.await_completed(fleet.send("Noop"))


@pytest.mark.fleet(procs=1, threads=2, visibility_timeout=6, thread_timeout=7, watchdog_timeout=8)
def test_a_command_that_outlasts_its_lease_is_renewed_and_runs_once(
    fleet: Fleet, other: Fleet
) -> None:
    """By the steward, for its node. What is seen to be extended is so again and again."""
    ids = fleet.send("Gate", 2, data="open")
    leases = "SELECT min(lease_until), max(lease_until) FROM cmdbus.ready WHERE domain = 'shop'"
    eventually(lambda: len(fleet.executing("Gate") + other.executing("Gate")) == 2)
    [(_, last)] = fleet.query(leases)
    eventually(lambda: fleet.query(leases)[0][0] > last)
    fleet.open_gate()
    fleet.await_completed(ids)
    assert fleet.effects(ids) == {1: 2}
    assert fleet.query("SELECT max(token) FROM cmdbus.finished") == [(1,)]


@pytest.mark.fleet(procs=1, poll_interval=600)
def test_an_idle_node_takes_over_what_a_dead_one_held(fleet: Fleet, other: Fleet) -> None:
    """When the leases end, with nothing sent meanwhile and the poll far away."""
    kill(fleet.pids().values(), signal.SIGSTOP)
    ids = other.start_gates(3)
    kill(fleet.pids().values(), signal.SIGCONT)
    other.end()
    other.open_gate()
    fleet.await_outcomes(ids, {("COMPLETED", 1): 3})
    assert fleet.effects(ids) == {1: 3}


@pytest.mark.fleet(threads=2, poll_interval=600)
def test_no_wake_up_is_lost_between_idle_and_busy(fleet: Fleet, dsn: str) -> None:
    """Single sends at odd moments, at each isolation level, some in long transactions, against
    a fleet that keeps going idle: no command waits for the poll."""
    stop = threading.Event()

    def send(level: psycopg.IsolationLevel, pause: float) -> None:
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = level
            while not stop.is_set():
                connection.execute("SELECT 1")
                connection.execute("SELECT cmdbus.send('shop', 'Noop')")
                stop.wait(pause)
                connection.commit()
                stop.wait(pause * 3)

    levels = psycopg.IsolationLevel
    senders = [
        threading.Thread(target=send, args=(level, pause))
        for level, pause in (
            (levels.READ_COMMITTED, 0.004),
            (levels.REPEATABLE_READ, 0.011),
            (levels.SERIALIZABLE, 0.017),
            (levels.REPEATABLE_READ, 0.3),
        )
    ]
    for sender in senders:
        sender.start()
    try:
        stays(lambda: all(sender.is_alive() for sender in senders), 4)
    finally:
        stop.set()
        for sender in senders:
            sender.join()
    done = "SELECT count(*) FROM cmdbus.ready WHERE domain = 'shop'"
    eventually(lambda: fleet.query(done) == [(0,)])
