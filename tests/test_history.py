"""The rings of rollups, in the database."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from databases import Databases
from handlers import connect
from queries import CLAIM, keeping, move_to_troubleshooting, rows, scalar
from roles import role

from cmdbus import CommandBus, SendRequest
from cmdbus.database.executor import Executor
from cmdbus.rollups import MAX_DOMAINS, OUTCOMES, WIDTH

DAY = datetime(2026, 6, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EXECUTOR = Executor("cmdbus")


@pytest.fixture(scope="module")
def shared(databases: Databases, template: str) -> Iterator[str]:
    with databases.fresh(template) as name:
        yield databases.dsn_of(name)


@pytest.fixture
def dsn(shared: str) -> Iterator[str]:
    """All tests have one database, and find it empty."""
    with keeping(shared):
        tables = "rollup rollup_source depth_sample ready scheduled troubleshooting identity"
        with connect(shared) as connection:
            for table in tables.split():
                connection.execute(f"DELETE FROM cmdbus.{table}".encode())
        yield shared


def figures(completed: int) -> list[int]:
    return [completed, *[0] * (len(OUTCOMES) - 1), *[0] * (WIDTH - len(OUTCOMES))]


def record(
    connection: psycopg.Connection,
    counts: dict[str, int],
    *,
    now: datetime | None,
    node: int = 1,
    age: float = 60.0,
) -> bool:
    """What a node writes that has counted so many completions by domain since its start."""
    numbers = figures(sum(counts.values()))
    for count in counts.values():
        numbers += figures(count)
    values = {"node": node, "age": age, "domains": ["", *counts], "figures": numbers}
    return bool(EXECUTOR.value(connection, "record_minute", **values, limit=2.0, now=now))


def completed(dsn: str, resolution: int = 1, domain: str = "") -> list[int]:
    query = "SELECT figures[1] FROM cmdbus.rollup WHERE resolution = %s AND domain = %s ORDER BY at"
    return [row[0] for row in rows(dsn, query, resolution, domain)]


def test_a_node_adds_what_it_has_counted_since(connection: psycopg.Connection, dsn: str) -> None:
    for minute, counts in enumerate([{"mail": 3}, {"mail": 3}, {"mail": 5, "shop": 1}], 1):
        record(connection, counts, now=DAY + minute * MINUTE, age=60.0 * minute)
    assert completed(dsn) == [3, 0, 3]
    assert completed(dsn, 1, "mail") == [3, 2]
    assert completed(dsn, 1, "shop") == [1]
    assert completed(dsn, 10) == completed(dsn, 60) == [6]


def test_a_repeated_rollup_adds_nothing(connection: psycopg.Connection, dsn: str) -> None:
    """That of a steward whose reply was lost, and that of its successor."""
    for _ in range(3):
        record(connection, {"mail": 3}, now=DAY + MINUTE)
    assert completed(dsn, 60) == [3]


def test_another_board_of_the_same_node_begins_at_zero(
    connection: psycopg.Connection, dsn: str
) -> None:
    """Process ids come again: in a container it is always the first."""
    record(connection, {"mail": 3}, now=DAY + MINUTE)
    record(connection, {"mail": 4}, now=DAY + 4 * MINUTE, age=60.0)
    record(connection, {"mail": 5}, now=DAY + 5 * MINUTE, age=120.0)
    assert completed(dsn) == [3, 4, 1]


def test_an_old_board_of_which_nothing_is_known_does_not_write_the_past_again(
    connection: psycopg.Connection, dsn: str
) -> None:
    record(connection, {"mail": 1000}, now=DAY + MINUTE, age=86400.0)
    record(connection, {"mail": 1002}, now=DAY + 2 * MINUTE, age=86460.0)
    assert completed(dsn) == [2]


def test_counters_that_a_damaged_board_lost_add_what_they_show(
    connection: psycopg.Connection, dsn: str
) -> None:
    record(connection, {"mail": 10}, now=DAY + MINUTE)
    record(connection, {"mail": 4}, now=DAY + 2 * MINUTE, age=120.0)
    assert completed(dsn) == [10, 4]


def test_nodes_add_up_also_at_the_same_time(dsn: str) -> None:
    def write(node: int) -> None:
        with connect(dsn) as connection:
            for count in range(1, 6):
                now = DAY + MINUTE + timedelta(seconds=count)
                record(connection, {"mail": count, f"own{node}": count}, now=now, node=node)

    threads = [threading.Thread(target=write, args=[node]) for node in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert completed(dsn, 1) == [40]
    assert completed(dsn, 60, "mail") == [20]
    assert completed(dsn, 60, "own2") == [5]


def test_rings_turn_and_never_grow(connection: psycopg.Connection, dsn: str) -> None:
    """Two weeks of an hourly round, with domains that come and go."""
    for count, hour in enumerate(range(0, 24 * 14, 5), 1):
        now = DAY + timedelta(hours=hour)
        record(connection, {f"d{hour % 7}": count}, now=now, age=3600.0 * (hour + 1))
    sizes = rows(
        dsn, "SELECT resolution, count(DISTINCT slot), count(*) FROM cmdbus.rollup GROUP BY 1"
    )
    for resolution, slots, many in sizes:
        assert slots <= {1: 62, 10: 146, 60: 170}[resolution]
        assert many <= 2 * slots
    oldest = scalar(connection, "SELECT min(at) FROM cmdbus.rollup WHERE resolution = 60")
    assert oldest > DAY + timedelta(days=6)


def test_a_late_node_does_not_write_into_another_round(
    connection: psycopg.Connection, dsn: str
) -> None:
    record(connection, {"mail": 1}, now=DAY + timedelta(days=8))
    record(connection, {"mail": 7}, now=DAY + timedelta(days=8, minutes=-170 * 60), node=2)
    assert completed(dsn, 60, "mail") == [1]


def test_a_period_has_200_domains_at_most(connection: psycopg.Connection, dsn: str) -> None:
    names = [f"d{number:03}" for number in range(MAX_DOMAINS)]
    record(connection, dict.fromkeys(names, 1), now=DAY + MINUTE)
    others = {"d005": 1, **{f"other{number}": 1 for number in range(50)}}
    record(connection, others, now=DAY + MINUTE, node=2)
    assert scalar(connection, "SELECT count(*) FROM cmdbus.rollup WHERE resolution = 60") == 201
    assert completed(dsn, 60, "d005") == [2]
    assert completed(dsn, 60) == [251]


def test_one_node_a_minute_counts_what_waits(connection: psycopg.Connection) -> None:
    asked = []
    for second in (61, 62, 63, 121, 122, 123):
        asked.append(record(connection, {}, now=DAY + timedelta(seconds=second), node=second % 3))
        if asked[-1]:
            EXECUTOR.value(connection, "sample_depths", now=DAY + timedelta(seconds=second))
    assert asked == [True, False, False, True, False, False]


def test_a_count_that_takes_long_is_rarer(connection: psycopg.Connection) -> None:
    assert record(connection, {}, now=DAY + MINUTE)
    # It ended at the limit of 2 s: the next is after 4 minutes.
    asked = [record(connection, {}, now=DAY + minute * MINUTE) for minute in range(2, 7)]
    assert asked == [False, False, False, True, False]


def test_a_sample_counts_every_state(dsn: str, connection: psycopg.Connection) -> None:
    with CommandBus(dsn) as bus:
        troubled = [SendRequest("mail", "Send") for _ in range(2)]
        bus.send_many(troubled)
        move_to_troubleshooting(dsn)
        ids = bus.send_many([SendRequest("mail", "Send")] * 3)
        bus.send_many([SendRequest("shop", "Pack", delay=60)])
    connection.execute(CLAIM.encode(), ["1 minute", ids[0]])
    record(connection, {}, now=None)
    EXECUTOR.value(connection, "sample_depths", now=None)
    query = (
        "SELECT domain, waiting, limited, later, running, in_trouble, unfinished, oldest_age > 0"
        " FROM cmdbus.rollup WHERE resolution = 10 ORDER BY 1"
    )
    assert rows(dsn, query) == [
        ("", 2, 0, 1, 1, 2, 4, True),
        ("mail", 2, 0, 0, 1, 2, 3, True),
        ("shop", 0, 0, 1, 0, 0, 1, False),
    ]


def test_a_sample_keeps_the_most_and_forgets_what_has_gone(
    dsn: str, connection: psycopg.Connection
) -> None:
    now = datetime.now(UTC)
    with CommandBus(dsn, purge_allowed=True) as bus:
        bus.send_many([SendRequest("mail", "Send")] * 3)
        EXECUTOR.value(connection, "sample_depths", now=now)
        bus.purge("mail")
        EXECUTOR.value(connection, "sample_depths", now=now)
    query = "SELECT domain, waiting, unfinished FROM cmdbus.rollup WHERE resolution = 60 ORDER BY 1"
    assert rows(dsn, query) == [("", 3, 0), ("mail", 3, 0)]


def test_a_bus_reads_what_was_written(dsn: str, bus: CommandBus) -> None:
    with connect(dsn) as connection:
        [now] = connection.execute("SELECT clock_timestamp()").fetchone() or ()
        for minute in (3, 2, 1):
            bus.send_many([SendRequest("mail", "Send")] * 2)
            counts = {"mail": 10 * (4 - minute)}
            then = now - minute * MINUTE
            record(connection, counts, now=then, age=240.0 - 60 * minute)
            EXECUTOR.value(connection, "sample_depths", now=then)
    history = bus.history("mail")
    assert [point.ended.completed for point in history.points] == [10] * 3
    assert [point.arrived for point in history.points] == [None, 12, 12]
    assert [point.waiting for point in history.points] == [2, 4, 6]
    assert len(bus.history(span="hour").points) == 3
    assert [p.ended.completed for p in bus.history("other").points] == [0] * 3
    assert {*bus.recent_minutes()} == {"", "mail"}
    assert bus.recent_minutes()["mail"] == history.points
    assert bus.history(span="week").points in ([], bus.history(span="week").points[:1])


def test_a_span_that_is_unknown_is_refused(bus: CommandBus) -> None:
    with pytest.raises(ValueError, match="span must be one of hour, day, week, not 'year'"):
        bus.history(span="year")


@pytest.mark.parametrize("kind", ["operator", "monitor"])
def test_who_reads_the_bus_reads_its_history(dsn: str, kind: str) -> None:
    with role(dsn, kind) as connection, CommandBus(dsn) as bus:
        assert bus.history(connection=connection).points == []
        assert bus.recent_minutes(connection=connection) == {}
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            record(connection, {}, now=DAY)
