"""A handler that goes on from its checkpoints, in a fleet that is killed, reloaded and stopped."""

import signal
from pathlib import Path

import pytest
from eventually import eventually
from fleet import Fleet, kill

from cmdbus.exits import Exit

pytestmark = pytest.mark.fleet(procs=2, threads=2)

NUMBERS = 200


def test_each_row_is_written_once_whatever_stops_the_process_that_iterates(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Checkpoints and rows share their transactions."""
    held = tmp_path / "held"
    held.touch()
    [sent] = fleet.send("Iterate", data={"count": NUMBERS, "held": str(held)})
    kill(int(eventually(held.read_text)))
    held.unlink()
    _await_rows(fleet, 60)
    before = fleet.pids()
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(before.values())
    fleet.await_completed([sent], within=30)
    written = fleet.query("SELECT attempt, count(*) FROM effect GROUP BY 1 ORDER BY 1")
    assert written == [(number, 1) for number in range(NUMBERS)]
    kinds = fleet.query("SELECT DISTINCT kind FROM cmdbus.event WHERE command_id = %s", sent)
    assert kinds == [("LOST",)], "giving it back leaves no event"
    _stop_while_it_iterates(fleet, held)


def _stop_while_it_iterates(fleet: Fleet, held: Path) -> None:
    [sent] = fleet.send("Iterate", data={"count": 10**6, "held": str(held)})
    _await_rows(fleet, NUMBERS + 40)
    assert fleet.stop() == Exit.DONE, "nothing had to be killed"
    command = "SELECT status, attempts, checkpoint::text FROM cmdbus.command WHERE command_id = %s"
    written = "SELECT count(*), max(attempt) + 1 FROM effect WHERE command_id = %s"
    [(count, following)] = fleet.query(written, sent)
    assert count == following and fleet.query(command, sent) == [("PENDING", 0, str(count))]


def _await_rows(fleet: Fleet, count: int) -> None:
    eventually(lambda: fleet.query("SELECT count(*) FROM effect")[0][0] >= count)
