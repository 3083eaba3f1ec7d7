"""Replies to several processes that are handled in one transaction: whatever one of them does,
each process takes its step once."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from eventually import eventually, stays
from handlers import leave_effect, running
from queries import rows, scalar
from trips import Booking, Trip, soon, taken

from cmdbus import CommandBus, CommandRecord, HandlerRegistry, Reply, TransientCommandError
from cmdbus.surroundings import ManagerFactory

COUNT = 8
TRANSACTIONS = """
    SELECT count(DISTINCT s.xmin::text) FROM cmdbus.process_step s WHERE s.process_id = ANY (%s)
        AND s.number = 2"""


class Watched(Booking):
    """Its trips are numbered by their cities; `acts` is called for the last one."""

    def __init__(self, act: Callable[[int], None] = lambda calls: None) -> None:
        self.calls = Counter[str]()
        self._act = act

    def update_state(self, state: Trip, step: Any, reply: Reply) -> Trip:
        self.calls[state.city] += 1
        if state.city == str(COUNT - 1):
            self._act(self.calls[state.city])
        return super().update_state(state, step, reply)


@contextmanager
def replied(
    dsn: str,
    bus: CommandBus,
    manager: Watched,
    surroundings: ManagerFactory | None = None,
    around: Any = None,
    concurrency: int = 2 * COUNT,
    timeout: float | None = None,
) -> Iterator[list[UUID]]:
    """Trips whose first replies wait in a domain that is paused. `timeout`: that of what handles
    them."""
    registry = HandlerRegistry()
    registry.register_process(manager)
    for handler in registry:
        object.__setattr__(handler, "timeout", timeout)
    registry.django_surroundings = surroundings
    if around is not None:
        registry.around(domain="trips")(around)
    registry.register("bookings", "Flight", leave_effect)
    with running(dsn, soon(registry), concurrency=concurrency):
        # A worker handles one reply by itself, to learn how long that takes.
        first = bus.start_process("trips", "Booking", Trip("first"))
        eventually(lambda: len(taken(bus, first)) == 2)
        bus.pause("bookings")
        ids = [bus.start_process("trips", "Booking", Trip(str(n))) for n in range(COUNT)]
        eventually(lambda: len(bus.query("bookings", "PENDING", "Flight")) == COUNT)
        bus.pause("trips")
        bus.resume("bookings")
        eventually(lambda: len(bus.query("trips", "PENDING", "Reply")) == COUNT)
        yield ids


def replies(bus: CommandBus, ids: list[UUID]) -> list[CommandRecord]:
    found = {reply.correlation_id: reply for reply in bus.query("trips", type="Reply")}
    return [found[process_id] for process_id in ids]


def are_completed(bus: CommandBus, ids: list[UUID]) -> bool:
    return all(reply.status == "COMPLETED" for reply in replies(bus, ids))


def moved(bus: CommandBus, ids: list[UUID]) -> bool:
    """Each has taken one step, once."""
    steps = [taken(bus, process_id) for process_id in ids]
    return all(each == ["FLIGHT SUCCESS", "HOTEL None"] for each in steps)


def test_replies_to_several_processes_share_a_transaction(dsn: str, bus: CommandBus) -> None:
    """Where threads wait for a CPU, each may take one reply: then others are tried."""
    transactions: list[int] = []
    while len(transactions) < 5 and min(transactions, default=COUNT) == COUNT:
        manager = Watched()
        with replied(dsn, bus, manager) as ids:
            bus.resume("trips")
            eventually(partial(moved, bus, ids))
            eventually(partial(are_completed, bus, ids))
        transactions.append(rows(dsn, TRANSACTIONS, ids)[0][0])
        assert set(manager.calls.values()) == {1}
    assert min(transactions) < COUNT


def test_an_error_in_a_group_is_that_of_its_own_process(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a thread takes that reply alone, others are tried."""
    caplog.set_level(logging.DEBUG, "cmdbus.worker.execution.group_execution")

    def fail(calls: int) -> None:
        if calls < 3:  # in the group, and by itself
            raise TransientCommandError("BUSY", "try again")

    for _ in range(5):
        manager = Watched(fail)
        with replied(dsn, bus, manager) as ids:
            bus.resume("trips")
            eventually(partial(moved, bus, ids))
            eventually(partial(are_completed, bus, ids))
        *others, attempts = [reply.attempts for reply in replies(bus, ids)]
        assert others == [1] * (COUNT - 1)
        assert manager.calls[str(COUNT - 1)] == 3
        was_in_group = "commands run singly" in caplog.text  # which was rolled back
        assert attempts == (2 if was_in_group else 3)
        if was_in_group:
            break
    assert was_in_group


