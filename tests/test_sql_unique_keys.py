"""Unique keys in SQL: which command holds one, for how long, and what a conflict does."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from claiming import Claimer, ended
from handlers import beside, connect, found, kinds
from queries import await_lock_waits, claim_by_hand, count, rows, scalar

from cmdbus import CommandBus, SendRequest, Status
from cmdbus.worker.claims.outcomes import Outcome, OutcomeKind

HELD = psycopg.errors.UniqueViolation


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with connect(dsn) as connection:
        yield connection


def send(connection: psycopg.Connection, unique: str | None = "report", **more: Any) -> UUID:
    """By default to `payments`, of type Debit."""
    given = {"domain": "payments", "type": "Debit", "unique": unique, **more}
    arguments = ", ".join(f"p_{name} => %({name})s" for name in given)
    [row] = connection.execute(f"SELECT cmdbus.send({arguments})".encode(), given).fetchall()
    return UUID(str(row[0]))


def assert_held(connection: psycopg.Connection, holder: UUID, **more: Any) -> None:
    """Each way of a conflict says so, and a refused send has written nothing."""
    before = rows_of(connection)
    with pytest.raises(HELD, match=f"command {holder} of domain payments has the unique key"):
        send(connection, **more)
    assert send(connection, on_conflict="existing", **more) == holder
    assert rows_of(connection) == before


def rows_of(connection: psycopg.Connection) -> dict[str, int]:
    tables = ("ready", "scheduled", "finished", "identity", "unique_command", "event")
    return {table: count(connection, f"cmdbus.{table}") for table in tables}


def test_a_key_is_held_until_its_command_has_ended(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    claimer = Claimer(connection)
    first = send(connection)
    assert found(bus, first).command_id == first
    assert_held(connection, first)
    claim = claimer.claim_one()
    assert_held(connection, first)
    with pytest.raises(HELD):
        send(connection, on_conflict="replace")
    claimer.settle(ended(claim))
    second = send(connection)
    assert_held(connection, second)


def test_a_key_is_held_through_retries_and_troubleshooting(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    claimer = Claimer(connection)
    first = send(connection)
    retry = Outcome(kind=OutcomeKind.RETRY, delay=0.0, code="LATER", message="later")
    claimer.settle(ended(claimer.claim_one(), retry))
    assert count(connection, "cmdbus.scheduled") == 1
    assert_held(connection, first)
    scalar(connection, "SELECT cmdbus.promote(1, 1000, '{}')")
    trouble = Outcome(kind=OutcomeKind.TROUBLE, code="NEVER", message="never")
    claimer.settle(ended(claimer.claim_one(), trouble))
    assert_held(connection, first)
    with pytest.raises(HELD):
        send(connection, on_conflict="replace")
    bus.troubleshooting.retry("payments", first, operator="ann")
    assert_held(connection, first)
    claimer.settle(ended(claimer.claim_one(), trouble))
    bus.troubleshooting.cancel("payments", first, operator="ann")
    assert send(connection) != first


def test_a_key_that_is_held_until_the_start_is_free_once_a_worker_has_claimed_it(
    dsn: str, connection: psycopg.Connection
) -> None:
    first = send(connection, unique_until="started")
    assert_held(connection, first, unique_until="started")
    claim_by_hand(dsn, first)
    second = send(connection, unique_until="started")
    assert_held(connection, second)


def test_the_holder_says_how_long_it_holds(dsn: str, connection: psycopg.Connection) -> None:
    first = send(connection)
    claim_by_hand(dsn, first)
    assert_held(connection, first, unique_until="started")
    assert_held(connection, first, unique_until="0.001")


def test_a_key_that_is_held_for_a_period_is_held_that_long_whatever_becomes_of_the_command(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    claimer = Claimer(connection)
    first = send(connection, unique_until="3600")
    claimer.settle(ended(claimer.claim_one()))
    assert_held(connection, first)
    connection.execute("TRUNCATE cmdbus.finished")
    assert_held(connection, first)
    ends = scalar(
        connection,
        "SELECT extract(epoch FROM held_until - clock_timestamp())::float"
        " FROM cmdbus.unique_command",
    )
    assert 3500 < ends <= 3600
    end_periods = "UPDATE cmdbus.unique_command SET held_until = clock_timestamp()"
    connection.execute(end_periods)
    second = send(connection, unique_until="0.001")
    connection.execute(end_periods)
    third = send(connection, on_conflict="replace")
    assert found(bus, second).status is Status.PENDING
    assert_held(connection, third)


def test_a_canceled_command_holds_no_key(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    for until in ("finished", "started", "3600"):
        first = send(connection, until, unique_until=until)
        bus.cancel("payments", first)
        assert send(connection, until) != first


def test_a_key_belongs_to_a_domain(connection: psycopg.Connection) -> None:
    first = send(connection)
    other = send(connection, domain="orders")
    assert_held(connection, first)
    assert send(connection, domain="orders", on_conflict="existing") == other
    assert send(connection, "another") != first
    assert send(connection, None) != send(connection, None)


def test_a_command_that_never_began_is_replaced(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    first = send(connection, reply_to="orders")
    second = send(connection, on_conflict="replace", delay="1 hour")
    third = send(connection, on_conflict="replace")
    for id_, successor in ((first, second), (second, third)):
        record = found(bus, id_)
        assert (record.status, record.error_code) == (Status.CANCELED, "REPLACED")
        assert record.error_message == f"replaced by command {successor}"
        assert kinds(bus, id_)[-1] == "REPLACED"
    assert [record.command_id for record in bus.query("payments", "PENDING")] == [third]
    [reply] = bus.query("orders")
    assert isinstance(reply.data, dict)
    assert (reply.data["command_id"], reply.data["outcome"]) == (str(first), "CANCELED")
    assert reply.data["result"]["code"] == "REPLACED"


def test_a_command_that_waits_at_a_limit_is_replaced_too(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.limits.set("payments", "Debit", concurrency=1, operator="ann")
    first = send(connection)
    assert count(connection, "cmdbus.limited") == 1
    assert_held(connection, first)
    second = send(connection, on_conflict="replace")
    assert found(bus, first).error_code == "REPLACED"
    assert count(connection, "cmdbus.limited") == 1
    assert_held(connection, second)


def test_a_replaced_command_of_a_batch_counts_as_canceled(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    first = send(connection)
    batch_id = bus.create_batch("payments", [SendRequest("payments", "Debit")])
    connection.execute(
        "UPDATE cmdbus.ready SET batch_id = CASE command_id WHEN %s THEN %s::uuid END",
        (first, batch_id),
    )
    send(connection, on_conflict="replace")
    batch = bus.wait_batch(batch_id)
    assert (batch.canceled, batch.remaining) == (1, 0)


def test_a_command_that_has_begun_is_not_replaced(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Nor one that waits for its next attempt, or whose worker was lost."""
    first = send(connection)
    claim_by_hand(dsn, first, "-1 s")
    with pytest.raises(HELD, match=str(first)):
        send(connection, on_conflict="replace")
    bus.reschedule("payments", first, delay=60)
    with pytest.raises(HELD, match=str(first)):
        send(connection, on_conflict="replace")
    assert found(bus, first).status is Status.PENDING


