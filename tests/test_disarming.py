"""A node that no longer waits says so, and one that waits again: no leader and no command is
missed.

Each test holds one interleaving of leader, steward and sender open by hand.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from eventually import eventually
from handlers import connect
from stewards import NOW, Steward, failing, stewarding

from cmdbus import CommandBus
from cmdbus.board.board import Node
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.worker.waiting.node_waiter import NodeWaiter


def test_a_node_is_disarmed_after_a_second_in_which_no_thread_was_parked_and_not_before(
    steward: Steward, bus: CommandBus
) -> None:
    steward.arm()
    assert steward.step(NOW + 1, parked=False) > 0
    assert steward.flag and steward.board.armed
    assert steward.step(NOW + 1.001, parked=False) == 0.0
    assert not steward.flag and steward.board.armed == 0
    assert steward.step(NOW + 1.001, parked=False) == float("inf")
    bus.send("payments", "Debit")
    assert steward.heard() == []


def test_each_time_a_thread_parks_the_second_begins_again(steward: Steward) -> None:
    number = steward.arm()
    for at in (NOW + 0.9, NOW + 1.8, NOW + 2.7):
        steward.step(at, parked=True)
        steward.step(at + 0.8, parked=False)
    assert steward.board.armed == number


def test_a_node_that_was_busy_from_the_beginning_is_never_armed(
    steward: Steward, bus: CommandBus
) -> None:
    steward.step(parked=False)
    assert steward.step(parked=False) == float("inf")
    assert not steward.flag and steward.board.armed == 0 and steward.bytes() == 0
    bus.send("payments", "Debit")
    assert steward.heard() == []


def test_while_all_are_busy_what_is_due_before_the_next_look_is_told_of(
    steward: Steward, bus: CommandBus
) -> None:
    steward.step(parked=False)
    bus.send("payments", "Debit", delay=3600)
    bus.send("payments", "Debit", delay=10)
    assert steward.heard() == ["cmdbus_due"]
    steward.step(parked=False, reads_at=NOW + 5)
    bus.send("payments", "Debit", delay=10)
    assert steward.heard() == []


@pytest.mark.parametrize("parked", [True, False], ids=["parked", "busy"])
def test_what_was_being_scheduled_when_the_next_look_was_put_off_is_looked_for(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection, parked: bool
) -> None:
    """It is due after the look that was known to its sender, which notifies no node;
    and that look does not see it, because it is not committed."""
    steward.step(parked=parked, reads_at=NOW + 5)
    assert len(steward.rereads) == 1
    bus.send("payments", "Debit", delay=7, connection=sender)
    pauses = [steward.step(parked=parked, reads_at=NOW + 65) for _ in range(80)]
    assert pauses[0] < 0.01 and 0.1 < pauses[-1] <= 1.0
    assert len(steward.rereads) == 1
    sender.commit()
    assert steward.heard() == []
    assert steward.step(parked=parked, reads_at=NOW + 65) == 0.0
    assert len(steward.rereads) == 2
    steward.step(parked=parked, reads_at=NOW + 7)
    steward.step(parked=parked, reads_at=NOW + 7)
    assert len(steward.rereads) == 2, "earlier than was known, no sender is missed"


def test_what_one_sender_has_scheduled_is_looked_for_while_another_is_still_writing(
    steward: Steward, dsn: str, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """A forgotten transaction may stay open for hours."""
    steward.step(parked=False, reads_at=NOW + 5)
    with psycopg.connect(dsn) as forgotten:
        for each in (sender, forgotten):
            bus.send("payments", "Debit", delay=7, connection=each)
        steward.step(parked=False, reads_at=NOW + 65)
        assert len(steward.rereads) == 1
        sender.commit()
        assert steward.step(parked=False, reads_at=NOW + 65) == 0.0
        steward.step(parked=False, reads_at=NOW + 65)
        assert len(steward.rereads) == 2


# Leader and steward, over the board.


@contextmanager
def leader(steward: Steward) -> Iterator[tuple[NodeWaiter, WakePipe]]:
    """That of the node's only worker, and the pipe by which it wakes the steward."""
    steward_pipe = WakePipe(1)
    node = Node(
        board=steward.board,
        seat=steward.board.seat(0),
        generation=1,
        parent=1,
        worker_pipe=steward.worker_pipe,
        steward_pipe=steward_pipe,
    )
    waiter = NodeWaiter(node, 60.0, 0)
    yield waiter, steward_pipe
    waiter.stop()
    steward_pipe.close()


