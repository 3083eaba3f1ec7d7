"""Operators' calls whose reply is lost: carried out once, although they are repeated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from eventually import eventually
from handlers import beside, connect, found, kinds
from proxy import Proxy
from queries import await_lock_waits, move_to_troubleshooting, rows, scalar

from cmdbus import CommandBus, SendRequest, Status

#: What an operator changes in a domain.
CHANGES: dict[str, Callable[[CommandBus], object]] = {
    "configure": lambda bus: bus.configure("payments", max_depth=5, operator="ann"),
    "pause": lambda bus: bus.pause("payments", operator="ann"),
    "resume": lambda bus: bus.resume("payments", operator="ann"),
}


@contextmanager
def losing_the_reply(
    dsn: str, call: Callable[[CommandBus], object], table: str = "cmdbus.event"
) -> Iterator[None]:
    """Begins when the first try has been carried out, with an event in this table. Ends after the
    second one, for which the connection turns out to be dead at the end of the block."""
    events_of_ann = f"SELECT count(*) FROM {table} WHERE operator = 'ann'"
    with (
        Proxy(dsn) as proxy,
        CommandBus(proxy.dsn) as bus,
        connect(dsn) as watcher,
        psycopg.connect(dsn) as holder,
    ):
        bus.query()
        holder.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
        with beside(call, bus):
            await_lock_waits(dsn)
            proxy.mute()
            holder.rollback()
            eventually(lambda: scalar(watcher, events_of_ann) > 0)
            yield
            proxy.cut()


def test_what_failed_again_before_its_retry_is_repeated_is_retried_once(
    dsn: str, bus: CommandBus
) -> None:
    id_ = bus.send("payments", "Debit")
    move_to_troubleshooting(dsn)
    with losing_the_reply(dsn, lambda b: b.troubleshooting.retry("payments", id_, operator="ann")):
        move_to_troubleshooting(dsn)
    assert found(bus, id_).status is Status.IN_TROUBLESHOOTING_QUEUE
    assert kinds(bus, id_).count("OPERATOR_RETRY") == 1


def test_what_an_operator_retries_twice_is_retried_although_the_second_call_is_repeated(
    dsn: str, bus: CommandBus
) -> None:
    """Its first try was lost before it reached the server."""
    id_ = bus.send("payments", "Debit")
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as operator:
        for _ in range(2):
            move_to_troubleshooting(dsn)
            proxy.cut()
            operator.troubleshooting.retry("payments", id_, operator="ann")
    assert kinds(bus, id_).count("OPERATOR_RETRY") == 2


def test_a_command_is_rescheduled_once(dsn: str, bus: CommandBus) -> None:
    id_ = bus.send("payments", "Debit")
    with losing_the_reply(dsn, lambda b: b.reschedule("payments", id_, delay=60, operator="ann")):
        pass
    assert kinds(bus, id_).count("RESCHEDULED") == 1


def test_a_command_is_rescheduled_once_although_the_first_try_still_runs(
    dsn: str, bus: CommandBus
) -> None:
    """Its row moves to another table while the repetition waits for it."""
    id_ = bus.send("payments", "Debit")
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as operator, psycopg.connect(dsn) as holder:
        operator.query()
        holder.execute("LOCK TABLE cmdbus.event IN EXCLUSIVE MODE")
        with beside(lambda b: b.reschedule("payments", id_, delay=60, operator="ann"), operator):
            await_lock_waits(dsn)
            proxy.cut()
            await_lock_waits(dsn, 2)
            holder.rollback()
    assert kinds(bus, id_).count("RESCHEDULED") == 1


def test_a_callers_transaction_holds_no_lock_for_each_command(dsn: str, bus: CommandBus) -> None:
    """The server has room for a few thousand locks."""
    ids = bus.send_many([SendRequest("payments", "Debit")] * 3)
    with psycopg.connect(dsn) as connection:
        for id_ in ids:
            bus.reschedule("payments", id_, delay=60, connection=connection)
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert scalar(connection, f"{locks} AND pid = pg_backend_pid()") == 0
    assert bus.snapshot("payments")["scheduled"] == 3


def test_many_that_failed_again_before_their_retry_is_repeated_are_retried_once(
    dsn: str, bus: CommandBus
) -> None:
    ids = bus.send_many([SendRequest("payments", "Debit")] * 3)
    move_to_troubleshooting(dsn)
    with losing_the_reply(dsn, lambda b: b.troubleshooting.retry_all(operator="ann")):
        move_to_troubleshooting(dsn)
    assert bus.troubleshooting.count() == 3
    assert {kinds(bus, id_).count("OPERATOR_RETRY") for id_ in ids} == {1}


def test_no_more_than_the_limit_are_resolved_and_all_of_them_are_counted(
    dsn: str, bus: CommandBus
) -> None:
    """Although all came to troubleshooting at the same time."""
    bus.send_many([SendRequest("payments", "Debit")] * 5)
    move_to_troubleshooting(dsn)
    rows(dsn, "UPDATE cmdbus.troubleshooting SET failed_at = now() RETURNING 1")
    counts = []

    def cancel_two(operator: CommandBus) -> None:
        counts.append(operator.troubleshooting.cancel_all(limit=2, operator="ann"))

    with losing_the_reply(dsn, cancel_two):
        pass
    assert (counts, bus.troubleshooting.count()) == ([2], 3)


def test_no_more_than_the_limit_are_resolved_although_the_first_try_still_runs(
    dsn: str, bus: CommandBus
) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 5)
    move_to_troubleshooting(dsn)
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as operator, psycopg.connect(dsn) as holder:
        operator.query()
        holder.execute("LOCK TABLE cmdbus.event IN EXCLUSIVE MODE")
        with beside(lambda: operator.troubleshooting.retry_all(limit=2, operator="ann")):
            await_lock_waits(dsn)
            proxy.cut()
            await_lock_waits(dsn, 2)
            holder.rollback()
    assert bus.troubleshooting.count() == 3


@pytest.mark.parametrize("change", CHANGES)
def test_a_domain_is_changed_once(dsn: str, bus: CommandBus, change: str) -> None:
    """Also if another operator has changed it again before the repetition."""
    with losing_the_reply(dsn, CHANGES[change], "cmdbus.domain_event"):
        bus.pause("payments", operator="bob")
        bus.configure("payments", max_depth=7, operator="bob")
    assert [event.operator for event in bus.domain_audit("payments")] == ["ann", "bob", "bob"]
    [domain] = bus.domains()
    assert (domain.paused, domain.max_depth) == (True, 7)


def test_what_is_sent_before_a_cancel_of_all_is_repeated_stays(dsn: str, bus: CommandBus) -> None:
    bus.send("payments", "Debit", delay=60)
    with losing_the_reply(dsn, lambda b: b.cancel_all("payments", operator="ann")):
        later = bus.send("payments", "Debit", delay=60)
    assert found(bus, later).status is Status.PENDING
