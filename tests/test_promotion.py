"""Due commands are promoted in turns, in batches that one command cannot hold up."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from eventually import eventually
from handlers import beside, connect, found
from queries import count, scalar, slow_down_inserts

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims import rejected_rows
from cmdbus.worker.claims.claim import ClaimKey
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.waiting.timers import Timers

pytestmark = pytest.mark.new_database

FILL = """
    INSERT INTO cmdbus.scheduled (
        domain, priority, command_id, correlation_id, type, data, due_at)
    SELECT %s, %s, gen_random_uuid(), gen_random_uuid(), 'Debit', %s::text::json,
        clock_timestamp() - interval '1 hour' + n * interval '1 microsecond'
    FROM generate_series(1, %s) n"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with connect(dsn) as connection:
        yield connection


@pytest.fixture
def timers() -> Timers:
    return Timers(ClaimStatements("cmdbus", 30), ["payments"], ["payments Debit"])


def fill(
    connection: psycopg.Connection, domain: str, priority: int, count: int, size: int = 2
) -> None:
    connection.execute(FILL, (domain, priority, f'"{"x" * (size - 2)}"', count))


def ready(connection: psycopg.Connection) -> dict[tuple[str, int], int]:
    rows = connection.execute(
        "SELECT domain, priority, count(*) FROM cmdbus.ready GROUP BY domain, priority"
    ).fetchall()
    return {(domain, priority): count for domain, priority, count in rows}


def left(connection: psycopg.Connection) -> int:
    return count(connection, "cmdbus.scheduled")


def promote_all(connection: psycopg.Connection, timers: Timers) -> int:
    """How many looks it took."""
    for looks in range(100):
        if timers.promote_and_read(connection, leases=False) != 0.0:
            return looks
    raise AssertionError("there is no end of it")


def test_a_backlog_keeps_no_other_domain_and_no_other_priority_waiting(
    connection: psycopg.Connection, timers: Timers
) -> None:
    fill(connection, "payments", 9, 3_000)
    fill(connection, "payments", 1, 10)
    fill(connection, "mail", 5, 10)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp() WHERE priority < 9")
    assert timers.promote_and_read(connection, leases=False) == 0.0
    assert ready(connection) == {("payments", 1): 10, ("payments", 9): 490, ("mail", 5): 10}
    assert promote_all(connection, timers) == 3
    assert left(connection) == 0
    order = "SELECT id FROM cmdbus.ready WHERE priority = 9 ORDER BY due_at"
    ids = connection.execute(order).fetchall()
    assert ids == sorted(ids), "within a domain and a priority in the order of their times"


@pytest.mark.long
def test_an_urgent_command_behind_a_large_backlog_is_promoted_by_the_next_look(
    connection: psycopg.Connection, timers: Timers
) -> None:
    fill(connection, "payments", 9, 150_000)
    fill(connection, "payments", 1, 1)
    fill(connection, "mail", 5, 1)
    began = time.monotonic()
    assert timers.promote_and_read(connection, leases=False) == 0.0
    assert time.monotonic() - began < 1.0
    found = ready(connection)
    assert found["payments", 1] == found["mail", 5] == 1


def test_few_due_among_many_that_are_not_cost_no_walk_over_those(
    connection: psycopg.Connection, timers: Timers
) -> None:
    fill(connection, "payments", 5, 20_000)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = due_at + interval '2 hours'")
    connection.execute("VACUUM ANALYZE cmdbus.scheduled")
    fill(connection, "mail", 5, 1)

    def read() -> int:
        connection.execute("SELECT pg_stat_force_next_flush()")
        query = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'scheduled'"
        return int(scalar(connection, query))

    before = read()
    assert timers.promote_and_read(connection, leases=False) == 0.0
    assert read() - before < 100


def test_a_batch_is_bounded_by_the_bytes_that_its_commands_have(
    connection: psycopg.Connection, timers: Timers
) -> None:
    connection.execute("ALTER TABLE cmdbus.scheduled ALTER data SET STORAGE EXTERNAL")
    fill(connection, "payments", 5, 20, size=1_000_000)
    fill(connection, "mail", 5, 1, size=12_000_000)
    assert timers.promote_and_read(connection, leases=False) == 0.0
    assert sum(ready(connection).values()) == 8
    assert promote_all(connection, timers) >= 3
    assert left(connection) == 0


