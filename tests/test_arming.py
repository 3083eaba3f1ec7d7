"""A node that says that it waits: whatever a sender does meanwhile, its command is looked for.

Each test holds one interleaving of sender, steward and leader open by hand; time is passed in.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from eventually import eventually
from handlers import connect

from cmdbus import CommandBus
from cmdbus.board.board import Board, Node
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.waiting.arming import Arming
from cmdbus.worker.waiting.node_waiter import NodeWaiter

NOW = 1_000.0
LOOKS_AT = NOW + 60


@dataclass
class Steward:
    """As much of one as arms. Its domain is payments."""

    connection: psycopg.Connection
    listener: psycopg.Connection
    board: Board
    worker_pipe: WakePipe
    claims: Claims
    arming: Arming
    #: One for each that was asked for.
    looks: list[int]
    resolution: dict[str, Any] = field(default_factory=lambda: {"parked": True, "session": 1})

    def step(self, now: float = NOW, **resolution: Any) -> float:
        return self.arming.update(
            self.connection, now=now, **{"looks_at": LOOKS_AT, **self.resolution, **resolution}
        )

    def bytes(self) -> int:
        """Since this was last asked."""
        count = self.worker_pipe.pending
        self.worker_pipe.drain()
        return count

    def arm(self) -> int:
        self.step()
        assert self.board.armed
        self.bytes()
        return self.board.armed

    def scalar(self, query: str) -> Any:
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    @property
    def flag(self) -> bool:
        return bool(self.scalar("SELECT last_value FROM cmdbus.armed"))

    @property
    def claimable(self) -> int:
        return int(self.scalar("SELECT count(*) FROM cmdbus.ready"))

    def heard(self) -> list[str]:
        """The channels; a NOTIFY of its own marks the end."""
        self.connection.execute("NOTIFY cmdbus_ready, 'end'")
        found: list[str] = []
        for notify in self.listener.notifies(timeout=10):
            if notify.payload == "end":
                return found
            found.append(notify.channel)
        raise AssertionError("the mark never came")


@contextmanager
def stewarding(dsn: str) -> Iterator[Steward]:
    board, worker_pipe = Board.in_memory(2, 2), WakePipe(8)
    with connect(dsn) as connection, connect(dsn) as listener:
        listener.execute("LISTEN cmdbus_ready; LISTEN cmdbus_due")
        claims = Claims("cmdbus", 30)
        claims.register(connection, "steward")
        looks: list[int] = []
        arming = Arming(claims, board, worker_pipe, ["payments"], look=lambda: looks.append(1))
        yield Steward(connection, listener, board, worker_pipe, claims, arming, looks)
    worker_pipe.close()
    board.close()


@pytest.fixture
def steward(dsn: str) -> Iterator[Steward]:
    with stewarding(dsn) as steward:
        yield steward


@pytest.fixture
def sender(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn) as sender:
        yield sender
        sender.rollback()


def test_who_parks_while_nobody_sends_is_armed_in_one_step(
    steward: Steward, bus: CommandBus
) -> None:
    steward.step()
    assert steward.flag and steward.board.armed == 1
    assert steward.bytes(), "a completed arming ends with a byte"
    bus.send("payments", "Debit")
    assert steward.heard() == ["cmdbus_ready"]
    steward.step()
    assert steward.board.armed == 1 and steward.bytes() == 0, "nothing more is to be done"


@pytest.mark.parametrize("delay", [None, 3600], ids=["ready", "scheduled"])
def test_a_sender_that_inserted_before_the_arming_and_commits_after_it_is_waited_for(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection, delay: int | None
) -> None:
    """It saw the flag down and notifies nobody."""
    bus.send("payments", "Debit", connection=sender, delay=delay)
    pauses = []
    for _ in range(8):
        pauses.append(steward.step())
        assert steward.board.armed == 0, "no leader may trust it yet"
        assert steward.bytes(), "meanwhile it is looked again and again"
    assert pauses == sorted(pauses) and pauses[0] < 0.01 and pauses[-1] == 0.1
    sender.commit()
    assert steward.heard() == []
    steward.step()
    assert steward.board.armed == 1
    assert steward.bytes() == 1, "the last look, after it has committed"
    assert steward.claimable == (1 if delay is None else 0)


def test_a_sender_that_rolls_back_is_waited_for_no_longer(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    bus.send("payments", "Debit", connection=sender)
    steward.step()
    sender.rollback()
    steward.step()
    assert steward.board.armed == 1


def test_a_sender_that_came_after_the_flag_notifies_and_is_not_waited_for(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection, dsn: str
) -> None:
    """However many of them there are, the barrier comes to its end."""
    with psycopg.connect(dsn) as earlier:
        bus.send("payments", "Debit", connection=earlier)
        steward.step()
        bus.send("payments", "Debit", connection=sender)
        steward.step()
        assert steward.board.armed == 0
        earlier.commit()
    steward.step()
    assert steward.board.armed == 1, "though the later one has not committed"
    sender.commit()
    assert steward.heard() == ["cmdbus_ready"]


@pytest.mark.parametrize(
    "level",
    [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE],
    ids=lambda level: level.name,
)
def test_a_sender_with_an_old_snapshot_that_inserts_after_the_barrier_notifies(
    steward: Steward,
    bus: CommandBus,
    sender: psycopg.Connection,
    level: psycopg.IsolationLevel,
) -> None:
    """No barrier sees it, as it has not written yet."""
    sender.isolation_level = level
    sender.execute("SELECT count(*) FROM cmdbus.ready")
    steward.arm()
    bus.send("payments", "Debit", connection=sender)
    sender.commit()
    assert steward.heard() == ["cmdbus_ready"]


def test_a_sending_statement_that_began_before_the_arming_notifies(
    steward: Steward, dsn: str
) -> None:
    """The flag is read by the trigger, not as of the statement's snapshot."""
    statement = "SELECT cmdbus.send('payments', 'Debit') FROM (SELECT pg_advisory_lock(7)) held"
    with connect(dsn) as holder, connect(dsn) as sender:
        holder.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=sender.execute, args=(statement.encode(),))
        thread.start()
        try:
            eventually(lambda: steward.scalar("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            steward.arm()
        finally:
            holder.execute("SELECT pg_advisory_unlock(7)")
            thread.join(10)
        assert steward.heard() == ["cmdbus_ready"]


def test_an_arming_that_ran_out_is_a_new_one(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """The node was frozen, and another one's arming took its flag down."""
    number = steward.arm()
    steward.connection.execute("UPDATE cmdbus.waiter SET armed_until = now() - interval '1 s'")
    steward.connection.execute("SELECT cmdbus.arm(0, ARRAY['mail'], now(), '1 hour')")
    bus.send("payments", "Debit", connection=sender)
    steward.step(looks_at=LOOKS_AT + 60)
    assert steward.board.armed == 0 and steward.bytes()
    sender.commit()
    assert steward.heard() == [], "it saw no flag"
    steward.step(looks_at=LOOKS_AT + 60)
    assert steward.board.armed > number and steward.bytes() == 1
    assert steward.claimable == 1


def test_a_renewal_in_time_is_no_new_arming(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    number = steward.arm()
    until = "SELECT armed_until FROM cmdbus.waiter"
    before = steward.scalar(until)
    bus.send("payments", "Debit", connection=sender)
    steward.step(looks_at=LOOKS_AT + 60)
    assert steward.scalar(until) > before
    assert steward.board.armed == number and steward.bytes() == 0


def test_it_outlives_the_longest_time_until_its_renewal(steward: Steward) -> None:
    steward.step(looks_at=NOW + 3600)
    lasts = "SELECT extract(epoch FROM armed_until - clock_timestamp()) FROM cmdbus.waiter"
    assert steward.scalar(lasts) > 3600 + 30


def test_a_new_listening_session_arms_anew(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """What was sent between the two notified nobody."""
    number = steward.arm()
    bus.send("payments", "Debit", connection=sender)
    steward.step(session=2)
    assert steward.board.armed == 0 and steward.bytes()
    sender.commit()
    steward.step(session=2)
    assert steward.board.armed > number and steward.bytes() == 1


def test_with_the_session_lost_nobody_trusts_the_arming_and_no_sender_notifies(
    steward: Steward,
) -> None:
    number = steward.arm()
    assert steward.step(session=0) == 0.0
    assert steward.board.armed == 0 and not steward.flag
    assert steward.step(session=0) == float("inf")
    steward.step(session=2)
    assert steward.board.armed > number


def test_a_session_lost_during_the_barrier_ends_it(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    bus.send("payments", "Debit", connection=sender)
    steward.step()
    steward.step(session=0)
    sender.commit()
    steward.step(session=0)
    assert steward.board.armed == 0 and not steward.flag


def test_after_a_second_in_which_nobody_was_parked_it_is_disarmed_and_not_before(
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


def test_each_time_somebody_parks_the_second_begins_anew(steward: Steward) -> None:
    number = steward.arm()
    for now in (NOW + 0.9, NOW + 1.8, NOW + 2.7):
        steward.step(now, parked=True)
        steward.step(now + 0.8, parked=False)
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
    steward.step(parked=False, looks_at=NOW + 5)
    bus.send("payments", "Debit", delay=10)
    assert steward.heard() == []


@pytest.mark.parametrize("parked", [True, False], ids=["parked", "busy"])
def test_what_was_being_scheduled_when_the_next_look_was_put_off_is_looked_for(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection, parked: bool
) -> None:
    """It is due after the look that was known to its sender, who notifies nobody;
    and that look does not see it, because it is not committed."""
    steward.step(parked=parked, looks_at=NOW + 5)
    assert len(steward.looks) == 1
    bus.send("payments", "Debit", delay=7, connection=sender)
    pauses = [steward.step(parked=parked, looks_at=NOW + 65) for _ in range(8)]
    assert pauses[0] < 0.01 and pauses[-1] == 0.1
    assert len(steward.looks) == 1
    sender.commit()
    assert steward.heard() == []
    assert steward.step(parked=parked, looks_at=NOW + 65) == 0.0
    assert len(steward.looks) == 2
    steward.step(parked=parked, looks_at=NOW + 7)
    steward.step(parked=parked, looks_at=NOW + 7)
    assert len(steward.looks) == 2, "earlier than was known, nobody is missed"


# Leader and steward, over the board.


@contextmanager
def leader(steward: Steward) -> Iterator[tuple[NodeWaiter, WakePipe]]:
    """Of the node's only worker, and the wire by which it calls the steward."""
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
    """It has not called; so the steward looks again at once, and arms anew."""
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


def hidden(steward: Steward, function: str) -> None:
    steward.connection.execute(f"ALTER FUNCTION cmdbus.{function} RENAME TO hidden".encode())


def found_again(steward: Steward, function: str) -> None:
    name = function.partition("(")[0]
    steward.connection.execute(f"ALTER FUNCTION cmdbus.hidden RENAME TO {name}".encode())


def test_a_barrier_that_could_not_begin_begins_with_the_next_step(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """The flag is up then, and nobody has waited for those who did not see it."""
    bus.send("payments", "Debit", connection=sender)
    hidden(steward, "writers")
    with pytest.raises(psycopg.Error):
        steward.step()
    found_again(steward, "writers")
    assert steward.flag and steward.board.armed == 0
    steward.step()
    assert steward.board.armed == 0 and steward.bytes()
    sender.commit()
    steward.step()
    assert steward.board.armed == 1 and steward.bytes() == 1


def test_the_same_of_one_that_ran_out(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """The next renewal finds it in time again, and must not believe that it always was."""
    number = steward.arm()
    steward.connection.execute("UPDATE cmdbus.waiter SET armed_until = now() - interval '1 s'")
    steward.connection.execute("SELECT cmdbus.arm(0, ARRAY['mail'], now(), '1 hour')")
    bus.send("payments", "Debit", connection=sender)
    hidden(steward, "writers")
    with pytest.raises(psycopg.Error):
        steward.step(looks_at=LOOKS_AT + 60)
    found_again(steward, "writers")
    steward.step(looks_at=LOOKS_AT + 60)
    assert steward.board.armed == 0
    sender.commit()
    steward.step(looks_at=LOOKS_AT + 60)
    assert steward.board.armed > number


def test_a_flag_that_could_not_be_taken_down_is_taken_down_with_the_next_step(
    steward: Steward,
) -> None:
    steward.arm()
    arm = "arm(bigint, text[], timestamptz, interval)"
    hidden(steward, arm)
    with pytest.raises(psycopg.Error):
        steward.step(session=0)
    found_again(steward, arm)
    assert steward.board.armed == 0 and steward.flag
    steward.step(session=0)
    assert not steward.flag


def test_one_that_could_not_be_taken_down_is_armed_anew_when_somebody_parks(
    steward: Steward,
) -> None:
    number = steward.arm()
    arm = "arm(bigint, text[], timestamptz, interval)"
    hidden(steward, arm)
    with pytest.raises(psycopg.Error):
        steward.step(NOW + 2, parked=False)
    found_again(steward, arm)
    steward.step(NOW + 2, parked=True)
    assert steward.board.armed > number


def test_after_a_lost_connection_everything_is_said_anew(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    number = steward.arm()
    steward.arming.forget()
    assert steward.board.armed == 0
    bus.send("payments", "Debit", connection=sender)
    steward.step()
    assert steward.board.armed == 0 and steward.bytes()
    sender.commit()
    steward.step()
    assert steward.board.armed > number and steward.bytes() == 1


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
