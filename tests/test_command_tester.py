"""What `CommandTester` shows, moves and deletes, and what it refuses."""

import sys
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
import trips
from queries import count, counts, rows
from trips import ALL, ShortBooking, Trip

from cmdbus import Command, CommandBus, Context, HandlerRegistry, InvalidOperationError
from cmdbus.database.statements import load
from cmdbus.errors import SchemaError
from cmdbus.testing import CommandTester
from cmdbus.testing.server import prepare, prepared_database

#: What belongs to the schema itself, and what retention has done.
KEPT = {"migration", "limit_change", "removal"}


@pytest.fixture
def tester(dsn: str) -> CommandTester:
    return CommandTester(dsn)


def registry_of(type: str, rate: str | None = None) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handler("d", type, concurrency=1, rate=rate)
    def nothing(command: Command, context: Context) -> None:
        pass

    return registry


def test_a_process_takes_all_its_steps_until_idle(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection
) -> None:
    process_id = bus.start_process("trips", "Booking", Trip(), connection=sender)
    done = tester.run_commands(trips.registry_of(), sender, until="idle")
    assert [each.type for each in done if each.domain == "bookings"] == ["Flight", "Hotel", "Car"]
    process = bus.get_process(process_id, connection=sender)
    assert process is not None and (process.status, process.state["seen"]) == ("COMPLETED", ALL)


def test_travel_ends_the_step_of_a_process_at_its_deadline(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection
) -> None:
    registry = HandlerRegistry()
    registry.register_process(ShortBooking())
    for type in ("Flight", "CancelFlight"):  # The hotel never answers.
        registry.register("bookings", type, lambda command, context: None)
    bus.start_process("trips", "Booking", Trip(), connection=sender)
    tester.run_commands(registry, sender, until="idle")
    tester.travel(minutes=1, connection=sender)
    done = tester.run_commands(registry, sender, until="idle")
    assert [each.type for each in done if each.domain == "bookings"] == ["CancelFlight"]


def test_a_handler_that_commits_the_tests_own_session_cannot_be_undone_alone(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection
) -> None:
    registry = HandlerRegistry()

    @registry.handler("d", "T")
    def ends_the_savepoint_around_it(command: Command, context: Context) -> None:
        context.connection.execute("RELEASE outer_one")
        raise OSError("no")

    bus.send("d", "T", connection=sender)
    sender.execute("SAVEPOINT outer_one")
    with pytest.raises(InvalidOperationError, match="committed the session of the test itself"):
        tester.run_commands(registry, sender)


@pytest.mark.long  # It waits for a lock.
def test_rows_that_another_transaction_has_locked_are_not_cleared(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection
) -> None:
    bus.send("d", "T")
    tester.run_commands(registry_of("T"), sender)
    with pytest.raises(InvalidOperationError, match="while a transaction has locked some of them"):
        tester.clear()


def test_travel_lets_a_rate_start_the_next_command(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection
) -> None:
    registry = registry_of("T", rate="1/hour")
    for _ in range(2):
        bus.send("d", "T", connection=sender)
    assert len(tester.run_commands(registry, sender, "idle")) == 1
    tester.travel(hours=1, connection=sender)
    assert len(tester.run_commands(registry, sender, "idle")) == 1


def test_sent_lists_what_was_sent_instead(
    tester: CommandTester, bus: CommandBus, sender: psycopg.Connection
) -> None:
    with pytest.raises(AssertionError, match=r"Nothing at all was sent .* pass its connection="):
        tester.sent("d", "T", connection=sender)
    bus.send("d", "T", {"a": 1, "b": 2}, connection=sender)
    [found] = tester.sent("d", "T", {"a": 1}, connection=sender)
    assert found.data == {"a": 1, "b": 2}
    tester.sent("d", "U", count=0, connection=sender)
    bus.send("d", "Word", "yes", connection=sender)
    tester.sent(data="yes", count=1, connection=sender)
    tester.sent(count=2, connection=sender)
    with pytest.raises(AssertionError) as raised:
        tester.sent("d", "T", {"a": 2}, connection=sender)
    assert str(raised.value) == (
        'expected at least one of d/T with {"a": 2}, and 0 were sent. All that was sent (2):\n'
        '  d/T {"a": 1, "b": 2} PENDING\n'
        '  d/Word "yes" PENDING'
    )