def test_a_process_that_another_worker_must_run_fails_no_group(dsn: str, bus: CommandBus) -> None:
    """No manager here has its type."""
    manager = Watched()
    with replied(dsn, bus, manager) as ids:
        other = bus.start_process("trips", "Cruise", {})
        bus.resume("trips")
        eventually(lambda: moved(bus, ids))
        [start] = [each for each in bus.query("trips") if each.correlation_id == other]
        eventually(lambda: bus.audit("trips", start.command_id)[-1].code == "NO_MANAGER")
    assert set(manager.calls.values()) == {1}


def test_a_group_waits_for_no_process_that_is_locked(
    dsn: str, bus: CommandBus, sender: psycopg.Connection
) -> None:
    with replied(dsn, bus, Watched()) as ids:
        lock = "SELECT FROM cmdbus.managed_process WHERE process_id = %s FOR UPDATE"
        sender.execute(lock, (ids[0],))
        bus.resume("trips")
        eventually(lambda: moved(bus, ids[1:]))
        stays(lambda: not moved(bus, ids[:1]), 0.1)
        sender.rollback()
        eventually(lambda: moved(bus, ids))


def test_a_thread_that_hangs_in_a_group_costs_only_its_own_command_an_attempt(
    dsn: str, bus: CommandBus
) -> None:
    release = threading.Event()

    def hang(calls: int) -> None:
        if calls == 1:
            release.wait(20)

    with replied(dsn, bus, Watched(hang), timeout=1.0) as ids:
        bus.resume("trips")
        eventually(lambda: moved(bus, ids))
        release.set()
        eventually(lambda: are_completed(bus, ids))
    assert [reply.attempts for reply in replies(bus, ids)] == [*[1] * (COUNT - 1), 2]
    audit = bus.audit("trips", replies(bus, ids)[-1].command_id)
    assert [event.code for event in audit if event.code] == ["TIMEOUT"]


def test_a_group_that_has_lost_one_of_its_claims_writes_nothing_for_it(
    dsn: str, bus: CommandBus
) -> None:
    """Another worker has the reply of the last process."""

    def lose(calls: int) -> None:
        if calls == 1:
            # In a session of its own, as another node.
            rows(
                dsn,
                "UPDATE cmdbus.ready SET token = token + 1, claimer = 1,"
                " lease_until = clock_timestamp() + interval '1 hour' WHERE type = 'Reply'"
                " AND correlation_id = %s RETURNING 1",
                ids[-1],
            )

    with replied(dsn, bus, Watched(lose)) as ids:
        bus.resume("trips")
        eventually(lambda: moved(bus, ids[:-1]))
        stays(lambda: not moved(bus, ids[-1:]), 0.1)
        assert are_completed(bus, ids[:-1]) and not are_completed(bus, ids[-1:])


def test_a_start_that_a_newer_worker_must_run_makes_no_group_fail_again(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    late = bus.start_process("trips", "Booking", Trip("late"), version=2)
    manager = Watched()
    with replied(dsn, bus, manager) as ids:
        due = "UPDATE cmdbus.scheduled SET due_at = clock_timestamp() WHERE correlation_id = %s"
        assert connection.execute(due, (late,)).rowcount == 1
        connection.execute("SELECT cmdbus.wake_at(clock_timestamp())")
        arrived = "SELECT count(*) FROM cmdbus.ready WHERE correlation_id = %s"
        eventually(lambda: scalar(connection, arrived, late))
        bus.resume("trips")
        eventually(lambda: moved(bus, ids))
    assert set(manager.calls.values()) == {1}
