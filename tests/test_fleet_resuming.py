"""A handler that goes on from its checkpoints, in a fleet that is killed and reloaded."""

import signal

import pytest
from eventually import eventually
from fleet import Fleet, kill

pytestmark = pytest.mark.fleet(procs=2, threads=2)

NUMBERS = 200


def test_each_row_is_written_once_whatever_stops_the_process_that_iterates(fleet: Fleet) -> None:
    """Checkpoints and rows share their transactions."""
    [sent] = fleet.send("Iterate", data=NUMBERS)

    def await_rows(count: int) -> None:
        eventually(lambda: fleet.query("SELECT count(*) FROM effect")[0][0] >= count)

    await_rows(30)
    kill(eventually(lambda: fleet.executing("Iterate")))
    await_rows(60)
    before = fleet.pids()
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(before.values())
    fleet.await_completed([sent], within=30)
    written = fleet.query("SELECT attempt, count(*) FROM effect GROUP BY 1 ORDER BY 1")
    assert written == [(number, 1) for number in range(NUMBERS)]
    kinds = fleet.query("SELECT DISTINCT kind FROM cmdbus.event WHERE command_id = %s", sent)
    assert kinds == [("LOST",)], "giving it back leaves no event"
