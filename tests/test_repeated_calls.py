"""Operators' calls whose reply is lost: carried out once, although they are repeated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from eventually import eventually
from handlers import beside, connect, found, kinds
from proxy import Proxy
from queries import await_lock_waits, move_to_troubleshooting, scalar

from cmdbus import CommandBus, SendRequest, Status

EVENTS_OF_ANN = "SELECT count(*) FROM cmdbus.event WHERE operator = 'ann'"


@contextmanager
def losing_the_reply(dsn: str, call: Callable[[CommandBus], object]) -> Iterator[None]:
    """Begins when the first try has been carried out. Ends after the second one, for which the
    connection turns out to be dead at the end of the block."""
    with (
        Proxy(dsn) as proxy,
        CommandBus(proxy.dsn) as bus,
        connect(dsn) as watcher,
        psycopg.connect(dsn) as holder,
    ):
        bus.query()
        holder.execute("LOCK TABLE cmdbus.event IN EXCLUSIVE MODE")
        with beside(call, bus):
            await_lock_waits(dsn)
            proxy.mute()
            holder.rollback()
            eventually(lambda: scalar(watcher, EVENTS_OF_ANN) > 0)
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


def test_no_more_than_the_limit_are_resolved(dsn: str, bus: CommandBus) -> None:
    bus.send_many([SendRequest("payments", "Debit")] * 5)
    move_to_troubleshooting(dsn)
    with losing_the_reply(dsn, lambda b: b.troubleshooting.cancel_all(limit=2, operator="ann")):
        pass
    assert bus.troubleshooting.count() == 3


def test_what_is_sent_before_a_cancel_of_all_is_repeated_stays(dsn: str, bus: CommandBus) -> None:
    bus.send("payments", "Debit", delay=60)
    with losing_the_reply(dsn, lambda b: b.cancel_all("payments", operator="ann")):
        later = bus.send("payments", "Debit", delay=60)
    assert found(bus, later).status is Status.PENDING
