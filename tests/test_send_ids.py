"""Ids: one is taken once, however many send it at once, at every isolation level."""

import time
from functools import partial
from uuid import UUID, uuid4

import psycopg
import pytest
from handlers import beside, connect
from psycopg.conninfo import make_conninfo
from queries import await_lock_waits, scalar
from senders import counts, race

from cmdbus import CommandBus, DuplicateCommandError, SendRequest

BACKSLASH_SPACE = "\\ "


def test_an_id_is_taken_once_in_a_domain(dsn: str) -> None:
    id_ = uuid4()
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit", command_id=id_)
        bus.send("orders", "Ship", command_id=id_)
        before = counts(dsn)
        for again in (
            lambda: bus.send("payments", "Debit", command_id=id_, delay=60),
            lambda: bus.send_many([SendRequest("payments", "Debit", command_id=str(id_))]),
        ):
            with pytest.raises(DuplicateCommandError, match=str(id_)) as refused:
                again()
            assert (refused.value.domain, refused.value.command_id) == ("payments", id_)
        assert counts(dsn) == before
        bus.cancel("payments", id_)
        with pytest.raises(DuplicateCommandError):
            bus.send("payments", "Debit", command_id=id_)


def test_an_id_that_the_bus_made_is_taken_too(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        made = [bus.send("payments", "Debit"), bus.send("payments", "Debit", delay=60)]
        in_sql = scalar(connection, "SELECT cmdbus.send('payments', 'Debit')")
        gone = bus.send("payments", "Debit")
        bus.cancel("payments", gone)
        for id_ in (*made, in_sql, gone):
            for _ in range(2):
                with pytest.raises(DuplicateCommandError):
                    bus.send("payments", "Debit", command_id=id_)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_of_many_concurrent_sends_of_one_id_exactly_one_is_accepted(
    dsn: str, isolation: str
) -> None:
    """Some delayed, some not, some in bulk; again and again."""
    settings = f"-c default_transaction_isolation={isolation.replace(' ', BACKSLASH_SPACE)}"
    dsn = make_conninfo(dsn, options=settings)
    connections = [psycopg.connect(dsn, autocommit=True) for _ in range(20)]
    with CommandBus(dsn) as bus:
        for _ in range(10):
            id_ = uuid4()

            def send(index: int, id_: UUID = id_) -> object:
                delay = 60 if index % 2 else None
                if index % 4 < 2:
                    return bus.send(
                        "payments", "D", command_id=id_, delay=delay, connection=connections[index]
                    )
                return bus.send_many(
                    [SendRequest("payments", "D", command_id=id_, delay=delay)],
                    connection=connections[index],
                )

            results = race([lambda p=place: send(p) for place in range(20)])  # type: ignore[misc]
            accepted = [r for r in results if r in (id_, [id_])]
            refused = [
                r
                for r in results
                if isinstance(r, DuplicateCommandError | psycopg.errors.SerializationFailure)
            ]
            assert (len(accepted), len(refused)) == (1, 19), results
            assert len(bus.query("payments")) == 1
            bus.cancel("payments", id_)
            connections[0].execute("TRUNCATE cmdbus.finished")
    for connection in connections:
        connection.close()


def test_overlapping_batches_of_own_ids_do_not_deadlock(bus: CommandBus) -> None:
    for _ in range(5):
        ids = [uuid4() for _ in range(300)]

        def send(step: int, ids: list[UUID] = ids) -> object:
            requests = [SendRequest("payments", "D", command_id=id_) for id_ in ids[::step]]
            return bus.send_many(requests)

        results = race([lambda s=step: send(s) for step in (1, -1, 2, 3)])  # type: ignore[misc]
        assert sum(isinstance(result, list) for result in results) == 1, results
        assert sum(isinstance(r, DuplicateCommandError) for r in results) == 3, results


def test_a_batch_of_twenty_thousand_own_ids_needs_no_locks_for_them(bus: CommandBus) -> None:
    ids = [uuid4() for _ in range(20_000)]
    bus.send_many([SendRequest("payments", "D", command_id=id_) for id_ in ids])
    assert bus.snapshot("payments")["depth"] == 20_000


def test_an_id_learnt_before_its_commit_can_be_sent_again_safely(dsn: str) -> None:
    """The program does not learn how its commit ended, and tries again with the id it got."""
    with CommandBus(dsn) as bus:
        for commits in (True, False):
            with psycopg.connect(dsn) as unsure, psycopg.connect(dsn) as retry:
                id_ = bus.send("payments", "Debit", connection=unsure)
                [many] = bus.send_many([SendRequest("payments", "Debit")], connection=unsure)
                again = partial(bus.send, "payments", "Debit", command_id=id_, connection=retry)
                results: list[object] = []
                with beside(lambda: results.extend(race([again]))):  # noqa: B023
                    await_lock_waits(dsn)
                    unsure.commit() if commits else unsure.rollback()
                retry.commit()
                assert isinstance(results[0], DuplicateCommandError if commits else UUID)
                found = [r.command_id for r in bus.query() if r.command_id in (id_, many)]
                assert sorted(found) == sorted([id_, many] if commits else [id_])


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_does_not_decide_about_an_id_of_the_bus(dsn: str, level: str) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as old:
        old.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        old.execute("SELECT 1 FROM cmdbus.ready")
        id_ = bus.send("payments", "Debit")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="READ COMMITTED"):
            bus.send("payments", "Debit", command_id=id_, connection=old)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_id_of_the_bus_that_its_transaction_has_sent_is_a_duplicate(
    dsn: str, level: str
) -> None:
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as own:
        own.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        id_ = bus.send("payments", "Debit", connection=own)
        for _ in range(2):
            with pytest.raises(DuplicateCommandError):
                bus.send("payments", "Debit", command_id=id_, connection=own)
        own.commit()
        assert [record.command_id for record in bus.query()] == [id_]