def parks(waiter: NodeWaiter, steward: Steward) -> None:
    """And is woken."""
    steward.worker_pipe.put()
    assert waiter.wait_for_work(lambda: False) is not None


def test_a_leader_that_parks_after_the_number_was_cleared_calls(steward: Steward) -> None:
    with leader(steward) as (waiter, steward_pipe):
        steward.arm()
        steward.step(NOW + 2, parked=False)
        parks(waiter, steward)
        assert steward_pipe.pending == 1
        number = steward.board.armed
        steward.step(NOW + 2, parked=True)
        assert steward.board.armed > number


def test_a_leader_that_parked_before_the_number_is_cleared_is_seen_afterwards(
    steward: Steward, bus: CommandBus
) -> None:
    """It has not woken the steward, which therefore steps again immediately, and arms again."""
    with leader(steward) as (waiter, steward_pipe):
        number = steward.arm()
        parks(waiter, steward)
        assert steward_pipe.pending == 0, "it trusts the number"
        assert steward.step(NOW + 2, parked=False) == 0.0
        bus.send("payments", "Debit")
        assert steward.heard() == [], "sent while it was down"
        steward.bytes()
        steward.step(NOW + 2, parked=True)
        assert steward.board.armed > number and steward.bytes()
        assert steward.claimable == 1


def test_the_number_is_cleared_before_the_flag_is_taken_down(steward: Steward, dsn: str) -> None:
    """In the moment between the two a leader calls."""
    steward.arm()
    with connect(dsn) as holder:
        holder.execute("BEGIN; LOCK TABLE cmdbus.waiter IN SHARE ROW EXCLUSIVE MODE")
        thread = threading.Thread(target=steward.step, args=(NOW + 2,), kwargs={"parked": False})
        thread.start()
        try:
            eventually(lambda: steward.board.armed == 0)
            row = holder.execute("SELECT last_value FROM cmdbus.armed").fetchone()
            assert row is not None and row[0] != 0
        finally:
            holder.execute("ROLLBACK")
            thread.join(10)
    assert not steward.flag


def test_the_number_is_shown_only_when_the_barrier_has_ended(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """A leader that parks meanwhile calls, and the next step goes on with the barrier."""
    with leader(steward) as (waiter, steward_pipe):
        bus.send("payments", "Debit", connection=sender)
        steward.step()
        parks(waiter, steward)
        assert steward_pipe.pending == 1
        sender.commit()
        steward.bytes()
        steward.step()
        assert steward.bytes() == 1
        parks(waiter, steward)
        assert steward_pipe.pending == 1, "and no longer"


# What goes wrong.


def test_a_flag_that_could_not_be_taken_down_is_taken_down_with_the_next_step(
    steward: Steward,
) -> None:
    steward.arm()
    with failing(steward, "arm(bigint, text[], timestamptz, interval)"):
        steward.step(session=0)
    assert steward.board.armed == 0 and steward.flag
    steward.step(session=0)
    assert not steward.flag


def test_a_flag_that_could_not_be_taken_down_is_armed_again_when_a_thread_parks(
    steward: Steward,
) -> None:
    number = steward.arm()
    with failing(steward, "arm(bigint, text[], timestamptz, interval)"):
        steward.step(NOW + 2, parked=False)
    steward.step(NOW + 2, parked=True)
    assert steward.board.armed > number


def test_what_one_node_takes_down_another_still_has(dsn: str, bus: CommandBus) -> None:
    """Several nodes wait for the same domain."""
    with stewarding(dsn) as first, stewarding(dsn) as second:
        first.arm()
        second.arm()
        first.step(NOW + 2, parked=False)
        bus.send("payments", "Debit")
        assert second.heard() == ["cmdbus_ready"]
        second.step(NOW + 2, parked=False)
        bus.send("payments", "Debit")
        assert second.heard() == []
