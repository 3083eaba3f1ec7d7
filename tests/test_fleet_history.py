"""A fleet writes what its workers have done, whatever happens to its processes."""

import pytest
from eventually import eventually
from fleet import Fleet, kill

from cmdbus import CommandBus

pytestmark = [pytest.mark.fleet(procs=2, threads=2), pytest.mark.long]


def test_a_fleet_that_stops_has_written_all_that_its_processes_did(
    fleet: Fleet, bus: CommandBus
) -> None:
    """Also those that were killed; the counters of a seat outlive them."""
    fleet.await_completed(fleet.send("Noop", 40))
    # Counted once they are known to be committed.
    key = "shop", "Noop", "completed"
    eventually(lambda: fleet.board().counters().commands.get(key) == 40)
    steward = fleet.steward()
    assert steward is not None
    kill(steward)
    kill(fleet.pids()[0])
    fleet.succeeded(steward)
    fleet.wait_until_ready()
    fleet.await_completed(fleet.send("Noop", 40))
    assert fleet.stop() == 0
    minutes = bus.recent_minutes()
    assert sum(point.ended.completed for point in minutes["shop"]) == 80
    assert [point.ended for point in minutes[""]] == [point.ended for point in minutes["shop"]]
