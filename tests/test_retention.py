"""History is removed at the end of its retention, and its ids with it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event
from uuid import UUID, uuid4

import psycopg
import pytest
from queries import count, move_to_troubleshooting, scalar

from cmdbus import CommandBus, DuplicateCommandError
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.maintenance import Maintenance
from cmdbus.worker.steward.retention import (
    MIN_SWEEP_SECONDS,
    Keep,
    Retention,
    due_sweeps,
    plan_days,
    plan_sweeps,
    sweep_seconds,
)

pytestmark = pytest.mark.new_database

STATEMENTS = ClaimStatements("cmdbus", 30.0)

_OLD_PARTITION = """
    DO $$ DECLARE day date := clock_timestamp()::date - {age}; BEGIN
        SET timezone = 'UTC';
        EXECUTE format('CREATE TABLE cmdbus.finished_%s (LIKE cmdbus.finished INCLUDING ALL)',
                       to_char(day, 'YYYYMMDD'));
        EXECUTE format('ALTER TABLE cmdbus.finished ATTACH PARTITION cmdbus.finished_%s
                        FOR VALUES FROM (%L) TO (%L)', to_char(day, 'YYYYMMDD'),
                       day::timestamptz, (day + 1)::timestamptz);
    END $$"""
_AGE = """
    WITH events AS (
        UPDATE cmdbus.event SET at = at - make_interval(days => %(days)s) WHERE domain = %(domain)s)
    UPDATE cmdbus.finished SET finished_at = finished_at - make_interval(days => %(days)s)
    WHERE domain = %(domain)s"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'")
        yield connection


def finish(bus: CommandBus, *domains: str) -> dict[str, UUID]:
    """A command with an id and an event of its own in each."""
    sent = {domain: bus.send(domain, "Work", command_id=uuid4()) for domain in domains}
    for domain, command_id in sent.items():
        bus.cancel(domain, command_id)
    return sent


def retain(connection: psycopg.Connection) -> int:
    """As many days and commands as are removed."""
    retention = Retention(ClaimStatements("cmdbus", 30.0), Event())
    return retention.remove_days(connection) + retention.sweep(connection)


def rows(connection: psycopg.Connection, table: str) -> int:
    return count(connection, f"cmdbus.{table}")


def days(connection: psycopg.Connection) -> list[str]:
    """The tables of history, the oldest first."""
    return sorted(name for name, _ in STATEMENTS.rows(connection, "find_days"))


def remove_some(connection: psycopg.Connection, partition: str, blocks: int) -> bool:
    """Whether the day is gone."""
    return bool(STATEMENTS.value(connection, "retain_day", partition=partition, size=blocks))


def age(connection: psycopg.Connection, domain: str, days: int) -> None:
    connection.execute(_OLD_PARTITION.format(age=days).encode())
    connection.execute(_AGE, {"days": days, "domain": domain})