def custom_id(*, milliseconds: int, digits: str) -> UUID:
    """Version 8, with these digits in its third group, and random ones after it."""
    return UUID(f"{milliseconds:012x}{digits}{uuid4().hex[16:]}")


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_callers_own_ids_of_version_8_are_no_ids_of_the_bus(dsn: str, level: str) -> None:
    """Not even with its mark, unless the time in them is now."""
    now = time.time_ns() // 1_000_000
    chosen = [custom_id(milliseconds=now, digits=f"8c{n:02x}") for n in range(256) if n != 0xB5]
    chosen += [custom_id(milliseconds=now + 1000 * s, digits="8cb5") for s in (-200_000, 200_000)]
    chosen += [custom_id(milliseconds=0x123456789ABC, digits="8cb5")]
    with CommandBus(dsn) as bus, psycopg.connect(dsn) as connection:
        for again in range(2):
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            connection.execute("SELECT 1 FROM cmdbus.ready")
            if not again:
                bus.send("payments", "Debit", command_id=chosen[0], connection=connection)
                requests = [SendRequest("payments", "Debit", command_id=id_) for id_ in chosen[1:]]
                assert bus.send_many(requests, connection=connection) == chosen[1:]
                connection.commit()
                continue
            for id_ in (chosen[0], *chosen[-4:]):
                with pytest.raises(DuplicateCommandError):
                    bus.send("payments", "Debit", command_id=id_, connection=connection)


def test_numbers_of_calls_do_not_come_from_the_sessions_dice(dsn: str) -> None:
    query = "SELECT cmdbus.send('payments', 'D', p_command_id => %s)"
    with connect(dsn) as connection:
        id_ = uuid4()
        connection.execute("SELECT setseed(0.5)")
        assert scalar(connection, query, id_) == id_
        connection.execute("SELECT setseed(0.5)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(query, (id_,))


def test_ten_first_sends_to_a_new_domain_at_once_are_all_accepted(bus: CommandBus) -> None:
    results = race([lambda: bus.send("brand.new", "Debit") for _ in range(10)])
    assert all(isinstance(result, UUID) for result in results), results
    assert bus.snapshot("brand.new")["depth"] == 10
