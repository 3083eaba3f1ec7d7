"""A fleet whose processes find their number of threads."""

import signal

import pytest
from eventually import eventually
from fleet import Fleet

from cmdbus.board.threads import StepReason, ThreadsView


def threads(fleet: Fleet) -> ThreadsView | None:
    return fleet.workers()[0].threads


@pytest.mark.fleet(procs=1, threads="1:2")
def test_a_process_takes_another_thread_for_handlers_that_wait_and_its_successor_too(
    fleet: Fleet,
) -> None:
    assert threads(fleet) == ThreadsView(1, 1, 2, StepReason.STARTED)
    fleet.send("Sleep", 1000, data=0.02)
    eventually(lambda: threads(fleet) == ThreadsView(2, 1, 2, StepReason.WORK_WAITS), 20.0)
    before = fleet.pids()
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(before.values())
    assert threads(fleet) == ThreadsView(2, 1, 2, StepReason.STARTED)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.fleet(procs=1, threads="1:8")
def test_a_process_finds_its_number_under_a_load_and_ends_threads_after_it(fleet: Fleet) -> None:
    few = sessions(fleet)
    ids = fleet.send("Sleep", 12_000, data=0.02)
    eventually(lambda: (view := threads(fleet)) and view.now == 8, 60.0)
    eventually(lambda: sessions(fleet) >= few + 7)
    fleet.await_outcomes(ids, {("COMPLETED", 1): 12_000}, within=90.0)
    eventually(lambda: threads(fleet) == ThreadsView(1, 1, 8, StepReason.THREADS_IDLE), 60.0)
    eventually(lambda: sessions(fleet) <= few + 2)


def sessions(fleet: Fleet) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'cmdbus:%%'"
    return int(fleet.query(query)[0][0])
