"""`CommandTester`: due commands run in the test's thread, inside its transaction or outside."""

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from databases import Databases
from psycopg.rows import dict_row
from queries import counts

from cmdbus import (
    Breaker,
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    InvalidOperationError,
    RetryPolicy,
)
from cmdbus.testing import CommandTester
from cmdbus.testing.executed import Executed


@pytest.fixture(scope="module")
def dsn(databases: Databases, template: str) -> Iterator[str]:
    """One for all of these tests, which leave nothing in it."""
    with databases.fresh(template) as name:
        yield databases.dsn_of(name)


@pytest.fixture
def tester(dsn: str) -> Iterator[CommandTester]:
    tester = CommandTester(dsn)
    yield tester
    tester.clear()
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM effect")


@pytest.fixture
def inside(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection whose transaction is rolled back; then nothing is in any table that was not
    there before."""
    before = counts(dsn)
    with psycopg.connect(dsn) as connection:
        yield connection
        connection.rollback()
    assert counts(dsn) == before


@pytest.fixture(params=["inside", "committed"])
def place(request: pytest.FixtureRequest) -> psycopg.Connection | None:
    """The connection that everything is given: in a transaction of the test's, or none."""
    return request.getfixturevalue("inside") if request.param == "inside" else None


def wrote(command: Command, context: Context) -> object:
    context.connection.execute(
        "INSERT INTO effect (command_id, attempt) VALUES (%s, %s)",
        (command.command_id, context.attempt),
    )
    if command.data == "fail":
        raise OSError("no")
    if command.data == "refuse":
        raise BusinessRuleError("REFUSED", "it is not allowed")
    return {"data": command.data}


def registry_of(*types: str, **options: object) -> HandlerRegistry:
    registry = HandlerRegistry()
    for type in types:
        registry.register("d", type, wrote, **options)  # type: ignore[arg-type]
    return registry


def ends(done: list[Executed]) -> list[tuple[str, str]]:
    return [(each.type, each.outcome) for each in done]


def test_a_command_runs_with_all_its_effects(
    tester: CommandTester, bus: CommandBus, place: psycopg.Connection | None
) -> None:
    sent = bus.send("d", "T", {"n": 1}, connection=place)
    [done] = tester.run_commands(registry_of("T"), place)
    assert (done.command_id, done.outcome, done.attempt) == (sent, "COMPLETED", 1)
    assert done.result == {"data": {"n": 1}}
    assert [each.status for each in bus.query(connection=place)] == ["COMPLETED"]


def test_commands_run_in_the_order_of_priority_and_of_sending(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    registry = registry_of("A", "B", "D")
    registry.register("c", "C", wrote)
    for domain, type, priority in [
        *[("d", "A", "low"), ("d", "B", "normal"), ("c", "C", "normal"), ("d", "D", "high")],
    ]:
        bus.send(domain, type, priority=priority, connection=inside)
    done = tester.run_commands(registry, inside)
    assert [each.type for each in done] == ["D", "B", "C", "A"]


def test_a_failed_attempt_is_undone_and_retried_when_its_time_has_come(
    tester: CommandTester, bus: CommandBus, place: psycopg.Connection | None
) -> None:
    registry = registry_of("T", retry=RetryPolicy(max_attempts=2, backoff=(600,), jitter=0))
    sent = bus.send("d", "T", "fail", connection=place)
    [done] = tester.run_commands(registry, place, "idle", raises=False)
    assert (done.outcome, done.retry_in, done.error_code) == ("RETRY", 600, "OSError")
    assert tester.run_commands(registry, place, "idle") == []
    tester.travel(minutes=10, connection=place)
    with pytest.raises(OSError, match="no") as raised:
        tester.run_commands(registry, place)
    assert f"in attempt 2 of command {sent} (d/T), which was settled as TROUBLE" in str(
        raised.value.__notes__
    )
    record = bus.get("d", sent, connection=place)
    assert record is not None and record.status == "IN_TROUBLESHOOTING_QUEUE"


def test_a_command_that_is_given_back_goes_on_from_its_checkpoint(
    tester: CommandTester, bus: CommandBus, place: psycopg.Connection | None
) -> None:
    seen = []

    def count_down(command: Command, context: Context) -> None:
        seen.append(left := context.resumed if context.resumed is not None else command.data)
        if left:
            context.checkpoint(left - 1)
            context.again(delay=600 if left == 1 else 0)

    registry = HandlerRegistry()
    registry.register("d", "T", count_down)
    bus.send("d", "T", 2, connection=place)
    done = tester.run_commands(registry, place, "idle")
    assert [(each.outcome, each.charged, each.failed) for each in done] == [
        ("RETRY", False, False),
        ("RETRY", False, False),
    ]
    tester.travel(minutes=10, connection=place)
    assert ends(tester.run_commands(registry, place)) == [("T", "COMPLETED")]
    assert seen == [2, 1, 0]


def test_all_commands_run_before_the_first_error_is_raised(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    for data in ("refuse", "fail", 3):
        bus.send("d", "T", data, connection=inside)
    with pytest.raises(BusinessRuleError):
        tester.run_commands(registry_of("T"), inside)
    states = [each.status for each in bus.query(connection=inside)]
    assert states == ["COMPLETED", "PENDING", "FAILED"]
    [(attempts,)] = inside.execute("SELECT count(*) FROM effect").fetchall()
    assert attempts == 1


def test_a_limited_type_runs_one_after_another_and_leaves_what_is_sent_meanwhile(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    registry = HandlerRegistry()

    @registry.handler("d", "T", concurrency=1)
    def again(command: Command, context: Context) -> None:
        if command.data:
            context.connection.execute("SELECT cmdbus.send('d', 'T', %s)", (str(command.data - 1),))

    for _ in range(2):
        bus.send("d", "T", 1, connection=inside)
    assert len(tester.run_commands(registry, inside)) == 2
    assert len(tester.run_commands(registry, inside, "idle")) == 2


def test_travel_moves_a_schedule_to_its_tick(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    registry = HandlerRegistry()
    registry.schedule(every=timedelta(hours=1))(registry.handler("d", "T")(wrote))
    assert tester.run_commands(registry, inside, "idle") == []
    tester.travel(hours=1, connection=inside)
    assert ends(tester.run_commands(registry, inside, "idle")) == [("T", "COMPLETED")]


def test_travel_lets_an_open_breaker_probe(
    tester: CommandTester, bus: CommandBus, place: psycopg.Connection | None
) -> None:
    registry = HandlerRegistry()
    registry.breaker(Breaker("shop", failures=1, window=60, cooldown=600))
    answers = [TimeoutError("slow"), None, None]

    @registry.handler("d", "T", breaker="shop", retry=RetryPolicy(backoff=(1,), jitter=0))
    def call(command: Command, context: Context) -> None:
        if answer := answers.pop(0):
            raise answer

    for _ in range(2):
        bus.send("d", "T", connection=place)
    tester.run_commands(registry, place, "idle", raises=False)
    tester.travel(minutes=1, connection=place)
    assert tester.run_commands(registry, place, "idle") == []
    assert len(answers) == 2
    tester.travel(minutes=10, connection=place)
    assert {*ends(tester.run_commands(registry, place, "idle"))} == {("T", "COMPLETED")}
    assert answers == []


def test_travel_ends_the_lease_of_a_worker_that_has_died(
    tester: CommandTester, bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.send("d", "T")
    connection.execute(
        "UPDATE cmdbus.ready SET claimer = 7, lease_until = clock_timestamp() + interval '30 s'"
    )
    assert tester.run_commands(registry_of("T")) == []
    tester.travel(minutes=1)
    assert ends(tester.run_commands(registry_of("T"))) == [("T", "COMPLETED")]


def test_commit_is_refused_in_a_tests_transaction(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    registry = HandlerRegistry()
    kinds = []

    @registry.handler("d", "T")
    def commits(command: Command, context: Context) -> None:
        kinds.append(type(context.connection.execute("SELECT 1").fetchone()))
        with context.connection.transaction():
            context.connection.execute("SELECT 1")
        context.connection.commit()

    inside.row_factory = dict_row  # type: ignore[assignment]  # a worker's rows are tuples
    bus.send("d", "T", connection=inside)
    with pytest.raises(InvalidOperationError, match=r"context\.connection\.commit\(\) would end"):
        tester.run_commands(registry, inside)
    assert kinds == [tuple]


def test_an_error_of_the_database_leaves_the_tests_transaction_usable(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    registry = HandlerRegistry()

    @registry.handler("d", "Own")
    def own(command: Command, context: Context) -> None:
        inside.execute("SELECT 1 / 0")

    @registry.handler("d", "Given")
    def given(command: Command, context: Context) -> None:
        context.connection.execute("SELECT 1 / 0")

    for type in ("Own", "Given"):
        bus.send("d", type, connection=inside)
    done = tester.run_commands(registry, inside, raises=False)
    assert [each.error_code for each in done] == ["DivisionByZero"] * 2


def test_an_outcome_that_cannot_be_stored_leaves_the_tests_transaction_usable(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    inside.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION $$not this one$$; END';"
        "CREATE TRIGGER refuse BEFORE INSERT ON cmdbus.finished FOR EACH ROW"
        " EXECUTE FUNCTION refuse()"
    )
    registry = HandlerRegistry()
    registry.register("d", "T", lambda command, context: None)
    bus.send("d", "T", connection=inside)
    [done] = tester.run_commands(registry, inside, raises=False)
    assert (done.outcome, done.error_code) == ("TROUBLE", "OUTCOME_NOT_STORABLE")


def test_hooks_of_the_process_run_around_the_commands(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    registry, order = HandlerRegistry(), list[str]()
    registry.on_start(lambda: order.append("start"))
    registry.on_stop(lambda: order.append("stop"))
    registry.register("d", "T", lambda command, context: order.append("run"))
    bus.send("d", "T", connection=inside)
    tester.run_commands(registry, inside)
    assert order == ["start", "run", "stop"]


def test_an_interrupt_or_a_failure_of_the_test_ends_the_run(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    registry, runs = HandlerRegistry(), list[int]()

    @registry.handler("d", "T")
    def interrupted(command: Command, context: Context) -> None:
        runs.append(1)
        raise KeyboardInterrupt

    for _ in range(2):
        bus.send("d", "T", connection=inside)
    with pytest.raises(KeyboardInterrupt):
        tester.run_commands(registry, inside, raises=False)
    assert runs == [1]


def test_commands_run_inside_a_savepoint_of_the_tests(
    tester: CommandTester, bus: CommandBus, inside: psycopg.Connection
) -> None:
    registry = registry_of("T")
    with inside.transaction(force_rollback=True):
        for data in (1, "fail"):
            bus.send("d", "T", data, connection=inside)
        assert len(tester.run_commands(registry, inside, raises=False)) == 2
    assert bus.query(connection=inside) == []
    with inside.transaction():
        bus.send("d", "T", connection=inside)
        tester.run_commands(registry, inside)
    assert len(tester.sent("d", "T", count=1, connection=inside)) == 1
