"""Stewards send a command at each tick of a schedule, once."""

import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest
from eventually import eventually
from handlers import do_nothing, handling, kinds, running
from queries import rows, scalar
from schedule_rounds import (
    HOUR,
    due,
    hours_ago,
    only,
    round_of,
    run_to_the_end,
    ticks,
    wait_for_an_hour_that_lasts,
)

from cmdbus import CommandBus
from cmdbus.database.statements import statement
from cmdbus.ticks import command_id, due_time
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.schedule_round import ScheduleRound
from cmdbus.worker.waiting.timers import Timers

pytestmark = pytest.mark.new_database

#: Seconds from the latest tick to its command.
LATE = """
SELECT extract(epoch FROM c.created_at - s.last_tick)
FROM cmdbus.schedule s JOIN cmdbus.command c ON c.command_id = s.last_command_id
"""


@pytest.fixture(autouse=True)
def _lasting_hour() -> None:
    wait_for_an_hour_that_lasts()


def elapsed(began: float, seconds: float) -> bool:
    """Whether these have passed since that monotonic time, on two clocks."""
    return -0.1 <= seconds <= time.monotonic() - began + 0.1


def test_a_tick_sends_one_command_and_the_next_one_waits(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.schedules.add("hourly", "payments", "Debit", every="1h", data=[1], priority=2, key="k")
    last = hours_ago(0)
    this, began = round_of(), time.monotonic()
    pause = this.run(connection)
    assert (bus.query(), only(bus).next_tick) == ([], last + HOUR)
    assert 0 < pause <= 3600
    assert elapsed(began, pause - this.run(connection))
    due(connection, "hourly", last)
    assert elapsed(began, pause - round_of().run(connection))
    [command] = bus.query()
    assert command.command_id == command_id("cmdbus", "hourly", last)
    assert (command.type, command.data, command.priority, command.key) == ("Debit", [1], 2, "k")
    record = only(bus)
    assert (record.last_tick, record.last_command_id) == (last, command.command_id)
    assert (record.next_tick, record.left_out, record.last_error) == (last + HOUR, 0, None)
    [_, event] = bus.audit("payments", command.command_id)
    assert event.kind == "SENT_BY_SCHEDULE"
    assert event.details["schedule"] == "hourly"
    assert datetime.fromisoformat(event.details["tick"]) == last


@pytest.mark.parametrize(
    ("missed", "sent", "left_out"), [("one", 1, 5), ("all", 6, 0), ("none", 0, 6)]
)
def test_missed_ticks_are_sent_as_declared(
    dsn: str,
    bus: CommandBus,
    connection: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    missed: str,
    sent: int,
    left_out: int,
) -> None:
    last = datetime.now(UTC).replace(second=0, microsecond=0) - HOUR / 2
    bus.schedules.add("hourly", "payments", "Debit", f"{last.minute} * * * *", missed=missed)
    due(connection, "hourly", last - 5 * HOUR)
    round_of().run(connection)
    expected = [last - n * HOUR for n in reversed(range(sent))]
    assert [tick for _, tick in ticks(dsn)] == expected
    record = only(bus)
    assert (record.left_out, record.next_tick) == (left_out, last + HOUR)
    assert (record.left_out_at is not None) == bool(left_out)
    warnings = [message for message in caplog.messages if "left out" in message]
    assert warnings == [f"schedule hourly: {left_out} ticks left out (missed={missed!r})"] * bool(
        left_out
    )


def test_at_most_a_thousand_missed_ticks_are_sent_and_the_oldest_are_left_out(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.schedules.add("hourly", "payments", "Debit", "0 * * * *", missed="all")
    round_of().run(connection)
    due(connection, "hourly", hours_ago(1050))
    run_to_the_end(round_of(), connection)
    assert [tick for _, tick in ticks(dsn)] == [hours_ago(n) for n in reversed(range(1000))]
    assert (only(bus).left_out, only(bus).last_tick) == (51, hours_ago(0))


def test_a_tick_whose_command_is_there_was_sent(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """As after a restore of the server to an earlier point, or with a clock that was set back."""
    bus.schedules.add("hourly", "payments", "Debit", every="1h", missed="all")
    round_of().run(connection)
    due(connection, "hourly", hours_ago(2))
    round_of().run(connection)
    due(connection, "hourly", hours_ago(5))
    round_of().run(connection)
    assert len(bus.query()) == 6
    record = only(bus)
    assert (record.last_tick, record.last_error) == (hours_ago(0), None)


def test_jitter_delays_the_command_and_not_the_tick(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    last = hours_ago(0)
    due_at, name = max(
        (due_time(last, command_id("cmdbus", name, last), 86400.0), name) for name in "abcdefgh"
    )
    bus.schedules.add(name, "payments", "Debit", every="1h", jitter=86400)
    round_of().run(connection)
    due(connection, name, last)
    round_of().run(connection)
    [command] = bus.query()
    assert (command.due_at, only(bus).last_tick) == (due_at, last)


def test_a_refused_tick_stays_due_and_is_tried_again(
    bus: CommandBus, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    bus.schedules.add("hourly", "payments", "Debit", every="1h")
    bus.schedules.add("other", "refunds", "Debit", every="1h")
    round_of().run(connection)
    bus.configure("payments", accepting=False)
    for name in ("hourly", "other"):
        due(connection, name, hours_ago(0))
    for _ in range(2):
        round_of().run(connection)
        connection.execute("UPDATE cmdbus.schedule SET check_at = now() WHERE name = 'hourly'")
    [refused, sent] = bus.schedules.list()
    assert (refused.next_tick, refused.last_tick) == (hours_ago(0), None)
    assert refused.last_error == "the domain does not accept commands"
    assert sent.last_tick == hours_ago(0)
    assert caplog.messages == [
        "schedule hourly: its domain refuses the command (closed); trying again every 5 s"
    ]
    bus.configure("payments", accepting=True)
    round_of().run(connection)
    record = bus.schedules.list()[0]
    assert (record.last_tick, record.last_error) == (hours_ago(0), None)


def test_a_schedule_that_fails_keeps_no_other_from_its_ticks(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose commands a trigger refuses, one with a line that cannot be read here, and one with
    a zone that this system lacks."""
    for name, line in (("a", "0 * * * *"), ("b", "0 * * * *"), ("c", "0 * * * *"), ("d", None)):
        bus.schedules.add(name, "payments", "Debit", line, every=None if line else "1h")
    round_of().run(connection)
    connection.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'not today'; END $$; CREATE TRIGGER refuse BEFORE INSERT ON cmdbus.ready"
        " FOR EACH ROW WHEN (NEW.key = 'bad') EXECUTE FUNCTION public.refuse();"
        "UPDATE cmdbus.schedule SET terms.key = 'bad' WHERE name = 'a';"
        "UPDATE cmdbus.schedule SET terms.cron = '0 * *' WHERE name = 'b';"
        "UPDATE cmdbus.schedule SET terms.timezone = 'Mars/Base' WHERE name = 'c'"
    )
    for name in "abcd":
        due(connection, name, hours_ago(0))
    this = round_of()
    this.run(connection)
    assert ticks(dsn) == [("d", hours_ago(0))]
    errors = {record.name: record.last_error for record in bus.schedules.list()}
    assert errors["a"] == "not today" and errors["d"] is None
    assert errors["b"] is not None and errors["b"].startswith("wrong number of fields; its fields")
    assert errors["c"] == "there is no time zone 'Mars/Base' on this system"
    assert len(caplog.messages) == 3
    assert this.run(connection) > 1  # It does not try them in a loop.


def test_a_schedule_that_stays_locked_is_tried_ever_less_often_and_delays_no_other(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.schedules.add("locked", "payments", "Debit", every="1h")
    this = round_of()
    this.run(connection)
    with psycopg.connect(dsn) as operator:
        for late in (0.0, 2.0, 3600.0):
            began = time.monotonic()
            due(connection, "locked", datetime.now(UTC) - timedelta(seconds=late))
            operator.execute("SELECT FROM cmdbus.schedule WHERE name = 'locked' FOR UPDATE")
            this._timers.ticks_at = 0.0
            pause, passed = this.run(connection), time.monotonic() - began
            assert min(0.2 * late, 1.0) - passed <= pause <= min(0.2 * (late + passed), 1.0) + 0.01
            operator.rollback()
            run_to_the_end(this, connection)
        bus.schedules.add("other", "payments", "Debit", every="1h")
        due(connection, "locked", hours_ago(5))
        due(connection, "other", datetime.now(UTC) + timedelta(seconds=0.5))
        operator.execute("SELECT FROM cmdbus.schedule WHERE name = 'locked' FOR UPDATE")
        this._timers.ticks_at = 0.0
        assert this.run(connection) <= 0.5 or bus.schedules.list()[1].last_tick
        eventually(lambda: this.run(connection) > 0 and bus.schedules.list()[1].last_tick)


def test_a_schedule_that_a_node_cannot_read_is_tried_again_there(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.schedules.add("hourly", "payments", "Debit", "0 * * * *")
    connection.execute("UPDATE cmdbus.schedule SET terms.timezone = 'Mars/Base'")
    this = round_of()
    this.run(connection)
    assert 50 < this.run(connection) <= 61


def test_a_node_without_cronsim_leaves_cron_lines_to_others(
    dsn: str,
    bus: CommandBus,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus.schedules.add("cron", "payments", "Debit", "0 * * * *")
    bus.schedules.add("every", "payments", "Debit", every="1h")
    round_of().run(connection)
    for name in ("cron", "every"):
        due(connection, name, hours_ago(0))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "cronsim", None)
        this = round_of()
        for _ in range(3):
            this.run(connection)
            due(connection, "every", hours_ago(0))
            this._timers.ticks_at = 0.0
        assert [name for name, _ in ticks(dsn)] == ["every"]
        assert [m for m in caplog.messages if "pip install" in m] == caplog.messages
        assert len(caplog.messages) == 1
        assert bus.schedules.list()[0].last_error is None
    round_of().run(connection)
    assert sorted(name for name, _ in ticks(dsn)) == ["cron", "every"]


def test_a_worker_that_waits_learns_of_a_new_schedule_and_sends_its_ticks(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Its timers would be read in a minute."""

    lates: list[float] = []

    def sent_more_than(n: int) -> bool:
        return len(bus.query()) > n

    with running(dsn, handling(do_nothing)):
        eventually(lambda: rows(dsn, "SELECT FROM cmdbus.waiter"))
        next_tick = "SELECT next_tick FROM cmdbus.schedule"
        bus.schedules.add("hourly", "payments", "Debit", every="1h")
        eventually(lambda: scalar(connection, next_tick))
        for n in range(3):
            connection.execute(
                "UPDATE cmdbus.schedule SET next_tick = now() + '0.2 s',"
                " check_at = now() + '0.2 s'; SELECT cmdbus.wake_at(now())"
            )
            eventually(partial(sent_more_than, n))
            lates.append(scalar(connection, LATE))
        assert min(lates) < 0.5
        bus.schedules.pause("hourly")
        assert scalar(connection, next_tick) is None
        bus.schedules.resume("hourly")
        eventually(lambda: scalar(connection, next_tick))
        [command, *_] = bus.query()
        eventually(lambda: "COMPLETED" in kinds(bus, command.command_id))


def test_without_schedules_a_steward_sends_no_statement_for_them(
    dsn: str, connection: psycopg.Connection
) -> None:
    statements = ClaimStatements("cmdbus", 30)
    timers = Timers(statements, ["payments"], ["payments Debit"])
    timers.promote_and_read(connection, leases=False)
    assert timers.ticks_at == float("inf")
    connection.close()
    assert ScheduleRound(statements, timers).run(connection) == float("inf")


def test_the_first_of_thousands_is_found_by_an_index(connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO cmdbus.schedule (name, terms, data, next_tick, check_at)"
        " SELECT 's' || n, ROW('payments', 'Debit', NULL, 60, 'UTC', 'one', 0, 5, NULL, NULL)"
        "::cmdbus.schedule_columns, 'null', now() + n * interval '1 h', now() + n * interval '1 h'"
        " FROM generate_series(1, 5000) n"
    )
    values = {"skipped": ["s1"], "reads_cron": True, "count": 100}
    explain = b"EXPLAIN " + statement("read_due_schedules", "cmdbus")
    plan = [line for (line,) in connection.execute(explain, values).fetchall()]
    assert any("schedule_by_check_at" in line for line in plan), plan
    timers = Timers(ClaimStatements("cmdbus", 30), ["payments"], ["payments Debit"])
    timers.promote_and_read(connection, leases=False)
    assert timers.seen.ticks == pytest.approx(3600, abs=60)
