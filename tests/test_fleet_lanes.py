"""Places and rates in fleets whose processes are killed while they have them."""

from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest
from eventually import eventually
from fleet import Fleet, await_rest, kill, supervised
from lane_claimer import Limit, declare
from queries import scalar

from cmdbus import CommandBus, SendRequest

pytestmark = pytest.mark.fleet(procs=2, threads=2, poll_interval=600)

STARTS = """
    SELECT extract(epoch FROM claimed_at)::float8 FROM cmdbus.finished
    WHERE type = 'Noop' ORDER BY claimed_at"""


@pytest.fixture
def other(fleet: Fleet) -> Iterator[Fleet]:
    """A second node, with the same options."""
    options = {**fleet.options, "name": "b"}
    with supervised(fleet.dsn, fleet.place, alone=False, **options) as other:
        yield other


@pytest.mark.fleet(visibility_timeout=60, thread_timeout=70, watchdog_timeout=90)
def test_a_place_of_a_killed_process_is_free_as_soon_as_it_is_rescued(
    fleet: Fleet, connection: psycopg.Connection
) -> None:
    """And its command waits for a place again, behind the others."""
    declare(connection, Limit("both", concurrency=1, covers=("shop Gate", "shop Noop")))
    gates = fleet.start_gates(1)
    noops = fleet.send("Noop")
    waiting = "SELECT count(*) FROM cmdbus.lane WHERE waits_for = 'both'"
    eventually(lambda: scalar(connection, waiting) == 1)
    kill(fleet.executing("Gate"))
    fleet.await_completed(noops)  # It does not wait until the lease of the other one ends.
    fleet.open_gate()
    fleet.await_completed(gates)


@pytest.mark.fleet(procs=1)
def test_a_rate_goes_on_at_its_times_if_a_node_is_killed(
    fleet: Fleet, other: Fleet, connection: psycopg.Connection
) -> None:
    declare(connection, Limit("shop Noop", starts_per_second=0.5, burst=1))
    await_rest(fleet, other)
    noops = fleet.send("Noop", 4)
    fleet.await_completed(noops[:1])
    kill([fleet.pid, *fleet.living()])
    other.await_completed(noops)
    starts = [start for (start,) in connection.execute(STARTS.encode())]
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    # None is left out, which would make 4 s of a pause; a busy machine may delay one of them.
    assert all(1.99 <= pause < 3.9 for pause in pauses) and sorted(pauses)[1] < 2.5, pauses


@pytest.mark.long
@pytest.mark.fleet(procs=4, threads=8, poll_interval=600)
def test_a_hot_fleet_waits_for_no_lock_and_never_deadlocks(
    fleet: Fleet, connection: psycopg.Connection
) -> None:
    declare(
        connection,
        Limit("shop Noop", concurrency=3),
        Limit("both", concurrency=12, covers=("shop Noop", "shop Debit")),
    )
    with CommandBus(fleet.dsn) as bus:
        ids = bus.send_many(
            SendRequest("shop", type, key=f"k{number % 10}")
            for number in range(500)
            for type in ("Noop", "Debit")
        )
    fleet.await_completed(ids, within=60)
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert scalar(connection, query) == 0
    assert not fleet.logged("a round trip failed")
    assert not fleet.messages(level="WARNING")
