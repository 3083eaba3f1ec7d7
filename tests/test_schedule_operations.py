"""Schedules that an operator adds, sees, pauses, runs and removes."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psycopg
import pytest
from queries import scalar
from roles import role
from test_repeated_calls import losing_the_reply

from cmdbus import (
    AddedSchedule,
    CommandBus,
    InvalidOperationError,
    QueueFullError,
    ScheduleRecord,
    ShutdownError,
)
from cmdbus.database.executor import Executor
from cmdbus.declarations import Declarations
from cmdbus.errors import MissingRightError
from cmdbus.schedules import Schedule
from cmdbus.worker.declaring import declare

NIGHTLY = Schedule(
    name="nightly", domain="shop", type="Close", cron="0 3 * * *", timezone="Europe/Zurich"
)
HOURLY = Schedule(name="hourly", domain="shop", type="Count", every=3600)


#: That of a node which runs the type of NIGHTLY.
NODE = "VALUES (1, '30 s', clock_timestamp(), '{shop Close}')"


def declaring(connection: psycopg.Connection, app: str, *schedules: Schedule) -> list[str]:
    declarations = Declarations(schedules=schedules)
    return [text for _, text in declare(connection, Executor("cmdbus"), app, declarations)]


def listed(bus: CommandBus) -> dict[str, ScheduleRecord]:
    return {record.name: record for record in bus.schedules.list()}


def counts_from(connection: psycopg.Connection, name: str = "nightly") -> datetime:
    query = "SELECT counts_from FROM cmdbus.schedule WHERE name = %s"
    found: datetime = scalar(connection, query, name)
    return found


def test_schedules_are_listed_with_their_times_and_origin(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", NIGHTLY, HOURLY)
    bus.schedules.add(
        *("quarters", "mail", "Fetch"),
        every="15m",
        missed="none",
        jitter=30,
        priority="low",
        max_attempts=2,
        key="box",
        operator="ann",
        reason="new",
    )
    hourly, nightly, quarters = bus.schedules.list()
    assert (nightly.name, nightly.domain, nightly.type) == ("nightly", "shop", "Close")
    assert (nightly.cron, nightly.every, nightly.timezone) == ("0 3 * * *", None, "Europe/Zurich")
    assert nightly.next_tick is not None and nightly.next_tick.tzinfo is UTC
    assert nightly.next_tick.astimezone(ZoneInfo("Europe/Zurich")).hour == 3
    assert (nightly.added, nightly.declared_by, nightly.missed) == (None, ["shop"], "one")
    assert (hourly.times, nightly.times) == ("every 1h", "0 3 * * * Europe/Zurich")
    assert isinstance(quarters.added, AddedSchedule)
    assert (quarters.added.operator, quarters.added.reason) == ("ann", "new")
    assert (quarters.every, quarters.missed, quarters.jitter) == (900, "none", 30.0)
    assert (quarters.priority, quarters.max_attempts, quarters.key) == (10, 2, "box")
    assert (quarters.last_tick, quarters.last_command_id, quarters.paused) == (None, None, False)
    assert (quarters.left_out, quarters.left_out_at, quarters.last_error) == (0, None, None)


def test_an_added_schedule_overrides_a_declared_one_until_it_is_removed(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", NIGHTLY)
    bus.schedules.add("nightly", "shop", "Close", every="2h")
    declaring(connection, "shop", NIGHTLY)
    record = listed(bus)["nightly"]
    assert (record.every, record.declared_by) == (7200, ["shop"])
    bus.schedules.remove("nightly")
    record = listed(bus)["nightly"]
    assert (record.cron, record.added) == ("0 3 * * *", None)
    connection.execute(f"INSERT INTO cmdbus.node {NODE}")
    with pytest.raises(InvalidOperationError) as raised:
        bus.schedules.remove("nightly")
    assert str(raised.value) == (
        "the schedule nightly was not added: an app declares it, and a living node runs its type; "
        "pause it, or take it out of the app"
    )
    bus.schedules.add("more", "shop", "Close", every="2h")
    bus.schedules.remove("more")
    assert [*listed(bus)] == ["nightly"]


def test_what_an_app_that_is_gone_has_declared_can_be_removed(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", NIGHTLY, HOURLY)
    connection.execute(f"INSERT INTO cmdbus.node {NODE}")
    assert {name: each.handled for name, each in listed(bus).items()} == {
        "hourly": False,
        "nightly": True,
    }
    with role(connection.info.dsn, "operator") as operator:
        bus.schedules.remove("hourly", operator="ann", connection=operator)
    assert [*listed(bus)] == ["nightly"]
    [removed] = bus.domain_audit("shop")
    assert (removed.kind, removed.details["before"]["type"]) == ("SCHEDULE_REMOVED", "Count")
    declaring(connection, "shop", NIGHTLY, HOURLY)
    assert [*listed(bus)] == ["hourly", "nightly"]


def test_a_declaration_that_is_gone_takes_its_ticks_along(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", NIGHTLY, HOURLY)
    declaring(connection, "other", HOURLY)
    declaring(connection, "shop")
    assert [*listed(bus)] == ["hourly"]
    declaring(connection, "other")
    assert listed(bus) == {}


def test_a_changed_time_counts_from_now_and_other_changes_keep_the_next_tick(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", NIGHTLY)
    began = counts_from(connection)
    past = datetime(2026, 1, 1, tzinfo=UTC)
    set_past = "UPDATE cmdbus.schedule SET next_tick = %s, check_at = %s"
    connection.execute(set_past, (past, past))
    values = {"name": "nightly", "domain": "shop", "type": "Close"}
    same = Schedule(**values, cron="0 3 * * *", timezone="Europe/Zurich", data="[1]", priority=1)  # type: ignore[arg-type]
    declaring(connection, "shop", same)
    assert (counts_from(connection), listed(bus)["nightly"].next_tick) == (began, past)
    later = Schedule(**values, cron="0 4 * * *", timezone="Europe/Zurich")  # type: ignore[arg-type]
    declaring(connection, "shop", later)
    assert counts_from(connection) > began
    next_tick = listed(bus)["nightly"].next_tick
    assert next_tick is not None and next_tick > counts_from(connection)


def test_a_start_counts_from_now_where_the_clock_was_set_back(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Else the schedule would wait for a time that is far away."""
    declaring(connection, "shop", HOURLY)
    connection.execute(
        "UPDATE cmdbus.schedule SET last_tick = now() + '1 year', next_tick = now() + '1 year',"
        " check_at = now() + '1 year'"
    )
    declaring(connection, "shop", HOURLY)
    next_tick = listed(bus)["hourly"].next_tick
    assert next_tick is not None and next_tick < datetime.now(UTC) + timedelta(hours=2)