def test_a_send_that_is_refused_for_another_reason_replaces_nothing(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    first = send(connection)
    taken = send(connection, None, domain="payments")
    before = rows_of(connection)
    with pytest.raises(HELD, match="an id is taken once"):
        send(connection, on_conflict="replace", command_id=taken)
    with pytest.raises(HELD, match="an id is taken once"):
        send(connection, "free", command_id=taken)
    bus.configure("payments", accepting=False)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        send(connection, on_conflict="replace")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        send(connection, "free")
    assert rows_of(connection) == before
    assert found(bus, first).status is Status.PENDING


def test_a_full_domain_takes_a_command_in_place_of_another(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    bus.configure("payments", max_depth=1)
    send(connection)
    assert_held(connection, send(connection, on_conflict="replace"))


def test_a_command_that_is_sent_again_without_its_key_does_not_hold_it(
    dsn: str, connection: psycopg.Connection
) -> None:
    """By a sender who chooses its ids, once the history is gone."""
    id_ = uuid4()
    send(connection, command_id=id_)
    connection.execute("DELETE FROM cmdbus.ready; DELETE FROM cmdbus.identity")
    send(connection, None, command_id=id_)
    assert send(connection) != id_


def test_a_key_and_its_command_come_and_go_with_their_transaction(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    first = send(connection)
    with psycopg.connect(dsn) as undone:
        second = send(undone, on_conflict="replace")
        assert send(undone, on_conflict="existing") == second
        undone.rollback()
    assert_held(connection, first)
    with psycopg.connect(dsn) as moving:
        scalar(moving, "SELECT cmdbus.cancel('payments', %s, NULL, false, 'ann')", first)
        second = send(moving)
    assert_held(connection, second)


def test_a_wrong_argument_of_a_unique_send_is_named(connection: psycopg.Connection) -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"unique": ""}, "p_unique must be text of 1 to 200 characters"),
        ({"unique": "x" * 201}, "p_unique must be text of 1 to 200 characters, and has 201"),
        ({"on_conflict": "ignore"}, "p_on_conflict must be reject, existing or replace"),
        ({"on_conflict": None}, "p_on_conflict must be reject, existing or replace"),
        *(
            ({"unique_until": until}, "p_unique_until must be finished, started or a number")
            for until in ("", "-1", "0", "1e9", "NaN", "99999999999", "3155760001", None)
        ),
        ({"unique": None, "on_conflict": "replace"}, "p_on_conflict and p_unique_until go with"),
        ({"unique": None, "unique_until": "60"}, "p_on_conflict and p_unique_until go with"),
    )
    for more, sentence in refused:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=sentence):
            send(connection, **more)
    assert rows_of(connection) == dict.fromkeys(rows_of(connection), 0)