def test_a_batch_that_takes_too_long_is_halved_and_grows_again(
    connection: psycopg.Connection, timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    """An insert of 64 rows takes half a second, and a statement must not."""
    slow_down_inserts(connection, 0.008)
    fill(connection, "payments", 5, 80)
    connection.execute("SET statement_timeout = '300ms'")
    looks = promote_all(connection, timers)
    assert left(connection) == 0
    assert looks < 30 and "trying fewer" in caplog.text


def test_one_command_that_takes_longer_than_a_statement_may_is_promoted(
    connection: psycopg.Connection,
) -> None:
    asked: list[float] = []

    def patience() -> float:
        asked.append(20.0)
        return 20.0

    timers = Timers(ClaimStatements("cmdbus", 30), ["payments"], ["payments Debit"], patience)
    timers.promote_and_read(connection, leases=False)  # The session's first plans take long.
    slow_down_inserts(connection, 0.4)
    fill(connection, "payments", 5, 1)
    connection.execute("SET statement_timeout = '100ms'")
    promote_all(connection, timers)
    assert left(connection) == 0 and asked
    assert connection.execute("SHOW statement_timeout").fetchone() == ("100ms",)


def test_a_server_that_stalls_sends_no_due_command_to_troubleshooting(
    dsn: str, connection: psycopg.Connection, bus: CommandBus, timers: Timers
) -> None:
    fill(connection, "payments", 5, 2)
    connection.execute("SET statement_timeout = '50ms'")
    with psycopg.connect(dsn) as stalling:
        stalling.execute("LOCK TABLE cmdbus.ready IN EXCLUSIVE MODE")
        for _ in range(14):
            with suppress(psycopg.errors.QueryCanceled):
                timers.promote_and_read(connection, leases=False)
    connection.execute("SET statement_timeout = '20s'")
    promote_all(connection, timers)
    assert (left(connection), bus.troubleshooting.count("payments")) == (0, 0)


def test_a_command_that_always_times_out_goes_to_troubleshooting_and_keeps_no_other(
    connection: psycopg.Connection, bus: CommandBus, timers: Timers
) -> None:
    slow_down_inserts(connection, 20, condition="NEW.type = 'Bad'")
    bus.send("payments", "Bad", delay=60)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = now() - interval '1 hour'")
    fill(connection, "payments", 5, 2)
    connection.execute("SET statement_timeout = '200ms'")
    promote_all(connection, timers)
    assert (left(connection), bus.troubleshooting.count("payments")) == (0, 1)


def test_a_command_that_cannot_be_promoted_goes_to_troubleshooting(
    connection: psycopg.Connection,
    bus: CommandBus,
    timers: Timers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection.execute("ALTER TABLE cmdbus.ready ADD CHECK (type <> 'Bad')")
    bad = bus.send("payments", "Bad", delay=60)
    bus.send_many([SendRequest("payments", "Debit", delay=60)] * 5)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")
    promote_all(connection, timers)
    assert ready(connection) == {("payments", 5): 5}
    assert found(bus, bad).error_code == "NOT_CLAIMABLE"
    assert "row 1 is due and cannot be promoted" in caplog.text
    assert f"command={bad} " in caplog.text


def test_a_command_that_can_be_neither_promoted_nor_moved_is_skipped_with_pauses(
    connection: psycopg.Connection,
    bus: CommandBus,
    timers: Timers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for table in ("ready", "troubleshooting"):
        connection.execute(f"ALTER TABLE cmdbus.{table} ADD CHECK (type <> 'Bad')".encode())
    bus.send("payments", "Bad", delay=60)
    bus.send_many([SendRequest("payments", "Debit", delay=60)] * 5)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")
    promote_all(connection, timers)
    assert ready(connection) == {("payments", 5): 5}
    waits = [timers.promote_and_read(connection, leases=False) for _ in range(12)]
    assert waits[-1] >= 1.0 and caplog.text.count("skipped") == 1


def test_a_command_that_was_skipped_is_promoted_once_nothing_rejects_it_any_longer(
    connection: psycopg.Connection,
    bus: CommandBus,
    timers: Timers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a maintenance in which triggers forbid all changes."""
    monkeypatch.setattr(rejected_rows, "SKIP_SECONDS", 0.2)
    for table in ("ready", "troubleshooting"):
        connection.execute(f"ALTER TABLE cmdbus.{table} ADD CONSTRAINT no CHECK (false)".encode())
    bus.send_many([SendRequest("payments", "Debit", delay=60)] * 3)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")
    eventually(
        lambda: (
            timers.promote_and_read(connection, leases=False) and caplog.text.count("skipped") == 3
        )
    )
    for _ in range(5):
        eventually(lambda: timers.promote_and_read(connection, leases=False) > 0.2)
    assert caplog.text.count("skipped") == 3, "each is logged once"
    for table in ("ready", "troubleshooting"):
        connection.execute(f"ALTER TABLE cmdbus.{table} DROP CONSTRAINT no".encode())
    eventually(
        lambda: timers.promote_and_read(connection, leases=False) > 0.0 and left(connection) == 0
    )
    assert ready(connection) == {("payments", 5): 3}


def test_while_the_queue_is_locked_due_commands_stay_and_none_is_set_aside(
    dsn: str, connection: psycopg.Connection, timers: Timers
) -> None:
    fill(connection, "payments", 5, 3)
    connection.execute("SET lock_timeout = '20ms'")
    with psycopg.connect(dsn) as locking:
        locking.execute("LOCK TABLE cmdbus.ready IN SHARE MODE")
        waits = [timers.promote_and_read(connection, leases=False) for _ in range(3)]
        assert min(waits) > 0.0
        assert left(connection) == 3
        locking.rollback()
    promote_all(connection, timers)
    assert ready(connection) == {("payments", 5): 3}


class OtherNodeFirst(ClaimStatements):
    """Each promotion that fails does so after another node has set its command aside."""

    def value(self, connection: psycopg.Connection, name: str, /, **values: Any) -> Any:
        try:
            return super().value(connection, name, **values)
        except psycopg.errors.CheckViolation:
            row = self.row(connection, "find_first_due", skipped=values["skipped"])
            assert row is not None
            if values["count"] == 1:
                key = ClaimKey._make(row[:-1])
                self.set_aside(connection, key, "NOT_CLAIMABLE", "why", "scheduled")
            raise


def test_a_command_that_another_node_sets_aside_takes_no_other_with_it(
    connection: psycopg.Connection, bus: CommandBus
) -> None:
    connection.execute("ALTER TABLE cmdbus.ready ADD CHECK (type <> 'Bad')")
    bad = bus.send("payments", "Bad", delay=60)
    connection.execute("UPDATE cmdbus.scheduled SET due_at = clock_timestamp()")
    fill(connection, "payments", 9, 3)
    connection.execute(
        "UPDATE cmdbus.scheduled SET due_at = due_at + interval '1 hour' WHERE priority = 9"
    )
    timers = Timers(OtherNodeFirst("cmdbus", 30), ["payments"], ["payments Debit"])
    promote_all(connection, timers)
    assert [record.command_id for record in bus.troubleshooting.list("payments")] == [bad]
    assert ready(connection) == {("payments", 9): 3}


def test_two_concurrent_promotions_move_each_command_once(
    dsn: str, connection: psycopg.Connection
) -> None:
    fill(connection, "payments", 5, 5_000)

    def promote() -> None:
        with connect(dsn) as own_connection:
            timers = Timers(ClaimStatements("cmdbus", 30), ["payments"], ["payments Debit"])
            while timers.promote_and_read(own_connection, leases=False) == 0.0:
                pass

    with beside(promote), beside(promote):
        pass
    assert ready(connection) == {("payments", 5): 5_000} and left(connection) == 0