def test_two_apps_that_declare_one_name_are_told_so(connection: psycopg.Connection) -> None:
    declaring(connection, "a", NIGHTLY)
    other = Schedule(name="nightly", domain="mail", type="Send", every=60)
    [sentence] = declaring(connection, "b", other)
    assert sentence == (
        "the schedule nightly is also declared by a, in another way: the latest declaration "
        "holds, so give each app's a name of its own"
    )
    assert declaring(connection, "b", NIGHTLY) == []


def test_a_paused_schedule_has_no_ticks_until_it_is_resumed(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", HOURLY)
    bus.schedules.pause("hourly")
    declaring(connection, "shop", Schedule(name="hourly", domain="shop", type="Count", every=60))
    record = listed(bus)["hourly"]
    assert (record.paused, record.next_tick, record.every) == (True, None, 60)
    assert scalar(connection, "SELECT check_at FROM cmdbus.schedule") is None
    before = counts_from(connection, "hourly")
    bus.schedules.resume("hourly")
    assert counts_from(connection, "hourly") > before
    assert not listed(bus)["hourly"].paused


def test_run_sends_now_and_leaves_the_ticks(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.schedules.add("hourly", "shop", "Count", every="1h", data={"a": 1}, key="k")
    bus.schedules.pause("hourly")
    id_ = bus.schedules.run("hourly", operator="ann", reason="again")
    other = bus.schedules.run("hourly")
    assert other != id_ and listed(bus)["hourly"].last_tick is None
    command = bus.get("shop", id_)
    assert command is not None and (command.type, command.data) == ("Count", {"a": 1})
    [_, event] = bus.audit("shop", id_)
    assert (event.kind, event.operator, event.message) == ("SENT_BY_SCHEDULE", "ann", "again")
    assert event.details == {"schedule": "hourly"}
    bus.configure("shop", max_depth=2)
    with pytest.raises(QueueFullError, match="depth"):
        bus.schedules.run("hourly")
    bus.configure("shop", max_depth=None, accepting=False)
    with pytest.raises(ShutdownError):
        bus.schedules.run("hourly")


def test_next_shows_ticks_in_the_zone_of_the_schedule(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    declaring(connection, "shop", NIGHTLY, HOURLY)
    first, second, _ = bus.schedules.next("nightly", 3)
    assert first.tzinfo == ZoneInfo("Europe/Zurich") and first.hour == second.hour == 3
    assert first.astimezone(UTC) == listed(bus)["nightly"].next_tick
    [tick] = bus.schedules.next("hourly")
    assert timedelta(0) < tick - datetime.now(UTC) <= timedelta(hours=1)


CALLS: dict[str, Callable[[CommandBus, str], object]] = {
    "remove": lambda bus, name: bus.schedules.remove(name),
    "pause": lambda bus, name: bus.schedules.pause(name),
    "resume": lambda bus, name: bus.schedules.resume(name),
    "run": lambda bus, name: bus.schedules.run(name),
    "next": lambda bus, name: bus.schedules.next(name),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_unknown_name_is_one_sentence(bus: CommandBus, call: str) -> None:
    bus.schedules.add("hourly", "shop", "Count", every="1h")
    with pytest.raises(InvalidOperationError, match="no schedule 'hourli': did you mean 'hourly'"):
        CALLS[call](bus, "hourli")
    with pytest.raises(InvalidOperationError, match="no schedule 'x': cmdbus schedule list shows"):
        CALLS[call](bus, "x")
    with pytest.raises(ValueError, match="name of a schedule must be a letter and up to 99 more"):
        CALLS[call](bus, "a b")
    assert bus.domain_audit("shop")[1:] == []


def test_a_refused_addition_writes_nothing(bus: CommandBus) -> None:
    with pytest.raises(ValueError, match="data of the schedule x has 11 bytes as JSON: at most 5"):
        small = CommandBus("host=nowhere.invalid", max_bytes=5)
        small.schedules.add("x", "shop", "Count", every="1h", data="123456789")
    with pytest.raises(ValueError, match="it never matches"):
        bus.schedules.add("x", "shop", "Count", "0 0 30 2 *")
    with pytest.raises(ValueError, match="operator must be"):
        bus.schedules.add("x", "shop", "Count", every="1h", operator=" ")
    assert (bus.schedules.list(), bus.domain_audit("shop")) == ([], [])


def test_changes_are_recorded_in_the_domain(bus: CommandBus) -> None:
    bus.schedules.add("hourly", "shop", "Count", every="1h", operator="ann", reason="new")
    bus.schedules.add("hourly", "shop", "Count", every="1h")
    bus.schedules.pause("hourly", operator="bob")
    bus.schedules.resume("hourly")
    bus.schedules.remove("hourly", reason="old")
    added, paused, resumed, removed = bus.domain_audit("shop")
    assert (added.kind, added.operator, added.message) == ("SCHEDULE_ADDED", "ann", "new")
    assert (added.details["schedule"], added.details["before"]) == ("hourly", None)
    assert added.details["after"]["every"] == 3600
    assert (paused.kind, paused.operator) == ("SCHEDULE_PAUSED", "bob")
    assert [paused.details[each]["paused"] for each in ("before", "after")] == [False, True]
    assert resumed.kind == "SCHEDULE_RESUMED"
    assert (removed.kind, removed.message, removed.details["after"]) == (
        *("SCHEDULE_REMOVED", "old"),
        None,
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda bus: bus.schedules.add("hourly", "shop", "Count", every="2h", operator="ann"),
        lambda bus: bus.schedules.pause("hourly", operator="ann"),
    ],
)
def test_a_change_whose_reply_is_lost_is_made_once(
    dsn: str, bus: CommandBus, call: Callable[[CommandBus], object]
) -> None:
    """Also if another operator has changed it again before the repetition."""
    bus.schedules.add("hourly", "shop", "Count", every="1h")
    with losing_the_reply(dsn, call, "cmdbus.domain_event"):
        bus.schedules.add("hourly", "shop", "Count", every="3h", operator="bob")
        bus.schedules.resume("hourly", operator="bob")
    operators = [event.operator for event in bus.domain_audit("shop")]
    assert operators == [None, "ann", "bob", "bob"]
    record = listed(bus)["hourly"]
    assert (record.every, record.paused) == (3 * 3600, False)


def test_a_run_whose_reply_is_lost_sends_one_command(dsn: str, bus: CommandBus) -> None:
    bus.schedules.add("hourly", "shop", "Count", every="1h")
    with losing_the_reply(dsn, lambda b: b.schedules.run("hourly", operator="ann")):
        pass
    assert len(bus.query()) == 1


def test_operators_read_the_data_of_a_schedule_and_monitors_do_not(
    dsn: str, bus: CommandBus
) -> None:
    bus.schedules.add("hourly", "shop", "Count", every="1h", data={"shelf": 3})
    with role(dsn, "operator") as operator:
        assert bus.schedules.data("hourly", connection=operator) == {"shelf": 3}
    with role(dsn, "monitor") as monitor, pytest.raises(MissingRightError, match="--operator"):
        bus.schedules.data("hourly", connection=monitor)
    with pytest.raises(InvalidOperationError, match="there is no schedule 'hourli': did you mean"):
        bus.schedules.data("hourli")


def test_operators_change_schedules_and_monitors_see_them(dsn: str, bus: CommandBus) -> None:
    with role(dsn, "operator") as operator:
        bus.schedules.add("hourly", "shop", "Count", every="1h", connection=operator)
        bus.schedules.pause("hourly", connection=operator)
        bus.schedules.resume("hourly", connection=operator)
        bus.schedules.run("hourly", connection=operator)
        assert len(bus.schedules.list(connection=operator)) == 1
    with role(dsn, "monitor") as monitor:
        assert len(bus.schedules.list(connection=monitor)) == 1
        assert len(bus.schedules.next("hourly", connection=monitor)) == 1
        with pytest.raises(MissingRightError, match="--operator"):
            bus.schedules.run("hourly", connection=monitor)
    with role(dsn, "worker") as worker:
        declaring(worker, "shop", NIGHTLY)
    with role(dsn, "producer") as producer:
        with pytest.raises(MissingRightError, match="--monitor"):
            bus.schedules.list(connection=producer)
        with pytest.raises(MissingRightError, match="--operator"):
            bus.schedules.remove("hourly", connection=producer)
    assert [*listed(bus)] == ["hourly", "nightly"]