def test_many_keys_are_taken_in_one_call(connection: psycopg.Connection) -> None:
    first = send(connection, "b")
    ids = [uuid4() for _ in range(3)]
    refused = connection.execute(
        "SELECT nth, holder FROM cmdbus.take_unique_keys(%s, %s, %s, %s, %s)",
        (["payments"] * 3, ["c", "b", "a"], ids, ["reject"] * 3, ["finished", "started", "60"]),
    ).fetchall()
    assert refused == [(2, first)]
    assert count(connection, "cmdbus.unique_command") == 3


def retain(connection: psycopg.Connection, size: int = 1000) -> int:
    """Rows that a steward removes, over all of the table."""
    total, domain, key = 0, "", ""
    while domain is not None:
        row = connection.execute(
            "SELECT * FROM cmdbus.retain_unique(%s, %s, %s)", (size, domain, key)
        ).fetchone()
        assert row is not None
        removed, domain, key = row
        total += removed
    return total


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_retention_removes_the_rows_of_keys_that_no_command_holds(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, size: int
) -> None:
    kept = [send(connection, f"k{n}", unique_until="3600") for n in range(2)]
    kept += [send(connection, f"k{n}", domain="orders") for n in range(3)]
    canceled = [send(connection, f"c{until}", unique_until=until) for until in ("finished", "9")]
    started = send(connection, "s", unique_until="started")
    claim_by_hand(dsn, started)
    for id_ in canceled:
        bus.cancel("payments", id_)
    assert retain(connection, size) == 3
    held = "SELECT command_id FROM cmdbus.unique_command"
    assert sorted(id_ for (id_,) in rows(dsn, held)) == sorted(kept)
    assert retain(connection, size) == 0


def test_retention_waits_for_no_sender(dsn: str, connection: psycopg.Connection) -> None:
    for key in ("a", "b"):
        claim_by_hand(dsn, send(connection, key, unique_until="started"))
    with psycopg.connect(dsn) as sender:
        taken = send(sender, "a")
        assert retain(connection) == 1
        sender.commit()
    assert retain(connection) == 0
    assert_held(connection, taken, unique="a")


def test_a_key_that_is_taken_while_retention_looks_at_it_stays(
    dsn: str, connection: psycopg.Connection
) -> None:
    """The row is not locked then, and retention has an older snapshot."""
    send(connection, "a")
    claim_by_hand(dsn, send(connection, "b", unique_until="started"))
    connection.execute(
        "ALTER FUNCTION cmdbus.is_there RENAME TO is_really_there;"
        "CREATE FUNCTION cmdbus.is_there(text, text, uuid, boolean) RETURNS boolean"
        " LANGUAGE plpgsql STABLE AS $$ BEGIN"
        " IF $2 = 'a' THEN PERFORM pg_advisory_xact_lock_shared(4711); END IF;"
        " RETURN cmdbus.is_really_there($1, $2, $3, $4); END $$"
    )
    removed: list[int] = []
    with psycopg.connect(dsn) as gate, connect(dsn) as steward:
        gate.execute("SELECT pg_advisory_xact_lock(4711)")
        with beside(lambda: removed.append(retain(steward))):
            await_lock_waits(dsn)
            taken = send(connection, "b")
            gate.rollback()
    assert removed == [0]
    assert_held(connection, taken, unique="b")
