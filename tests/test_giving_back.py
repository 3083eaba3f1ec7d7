"""Handlers that give their command back, and when it runs again."""

from collections.abc import Callable
from threading import Event

import pytest
from eventually import eventually
from handlers import do_nothing, effects, found, handling, kinds, leave_effect, running
from queries import rows

from cmdbus import Command, CommandBus, Context, Status
from cmdbus.testing import CommandTester


def test_a_command_is_given_back_until_a_later_time(dsn: str, bus: CommandBus) -> None:
    def later(command: Command, context: Context) -> None:
        leave_effect(command, context)
        context.again(delay=300)

    with running(dsn, handling(later)):
        sent = bus.send("payments", "Debit")
        eventually(lambda: effects(dsn) == 1)
        record = found(bus, sent)
    assert (record.status, record.attempts, record.error_code) == (Status.PENDING, 0, None)
    waits = "SELECT extract(epoch FROM due_at - clock_timestamp()) FROM cmdbus.scheduled"
    assert 290 < rows(dsn, waits)[0][0] <= 300


def reads(command: Command, context: Context) -> None:
    context.connection.execute("SELECT count(*) FROM cmdbus.ready")


def goes_on(command: Command, context: Context) -> None:
    context.checkpoint("on")


@pytest.mark.parametrize(
    ("work", "pause"), [(do_nothing, 1.0), (reads, 1.0), (goes_on, 0.0), (leave_effect, 0.0)]
)
def test_a_command_that_is_given_back_where_it_began_waits_a_second(
    dsn: str, bus: CommandBus, work: Callable[[Command, Context], object], pause: float
) -> None:
    """Else it would run thousands of times a minute, and nothing would end that."""

    def poll(command: Command, context: Context) -> None:
        work(command, context)
        context.again()

    bus.send("payments", "Debit")
    [done] = CommandTester(dsn).run_commands(handling(poll))
    assert done.retry_in == pause


def test_a_handler_that_leaves_when_its_worker_stops_goes_on_in_the_next_one(
    dsn: str, bus: CommandBus
) -> None:
    begun = Event()

    def iterate(command: Command, context: Context) -> object:
        leave_effect(command, context)
        if context.resumed is None:
            context.checkpoint("half")
            begun.set()
            eventually(lambda: context.stopping)
            context.again()
        return context.resumed

    with running(dsn, handling(iterate)):
        sent = bus.send("payments", "Debit")
        assert begun.wait(10)
    assert (found(bus, sent).status, effects(dsn)) == (Status.PENDING, 1)
    with running(dsn, handling(iterate)):
        record = bus.wait("payments", sent, 10)
    assert (record.result, record.attempts, effects(dsn)) == ("half", 1, 2)
    assert kinds(bus, sent) == ["SENT", "RECEIVED", "COMPLETED"]
