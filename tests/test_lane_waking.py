"""Workers that wait while their commands wait at a limit: they start as soon as a place is free, or
a rate lets them, whoever knew of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from uuid import UUID

import psycopg
import pytest
from eventually import eventually
from handlers import SOON, Gate, do_nothing, leave_effect, running
from lane_claimer import LaneClaimer, Limit, declare
from queries import SESSIONS, scalar

from cmdbus import Command, CommandBus, Context, HandlerRegistry
from cmdbus.worker import Worker

#: Also on a busy machine; a poll would come ten minutes later.
WITHIN_S = 20
SHARED = Limit("stripe", concurrency=1, covers=("payments Debit", "orders Ship"))


class Started:
    """A handler that only notes that it has begun."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []

    def __call__(self, command: Command, context: Context) -> None:
        self.ids.append(command.command_id)

    def within(self, seconds: float = WITHIN_S, times: int = 1) -> None:
        eventually(lambda: len(self.ids) == times, seconds)


@contextmanager
def node(dsn: str, domain: str, type: str, handler: Callable[..., object]) -> Iterator[Worker]:
    """A worker with this one type, which polls each ten minutes."""
    registry = HandlerRegistry()
    registry.register(domain, type, handler, retry=SOON)
    with running(dsn, registry, poll_interval=600, concurrency=2) as worker:
        yield worker


def await_rest(connection: psycopg.Connection) -> None:
    """Until no session of a worker has been asked anything for a while, and senders notify."""
    query = (
        f"SELECT count(*) = 0 AND (SELECT last_value FROM cmdbus.armed) <> 0 {SESSIONS}"
        " AND (state = 'active' OR state_change > clock_timestamp() - interval '0.5 s')"
    )
    eventually(lambda: scalar(connection, query))


def await_waiting_lanes(connection: psycopg.Connection, lanes: int = 1) -> None:
    query = "SELECT count(*) FROM cmdbus.lane WHERE waits_for IS NOT NULL"
    eventually(lambda: scalar(connection, query) == lanes)


@pytest.mark.parametrize("ends", ["completes", "uses its transaction", "is canceled"])
def test_a_place_of_a_shared_limit_wakes_the_node_of_another_domain(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, ends: str
) -> None:
    declare(connection, SHARED)
    gate, started = (
        Gate(leave_effect if ends == "uses its transaction" else do_nothing),
        Started(),
    )
    with node(dsn, "payments", "Debit", gate), node(dsn, "orders", "Ship", started):
        id_ = bus.send("payments", "Debit")
        gate.wait_for(1)
        bus.send("orders", "Ship")
        eventually(
            lambda: scalar(
                connection, "SELECT count(*) FROM cmdbus.lane WHERE waits_for IS NOT NULL"
            )
        )
        await_rest(connection)
        assert not started.ids
        if ends == "is canceled":
            bus.cancel("payments", id_, reason="r", running=True)
        else:
            gate.open.set()
        started.within()
        gate.open.set()


@pytest.mark.parametrize("freed", ["canceled by an operator", "released", "released as lost"])
def test_a_place_of_a_node_that_is_gone_wakes_the_node_of_another_domain(
    dsn: str, bus: CommandBus, connection: psycopg.Connection, freed: str
) -> None:
    """No node is left that has the type of the command that held the place."""
    declare(connection, SHARED)
    id_, started = bus.send("payments", "Debit"), Started()
    gone = LaneClaimer(dsn, ["payments Debit"])
    [claim] = gone.claim(1)
    with node(dsn, "orders", "Ship", started):
        bus.send("orders", "Ship")
        await_waiting_lanes(connection)
        await_rest(connection)
        if freed == "canceled by an operator":
            bus.cancel("payments", id_, reason="r", running=True)
        else:
            gone.release(claim, None if freed == "released" else 1)
        started.within()
    gone.connection.close()


def starts(connection: psycopg.Connection) -> list[float]:
    query = "SELECT claimed_at FROM cmdbus.finished ORDER BY claimed_at"
    return [row[0].timestamp() for row in connection.execute(query)]


def test_a_rate_starts_commands_at_their_time_on_a_node_that_waits(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    declare(connection, Limit("payments Debit", starts_per_second=2, burst=1))

    def are_on_time() -> bool:
        earlier_ones = len(starts(connection))
        for _ in range(5):
            bus.send("payments", "Debit")
        eventually(lambda: len(starts(connection)) == earlier_ones + 5)
        times = starts(connection)[earlier_ones:]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert min(pauses) >= 0.499
        return sorted(pauses)[1] < 0.55

    with node(dsn, "payments", "Debit", do_nothing):
        await_rest(connection)
        # The best of three, as a busy machine may delay some.
        assert any(are_on_time() for _ in range(3))


def test_a_rate_starts_its_next_command_on_another_node_if_the_one_that_knew_its_time_is_gone(
    dsn: str, bus: CommandBus, connection: psycopg.Connection
) -> None:
    """Its claim has settled the only command that ran: nothing else is left to wake the other."""
    declare(connection, Limit("payments Debit", starts_per_second=0.5, burst=2, concurrency=1))
    for _ in range(3):
        bus.send("payments", "Debit")
    gone, started = LaneClaimer(dsn, ["payments Debit"]), Started()
    gone.claim(1)
    with node(dsn, "payments", "Debit", started):
        await_rest(connection)
        # As if the first command had just started, on a machine that is slow.
        connection.execute(
            "UPDATE cmdbus.lane SET next_start = clock_timestamp() + '2 s'::interval"
        )
        assert len(gone.claim(1, done=tuple(gone.held))) == 1
        gone.claim_nothing(1, done=tuple(gone.held))
        assert 0 < gone.opens_in < 2
        gone.connection.close()
        started.within()