def test_a_day_beyond_its_retention_is_dropped_with_its_ids_and_events(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Until then the id stays taken."""
    sent = finish(bus, "old", "young")
    age(connection, "old", 9)
    age(connection, "young", 6)
    connection.execute("ANALYZE")
    assert rows(connection, "finished") == 2
    assert retain(connection) == 1
    assert retain(connection) == 0
    assert bus.get("old", sent["old"]) is None
    assert bus.get("young", sent["young"]) is not None
    assert (rows(connection, "identity"), rows(connection, "event")) == (1, 1)
    assert bus.send("old", "Work", command_id=sent["old"]) == sent["old"]


def test_a_domain_may_keep_its_history_for_a_shorter_time_and_for_none(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    sent = finish(bus, "none", "day", "week")
    bus.configure("none", keep=timedelta(0))
    bus.configure("day", keep=timedelta(days=1))
    age(connection, "day", 2)
    for domain in ("none", "week"):
        connection.execute(_AGE, {"days": 2, "domain": domain})
    assert [retain(connection), retain(connection)] == [2, 0]
    left = [domain for domain, command_id in sent.items() if bus.get(domain, command_id)]
    assert left == ["week"]
    assert (rows(connection, "identity"), rows(connection, "event")) == (1, 1)


def test_what_ended_less_than_a_minute_ago_stays_in_a_domain_that_keeps_nothing(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """A send that is repeated after its connection died finds its first try."""
    sent = finish(bus, "none")
    bus.configure("none", keep=timedelta(0))
    assert retain(connection) == 0
    with pytest.raises(DuplicateCommandError):
        bus.send("none", "Work", command_id=sent["none"])


def test_a_domain_that_keeps_longer_keeps_the_day_for_all(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    sent = finish(bus, "long", "week")
    bus.configure("long", keep=timedelta(days=30))
    bus.configure("week", keep=timedelta(days=7))
    age(connection, "long", 9)
    connection.execute(_AGE, {"days": 9, "domain": "week"})
    assert [retain(connection), retain(connection)] == [1, 0]
    assert bus.get("long", sent["long"]) is not None
    assert bus.get("week", sent["week"]) is None


def test_a_day_is_detached_without_anything_else_under_the_lock_that_settlements_wait_for(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    finish(bus, "old")
    age(connection, "old", 9)
    oldest, *_ = days(connection)
    left = "SELECT count(*) FROM pg_inherits WHERE inhrelid = to_regclass('cmdbus.' || %s)"
    assert not remove_some(connection, oldest, 256)
    assert connection.execute(left, (oldest,)).fetchone() == (0,)
    assert (rows(connection, "identity"), rows(connection, "event")) == (1, 1)
    assert not remove_some(connection, oldest, 256)
    assert (rows(connection, "identity"), rows(connection, "event")) == (0, 0)
    assert remove_some(connection, oldest, 256)
    assert rows(connection, "removal") == 0


def test_what_happened_to_a_new_command_of_the_same_id_is_kept(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    made = bus.send("old", "Work")
    bus.cancel("old", made)
    age(connection, "old", 9)
    oldest, *_ = days(connection)
    assert not remove_some(connection, oldest, 256), "detached"
    bus.send("old", "Work", command_id=made)
    bus.cancel("old", made, reason="again")
    assert retain(connection) == 1
    reasons = [event.message for event in bus.audit("old", made) if event.kind == "CANCELED"]
    assert reasons == ["again"]


def test_an_id_that_was_sent_again_stays_taken_when_another_steward_removes_the_rest_of_its_day(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    sent = finish(bus, "old")
    age(connection, "old", 9)
    oldest, *_ = days(connection)
    assert not remove_some(connection, oldest, 256), "detached"
    assert not remove_some(connection, oldest, 256), "its ids are not taken any longer"
    bus.send("old", "Work", command_id=sent["old"])
    assert retain(connection) == 1
    with pytest.raises(DuplicateCommandError):
        bus.send("old", "Work", command_id=sent["old"])


def test_a_report_that_reads_history_is_not_waited_for(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Every settlement would queue behind the session that waits for that lock."""
    finish(bus, "old")
    age(connection, "old", 9)
    with psycopg.connect(dsn) as report:
        report.execute("SELECT count(*) FROM cmdbus.finished")
        assert retain(connection) == 0
        assert rows(connection, "identity") == 1, "nothing is half-done"
        report.rollback()
    assert retain(connection) == 1


def test_maintenance_goes_on_until_nothing_is_left(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    finish(bus, "old")
    age(connection, "old", 8)
    age(connection, "nobody", 20)
    statements = ClaimStatements("cmdbus", 30.0)
    Maintenance(statements, lambda: connection).maintain(connection)
    assert rows(connection, "finished") == 0
    assert retain(connection) == 0


def test_what_fails_for_good_is_not_history(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Troubleshooting waits for an operator, however long that takes."""
    bus.configure("none", keep=timedelta(0))
    sent = bus.send("none", "Fail")
    assert move_to_troubleshooting(dsn) == 1
    assert retain(connection) == 0
    assert bus.get("none", sent) is not None


def seconds(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def test_a_plan_names_the_days_and_domains_whose_time_is_over() -> None:
    days = ["finished_20260110", "finished_20260101", "finished_20260105", "finished_20269999"]
    keeps = {"short": Keep(86400.0), "usual": Keep(7 * 86400.0)}
    now = seconds("2026-01-10T12:00")
    assert plan_days(now, days, keeps) == ["finished_20260101"]
    assert due_sweeps(keeps) == ["short"]
    assert plan_sweeps(now, days, keeps, {"short"}) == [("finished_20260105", "short")]
    keeps = {"due": Keep(5, 60), "later": Keep(5, 59), "new": Keep(0), "usual": Keep(7 * 86400)}
    assert due_sweeps(keeps) == ["due", "new"]
    ever = {"long": Keep(300_000 * 366 * 86400.0)}
    assert plan_days(seconds("2026-01-10"), days, ever) == []
    assert plan_days(seconds("2026-01-20"), days, {})[-1] == "finished_20260110"


@pytest.mark.parametrize(
    ("keep", "every"),
    [(0, 60), (5, 60), (600, 60), (3600, 360), (86400, 3600), (7 * 86400, 3600)],
)
def test_the_shorter_a_domain_keeps_its_history_the_more_often_it_is_swept(
    keep: float, every: float
) -> None:
    assert sweep_seconds(keep) == every
    waits = [Keep(keep, swept).sweep_in for swept in (None, 0.0, every - 1, every, 1e9)]
    assert waits == [0, every, 1, 0, 0]


def test_one_of_many_stewards_sweeps_and_the_next_time_is_within_a_minute(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.configure("none", keep=timedelta(0))
    stewards = [Maintenance(ClaimStatements("cmdbus", 30.0), lambda: connection) for _ in range(2)]
    age_all = partial(connection.execute, _AGE, {"days": 1, "domain": "none"})
    finish(bus, "none")
    age(connection, "none", 1)
    assert stewards[0].maintain(connection) == pytest.approx(MIN_SWEEP_SECONDS, abs=20)
    assert rows(connection, "finished") == 0
    finish(bus, "none")
    age_all()
    assert stewards[1].maintain(connection) <= MIN_SWEEP_SECONDS
    assert rows(connection, "finished") == 1, "the other steward swept a moment ago"
    for moved in ("- interval '1 minute'", "+ interval '1 hour'"):  # the latter: a restored server
        connection.execute(f"UPDATE cmdbus.domain SET swept_at = swept_at {moved}".encode())
        stewards[1].maintain(connection)
        assert rows(connection, "finished") == 0
        finish(bus, "none")
        age_all()


def test_one_day_that_cannot_be_removed_keeps_no_other_from_it(
    bus: CommandBus, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    finish(bus, "old", "older", "none")
    age(connection, "older", 12)
    age(connection, "old", 9)
    age(connection, "none", 1)
    bus.configure("none", keep=timedelta(0))
    connection.execute(
        "CREATE VIEW public.report AS SELECT count(*) FROM cmdbus.finished_"
        + (datetime.now(UTC) - timedelta(days=12)).strftime("%Y%m%d")
    )
    assert retain(connection) == 2
    assert rows(connection, "finished") == 0
    assert (rows(connection, "identity"), rows(connection, "event")) == (0, 0)
    assert "cannot remove history (finished_" in caplog.text
    connection.execute("DROP VIEW public.report")
    assert retain(connection) == 1


def test_one_domain_whose_setting_overflows_keeps_no_other_from_its_retention(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    finish(bus, "ever", "none")
    age(connection, "none", 1)
    bus.configure("none", keep=timedelta(0))
    connection.execute("ALTER TABLE cmdbus.domain DROP CONSTRAINT domain_keep_check")
    connection.execute("INSERT INTO cmdbus.domain (name, keep) VALUES ('ever', '300000 years')")
    assert retain(connection) == 1
    assert rows(connection, "finished") == 1


def test_a_day_is_removed_in_blocks(bus: CommandBus, connection: psycopg.Connection) -> None:
    sent = finish(bus, "old")
    connection.execute(
        "INSERT INTO cmdbus.finished (token, created_at, command_id, correlation_id, priority,"
        " attempts, losses, domain, type, status, data)"
        " SELECT 1, clock_timestamp(), gen_random_uuid(), gen_random_uuid(), 5, 1, 0, 'old',"
        " 'Work', 'COMPLETED', 'null' FROM generate_series(1, 500)"
    )
    age(connection, "old", 9)
    connection.execute(
        "INSERT INTO cmdbus.identity (domain, command_id)"
        " SELECT domain, command_id FROM cmdbus.finished ON CONFLICT DO NOTHING"
    )
    old = days(connection)[0]
    assert not remove_some(connection, old, 1)  # detached
    assert not remove_some(connection, old, 1)
    left = rows(connection, "identity")
    assert 0 < left < 501 and bus.get("old", sent["old"]) is None
    assert retain(connection) == 1, "the table is found again, although it is no partition"
    assert (rows(connection, "identity"), rows(connection, "event")) == (0, 0)


def test_rows_of_unique_keys_are_removed_before_the_history_that_frees_them(
    dsn: str, connection: psycopg.Connection
) -> None:
    """By the sweep of a domain that keeps no history, too."""
    with CommandBus(dsn) as bus:
        query = "SELECT cmdbus.send('payments', 'Debit', p_unique => %s, p_unique_until => %s)"
        sent = {
            key: scalar(connection, query, key, until)
            for key, until in (("canceled", "3600"), ("ended", "finished"), ("held", "3600"))
        }
        bus.cancel("payments", sent["canceled"])
        bus.cancel("payments", sent["ended"])
        bus.configure("payments", keep=timedelta(0))
        age(connection, "payments", 1)
        assert retain(connection) == 2
        held = connection.execute("SELECT unique_key FROM cmdbus.unique_command").fetchall()
        assert held == [("held",)]
        purge = CommandBus(dsn, purge_allowed=True)
        with purge:
            assert purge.purge("payments") == 1
        assert rows(connection, "unique_command") == 0
