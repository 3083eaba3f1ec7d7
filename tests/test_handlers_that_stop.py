"""What a running handler can read about the end of its execution, without a statement."""

import time
from collections.abc import Callable
from queue import SimpleQueue

import pytest
from eventually import eventually, stays
from handlers import LADDER, ONCE, connect, handling, running
from queries import rows

from cmdbus import Command, CommandBus, Context, Timeouts

#: Its leases are renewed each 0.4 s.
TIMEOUTS = Timeouts(statement=1.0, pool=1.0, lease=1.2, thread=20, watchdog=30)
RENEWAL = TIMEOUTS.lease / 3


class Looping:
    """A handler that goes on until one of the two is true; then says which, and when."""

    def __init__(self) -> None:
        self.begun = SimpleQueue[Context]()
        self.seen = SimpleQueue[tuple[bool, bool, float]]()

    def __call__(self, command: Command, context: Context) -> None:
        self.begun.put(context)
        eventually(lambda: context.canceled or context.stopping, 15)
        self.seen.put((context.canceled, context.stopping, time.monotonic()))


def cancel(dsn: str, bus: CommandBus, command: Command) -> None:
    bus.cancel(command.domain, command.command_id, running=True)


def lose_lease(dsn: str, bus: CommandBus, command: Command) -> None:
    """As if the lease had ended, and another node had claimed the command since."""
    rows(
        dsn,
        "UPDATE cmdbus.ready SET token = token + 1, claimer = 1 WHERE command_id = %s RETURNING 1",
        command.command_id,
    )


@pytest.mark.parametrize("lose", [cancel, lose_lease])
def test_a_handler_sees_within_a_third_of_a_lease_that_its_command_is_not_its_any_more(
    dsn: str, bus: CommandBus, lose: Callable[[str, CommandBus, Command], None]
) -> None:
    loop = Looping()

    def took() -> float:
        bus.send("payments", "Debit")
        context = loop.begun.get(timeout=10)
        stays(lambda: not context.canceled, RENEWAL * 1.5)
        began = time.monotonic()
        lose(dsn, bus, context._command)
        canceled, stopping, seen = loop.seen.get(timeout=10)
        assert (canceled, stopping) == (True, False)
        return seen - began

    with running(dsn, handling(loop), timeouts=TIMEOUTS):
        # One renewal, and its statement; the best of three, as a busy machine may delay them.
        assert any(took() < RENEWAL + 0.3 for _ in range(3))


def test_a_handler_sees_it_too_where_its_process_renews_its_leases_itself(
    dsn: str, bus: CommandBus
) -> None:
    loop = Looping()
    with running(dsn, handling(loop), timeouts=TIMEOUTS) as worker:
        bus.send("payments", "Debit")
        context = loop.begun.get(timeout=10)
        for each in worker._polling:
            each._renew_at = float("inf")  # type: ignore[union-attr]  # the steward's
        cancel(dsn, bus, context._command)
        assert loop.seen.get(timeout=10)[0]


def test_a_handler_that_has_timed_out_sees_that_it_was_given_up(dsn: str, bus: CommandBus) -> None:
    loop = Looping()
    with running(dsn, handling(loop, retry=ONCE), timeouts=LADDER):
        sent = bus.send("payments", "Debit")
        assert loop.seen.get(timeout=10)[:2] == (True, False)
        assert bus.wait("payments", sent, 10).error_code == "TIMEOUT"


def test_a_handler_sees_that_its_worker_stops_and_completes(dsn: str, bus: CommandBus) -> None:
    def took() -> float:
        loop = Looping()
        with running(dsn, handling(loop)) as worker:
            sent = bus.send("payments", "Debit")
            loop.begun.get(timeout=10)
            began = time.monotonic()
            worker.stop(timeout=10)
        canceled, stopping, seen = loop.seen.get(timeout=10)
        assert (canceled, stopping) == (False, True)
        with connect(dsn) as connection:
            status = "SELECT status FROM cmdbus.command WHERE command_id = %s"
            assert connection.execute(status, (sent,)).fetchone() == ("COMPLETED",)
        return seen - began

    # The best of three, as a busy machine may delay one.
    assert any(took() < 1 for _ in range(3))
