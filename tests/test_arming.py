"""A node that announces its wait finds a command whatever its sender does meanwhile.

Each test holds one interleaving of sender and steward open by hand.
"""

import threading
from collections.abc import Callable

import psycopg
import pytest
from eventually import eventually
from handlers import connect
from stewards import NOW, READS_AT, Steward, failing

from cmdbus import CommandBus


def test_a_node_that_parks_while_no_client_sends_is_armed_in_one_step(
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
    """It saw the flag down, and notifies no node."""
    bus.send("payments", "Debit", connection=sender, delay=delay)
    pauses = []
    while steward.now < NOW + 15:
        pauses.append(steward.step())
        assert steward.board.armed == 0, "no leader may trust it yet"
        assert steward.bytes(), "meanwhile it is looked again and again"
    assert pauses == sorted(pauses) and pauses[0] < 0.01 and pauses[-1] == 1.0
    assert len(pauses) < 100
    sender.commit()
    assert steward.heard() == []
    steward.step()
    assert steward.board.armed == 1
    assert steward.bytes() == 1, "the last look, after it has committed"
    assert steward.claimable == (1 if delay is None else 0)


def test_leaders_that_park_while_a_sender_is_waited_for_cause_no_check(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """Each of them calls the steward; woken in return, it would call at once again."""
    bus.send("payments", "Debit", connection=sender)
    pause = steward.step(NOW)
    assert steward.bytes()
    assert steward.step(NOW + pause / 2) == pytest.approx(pause / 2)
    assert steward.bytes() == 0
    steward.step(NOW + pause)
    assert steward.bytes()


def test_a_sender_that_rolls_back_is_waited_for_no_longer(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    bus.send("payments", "Debit", connection=sender)
    steward.step()
    sender.rollback()
    steward.step()
    assert steward.board.armed == 1


def test_a_resume_that_began_before_the_arming_and_commits_after_it_is_waited_for(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """It saw the flag down, too, and inserts nothing."""
    bus.pause("payments")
    bus.send("payments", "Debit")
    resume = "cmdbus.configure_domain('payments', '{paused}', NULL, NULL, p_paused => false)"
    sender.execute(f"SELECT {resume}".encode())
    steward.step()
    assert steward.board.armed == 0 and steward.bytes()
    sender.commit()
    assert steward.heard() == []
    steward.step()
    assert steward.board.armed == 1
    assert steward.bytes() == 1, "the last look, after it has committed"


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


def run_out(steward: Steward) -> None:
    """The node was frozen, and another one's arming took its flag down."""
    steward.connection.execute("UPDATE cmdbus.waiter SET armed_until = now() - interval '1 s'")
    steward.connection.execute("SELECT cmdbus.arm(0, ARRAY['mail'], now(), '1 hour')")


def listen_again(steward: Steward) -> None:
    """Sends between the two sessions notified no node."""
    steward.defaults["session"] = 2


def lose_connection(steward: Steward) -> None:
    steward.arming.forget()
    assert steward.board.armed == 0


@pytest.mark.parametrize("change", [run_out, listen_again, lose_connection])
def test_a_node_whose_flag_may_have_been_down_waits_for_senders_again(
    steward: Steward,
    bus: CommandBus,
    sender: psycopg.Connection,
    change: Callable[[Steward], None],
) -> None:
    number = steward.arm()
    change(steward)
    bus.send("payments", "Debit", connection=sender)
    steward.step(reads_at=READS_AT + 60)
    assert steward.board.armed == 0 and steward.bytes()
    sender.commit()
    steward.step(reads_at=READS_AT + 60)
    assert steward.board.armed > number and steward.bytes() == 1
    assert steward.claimable == 1


def test_a_renewal_in_time_is_no_new_arming(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    number = steward.arm()
    until = "SELECT armed_until FROM cmdbus.waiter"
    before = steward.scalar(until)
    bus.send("payments", "Debit", connection=sender)
    steward.step(reads_at=READS_AT + 60)
    assert steward.scalar(until) > before
    assert steward.board.armed == number and steward.bytes() == 0


def test_an_arming_outlives_the_longest_time_until_its_renewal(steward: Steward) -> None:
    steward.step(reads_at=NOW + 3600)
    lasts = "SELECT extract(epoch FROM armed_until - clock_timestamp()) FROM cmdbus.waiter"
    assert steward.scalar(lasts) > 3600 + 30


def test_without_its_listening_session_a_node_is_not_armed_and_no_sender_notifies(
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


# What goes wrong.


def test_a_barrier_that_could_not_begin_begins_with_the_next_step(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """The flag is up then, and the senders that did not see it were not waited for."""
    bus.send("payments", "Debit", connection=sender)
    with failing(steward, "writers"):
        steward.step()
    assert steward.flag and steward.board.armed == 0
    steward.step()
    assert steward.board.armed == 0 and steward.bytes()
    sender.commit()
    steward.step()
    assert steward.board.armed == 1 and steward.bytes() == 1


def test_a_barrier_that_could_not_begin_after_the_arming_ran_out_begins_with_the_next_step(
    steward: Steward, bus: CommandBus, sender: psycopg.Connection
) -> None:
    """The next renewal finds it in time again, and must not believe that it always was."""
    number = steward.arm()
    run_out(steward)
    bus.send("payments", "Debit", connection=sender)
    with failing(steward, "writers"):
        steward.step(reads_at=READS_AT + 60)
    steward.step(reads_at=READS_AT + 60)
    assert steward.board.armed == 0
    sender.commit()
    steward.step(reads_at=READS_AT + 60)
    assert steward.board.armed > number