def test_sent_knows_all_commands_however_many_there_are(
    tester: CommandTester, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmdbus.testing.tester._PORTION", 2)
    for number in range(5):
        bus.send("d", "T", number)
    assert [each.data for each in tester.sent("d", "T", count=5)] == [*range(5)]


def test_clear_leaves_nothing_but_the_schema(
    tester: CommandTester, bus: CommandBus, dsn: str
) -> None:
    registry = registry_of("T")
    bus.send("d", "T")
    bus.configure("d", max_depth=5)
    tester.run_commands(registry)
    tester.clear()
    assert {name for name, count in counts(dsn).items() if count} <= KEPT


def test_clear_names_every_table_that_is_written(dsn: str) -> None:
    text = load()["clear_tables"]
    missing = {name for name in counts(dsn) if f"FROM {{schema}}.{name};" not in text}
    assert missing == {*KEPT, "effect"}


@pytest.mark.parametrize(
    "use",
    [
        lambda tester, inside: tester.check(),
        lambda tester, inside: tester.clear(),
        lambda tester, inside: tester.travel(hours=1),
        lambda tester, inside: tester.run_commands(registry_of("T"), inside),
    ],
)
def test_a_database_on_which_workers_have_run_before_is_refused(
    dsn: str,
    bus: CommandBus,
    sender: psycopg.Connection,
    use: Callable[[CommandTester, psycopg.Connection], object],
) -> None:
    bus.send("d", "T")
    worker = "INSERT INTO cmdbus.incarnation (id, worker, lease, started_at)"
    sender.execute(f"{worker} VALUES (1, 'new:1', '30 s', clock_timestamp())")
    sender.commit()
    CommandTester(dsn).check()  # These tests have started it.
    sender.execute(f"{worker} VALUES (2, 'web:77', '30 s', clock_timestamp() - interval '7 d')")
    sender.commit()
    with pytest.raises(InvalidOperationError, match=r"not for these tests alone: .* web:77, sta"):
        use(CommandTester(dsn), sender)
    sender.rollback()
    assert count(sender, "cmdbus.ready") == 1


def test_travel_moves_every_time_that_something_waits_for(dsn: str) -> None:
    """A time that is new must be moved, or be named here."""
    columns = rows(
        dsn,
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'cmdbus'::regnamespace AND c.relkind IN ('r', 'p')"
        " AND NOT c.relispartition AND NOT a.attisdropped"
        " AND format_type(a.atttypid, NULL) ~ 'timestamp|finite_time'",
    )
    over = {
        *["finished", "event", "domain_event", "process_event", "breaker_event", "batch_state"],
        *["managed_process", "migration", "incarnation", "node", "waiter", "domain"],
        *["published_node", "fleet_watch", "rollup", "rollup_source", "depth_sample", "bridge"],
    }
    declared = {"declared_at", "set_at", "added_at"}
    text = load()["move_times"]
    updates = {part.split()[0]: part for part in text.split("UPDATE {schema}.")[1:]}
    missing = {
        f"{table}.{column}"
        for table, column in columns
        if table not in over
        and column not in declared
        and f"{column} = " not in updates.get(table, "")
    }
    assert missing == {"scheduled.lease_until", "limited.lease_until"}  # nobody has a lease there


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda tester: tester.travel(), r"say how far, at most 100 years, as in travel\("),
        (lambda tester: tester.travel(days=4_000_000), "say how far, at most 100 years"),
        (
            lambda tester: tester.travel(years=1),
            r"timedelta, as in travel\(days=2, hours=1\), not in years=1",
        ),
        (lambda tester: tester.travel(hours=float("nan")), "not in hours=nan"),
        (lambda tester: tester.travel(5), "say how far in one timedelta or in its arguments"),
        (lambda tester: tester.travel(timedelta(1), hours=1), "one timedelta or in its arg"),
        (lambda tester: tester.run_commands(HandlerRegistry()), "the registry has no handlers"),
        (lambda tester: tester.run_commands(registry_of("T")), "give a connection, or make"),
        (lambda tester: tester.run_commands(registry_of("T"), until="done"), "must be 'idle'"),
    ],
)
def test_a_mistake_is_refused_by_a_sentence(
    call: Callable[[CommandTester], object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cmdbus.django.apps", raising=False)  # of another test
    with pytest.raises(ValueError, match=sentence):
        call(CommandTester())


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda c: setattr(c, "autocommit", True), "has no open transaction"),
        (
            lambda c: setattr(c, "isolation_level", psycopg.IsolationLevel.SERIALIZABLE),
            "the transaction of connection is serializable",
        ),
    ],
)
def test_a_transaction_that_cannot_be_used_is_refused(
    dsn: str, prepare: Callable[[psycopg.Connection], None], sentence: str
) -> None:
    with psycopg.connect(dsn) as connection:
        prepare(connection)
        with pytest.raises(ValueError, match=sentence):
            CommandTester().run_commands(registry_of("T"), connection)


def test_a_transaction_in_a_database_without_the_schema_is_refused_and_stays_usable(
    dsn: str,
) -> None:
    with psycopg.connect(dsn) as connection:
        with pytest.raises(SchemaError, match="schema 'elsewhere' is not installed in database"):
            CommandTester(schema="elsewhere").run_commands(registry_of("T"), connection)
        connection.execute("SELECT 1")


def test_the_database_of_a_project_outlives_another_build_of_cmdbus(
    dsn: str, bus: CommandBus, sender: psycopg.Connection
) -> None:
    bus.send("d", "T", connection=sender)
    sender.execute("UPDATE cmdbus.migration SET digest = 'another' WHERE version = 1")
    sender.commit()
    prepare(dsn)
    assert CommandTester(dsn).sent(count=0) == []


def test_two_runs_at_the_same_time_have_databases_of_their_own(dsn: str, bus: CommandBus) -> None:
    try:
        with prepared_database(dsn, None) as first:
            bus.send("d", "T")
            with prepared_database(dsn, None) as second:
                assert CommandTester(second).sent(count=0) == []
            CommandTester(first).sent("d", "T", count=1)
        with prepared_database(dsn, None) as later:
            assert later == first != second
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{connection.info.dbname}_2"'.encode())
