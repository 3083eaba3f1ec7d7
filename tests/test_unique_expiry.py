"""Unique keys of commands that have expired, and that no steward has canceled yet."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from handlers import beside, connect, found
from queries import await_lock_waits, claim_by_hand, limit_by_hand, scalar

from cmdbus import CommandBus, DuplicateCommandError, Status


def send(bus: CommandBus, **more: object) -> UUID:
    return bus.send("payments", "Debit", unique="report", **more)  # type: ignore[arg-type]


def send_expired(bus: CommandBus, connection: psycopg.Connection, **more: object) -> UUID:
    command_id = send(bus, expires=0.002, **more)
    scalar(connection, "SELECT pg_sleep(0.01)")
    return command_id


@pytest.mark.parametrize("on_conflict", ["reject", "existing", "replace"])
@pytest.mark.parametrize("delay", [None, 0.001])
@pytest.mark.parametrize("until", ["finished", "started", timedelta(hours=1)])
def test_the_next_command_has_the_key_and_the_expired_one_is_canceled(
    bus: CommandBus,
    connection: psycopg.Connection,
    until: str | timedelta,
    delay: float | None,
    on_conflict: str,
) -> None:
    late = send_expired(bus, connection, unique_until=until, delay=delay)
    successor = send(bus, on_conflict=on_conflict)
    record = found(bus, late)
    assert (record.status, record.error_code) == (Status.CANCELED, "EXPIRED")
    assert record.error_message == "it expired before a worker started it"
    with pytest.raises(DuplicateCommandError) as refused:
        send(bus)
    assert refused.value.command_id == successor


def test_one_that_waits_at_a_limit_does_not_keep_the_key_either(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    late = send(bus, expires=60)
    limit_by_hand(dsn, late)
    connection.execute("UPDATE cmdbus.limited SET expires_at = clock_timestamp()")
    assert send(bus, on_conflict="existing") != late
    assert found(bus, late).error_code == "EXPIRED"


def test_one_that_has_begun_keeps_the_key(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    begun = send(bus, expires=60)
    claim_by_hand(dsn, begun)
    connection.execute("UPDATE cmdbus.ready SET expires_at = clock_timestamp()")
    assert send(bus, on_conflict="existing") == begun


def test_one_that_is_being_claimed_keeps_the_key(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """The send has seen it without the claim, and waits for that."""
    late = send(bus, expires=60)
    connection.execute("UPDATE cmdbus.ready SET expires_at = clock_timestamp()")
    holders: list[UUID] = []
    with psycopg.connect(dsn) as worker, connect(dsn) as sender:
        worker.execute("UPDATE cmdbus.ready SET claimed_at = now(), claimer = 1")
        existing = {"on_conflict": "existing", "connection": sender}
        with beside(lambda: holders.append(send(bus, **existing))):
            await_lock_waits(dsn)
            worker.commit()
    assert holders == [late]
