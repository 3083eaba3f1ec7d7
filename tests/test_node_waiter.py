"""A worker of a fleet that waits for work: woken by a byte, for which it owes a claim."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from eventually import eventually
from handlers import beside
from node_waiters import Fleet, busy, idle, waiting_fleet

from cmdbus.board.counters import Counter

POLL = 0.1


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with waiting_fleet() as fleet:
        yield fleet


# Parking.


def test_a_worker_shows_that_it_waits_before_its_last_look(fleet: Fleet) -> None:
    """First parked, then whether there is something to do, then the number."""
    fleet.board.armed = 0
    seen = []

    def look() -> bool:
        seen.append((fleet.parked(), fleet.steward_pipe.pending))
        return True

    assert fleet.worker().wait_for_work(look) is None
    assert seen == [(True, 0)]
    assert not fleet.parked()


@pytest.mark.parametrize(("number", "calls"), [(0, 1), (7, 0)])
def test_a_worker_that_parks_while_nothing_is_armed_calls_the_steward(
    fleet: Fleet, number: int, calls: int
) -> None:
    fleet.board.armed = number
    worker = fleet.worker()
    fleet.worker_pipe.put()
    worker.wait_for_work(idle)
    assert fleet.steward_pipe.pending == calls


def test_a_wait_that_fails_leaves_no_worker_parked(fleet: Fleet) -> None:
    def look() -> bool:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fleet.worker().wait_for_work(look)
    assert not fleet.parked()


def test_a_parked_worker_shows_it_again_if_that_was_overwritten(fleet: Fleet) -> None:
    """The steward would disarm, and what is sent then would wait for the poll."""
    fleet.board.armed = 0
    worker = fleet.worker()
    with fleet.waiting(worker):
        since = fleet.board.seat_view(0).parked
        fleet.steward_pipe.drain()
        fleet.board.seat(0).parked = 0
        eventually(lambda: fleet.board.seat_view(0).parked == since)
        eventually(lambda: fleet.steward_pipe.pending)
        fleet.worker_pipe.put()


# Bytes.


def test_a_byte_wakes_one_worker_which_takes_it(fleet: Fleet) -> None:
    first, second = fleet.worker(0), fleet.worker(1)
    with fleet.waiting(first, 0), fleet.waiting(second, 1):
        fleet.worker_pipe.put()
        eventually(lambda: fleet.ended == [Counter.WAKEUPS_PIPE])
        assert [fleet.parked(0), fleet.parked(1)].count(True) == 1
        assert fleet.worker_pipe.pending == 0
        fleet.worker_pipe.put()
    assert fleet.ended == [Counter.WAKEUPS_PIPE] * 2


def test_a_woken_worker_that_claims_all_it_can_wakes_another(fleet: Fleet) -> None:
    """And only the first claim after the wake does."""
    worker = fleet.woken()
    for _ in range(5):
        worker.before_claim()
        worker.after_claim(full=True)
    assert fleet.worker_pipe.pending == 1


def test_a_woken_worker_that_claims_less_wakes_no_other(fleet: Fleet) -> None:
    """A wake that finds no more than it can do itself ends there."""
    worker = fleet.woken()
    worker.after_claim(full=False)
    worker.after_claim(full=True)
    assert fleet.worker_pipe.pending == 0


def test_a_worker_that_goes_on_claiming_wakes_no_other(fleet: Fleet) -> None:
    worker = fleet.worker()
    for _ in range(1_000):
        worker.before_claim()
        worker.after_claim(full=True)
    assert fleet.worker_pipe.put_so_far == 0


def test_a_busy_worker_takes_no_byte(fleet: Fleet) -> None:
    fleet.worker_pipe.put()
    assert fleet.worker().wait_for_work(busy) is None
    assert fleet.worker_pipe.pending == 1


def test_a_byte_taken_by_a_worker_that_became_busy_goes_back(fleet: Fleet) -> None:
    answers = iter([False, True])
    worker = fleet.worker()
    fleet.worker_pipe.put()
    assert worker.wait_for_work(lambda: next(answers)) is None
    assert fleet.worker_pipe.pending == 1
    worker.after_claim(full=True)
    assert fleet.worker_pipe.pending == 1, "and is not passed on besides"


def test_a_byte_whose_claim_was_not_made_before_the_stop_goes_back(fleet: Fleet) -> None:
    stops, done = fleet.woken(0), fleet.woken(1)
    done.after_claim(full=False)
    done.stop()
    assert fleet.worker_pipe.pending == 0
    stops.stop()
    assert fleet.worker_pipe.pending == 1


def test_after_a_claim_that_failed_the_next_one_wakes_another(fleet: Fleet) -> None:
    worker = fleet.woken()
    worker.before_claim()  # And the statement fails.
    worker.before_claim()
    worker.after_claim(full=True)
    assert fleet.worker_pipe.pending == 1


def test_jitter_spreads_claims_after_a_wake_up_over_its_whole_length(fleet: Fleet) -> None:
    """Each claim waits for its random number, to which a busy machine only adds."""
    worker = fleet.worker(jitter_ms=20)
    dice = random.getstate()
    drawn = [random.uniform(0, 0.020) for _ in range(50)]
    random.setstate(dice)
    pauses = []
    for _ in drawn:
        fleet.worker_pipe.put()
        began = time.monotonic()
        assert worker.wait_for_work(idle) is Counter.WAKEUPS_PIPE
        pauses.append(time.monotonic() - began)
        worker.after_claim(full=False)
    assert all(pause >= least for pause, least in zip(pauses, drawn, strict=True))
    assert min(pauses) < 0.020, "it is the longest pause, not the shortest"


# A worker's own wake.


def test_a_wake_after_the_claim_ends_the_wait_that_follows(fleet: Fleet) -> None:
    worker = fleet.worker()
    worker.before_claim()
    worker.wake()
    fleet.worker_pipe.put()
    assert worker.wait_for_work(idle) is None
    assert fleet.worker_pipe.pending == 1, "the byte is left to another one"


def test_a_wake_before_the_claim_is_answered_by_the_claim(fleet: Fleet) -> None:
    worker = fleet.worker()
    worker.wake()
    worker.wake()
    worker.before_claim()
    fleet.worker_pipe.put()
    assert worker.wait_for_work(idle) is Counter.WAKEUPS_PIPE


def test_wake_if_waiting_does_nothing_for_a_busy_worker(fleet: Fleet) -> None:
    worker = fleet.worker()
    worker.wake_if_waiting()
    with fleet.waiting(worker):
        assert fleet.ended == []
        worker.wake_if_waiting()
    assert fleet.ended == [None]


def test_after_the_stop_a_wake_writes_into_no_file(fleet: Fleet) -> None:
    worker = fleet.worker()

    def stopped_meanwhile() -> bool:
        worker.stop()
        worker.wake_if_waiting()
        worker.wake()
        return True

    assert worker.wait_for_work(stopped_meanwhile) is None


# Polling.


def test_a_wait_ends_when_something_is_due(fleet: Fleet) -> None:
    """Though the node is armed, and no byte comes."""
    worker = fleet.worker()
    until = time.monotonic() + 0.02
    assert worker.wait_for_work(idle, until) is Counter.WAKEUPS_TIMER
    assert until <= time.monotonic() < until + 5
    assert not fleet.parked()


def test_until_then_the_board_shows_that_the_worker_has_something_to_do(fleet: Fleet) -> None:
    """--drain ends a fleet whose workers have been parked for a second."""
    worker = fleet.worker()
    until = time.monotonic() + 60
    with beside(worker.wait_for_work, idle, until):
        eventually(fleet.parked)
        parked = fleet.board.seat_view(0).parked
        worker.wake()
    assert parked == int(until * 1e9)


def test_while_the_steward_does_not_listen_workers_poll(fleet: Fleet) -> None:
    """The listener's connection died."""
    fleet.board.listening = False
    assert fleet.worker(poll=POLL).wait_for_work(idle) is Counter.WAKEUPS_POLL


def test_while_the_steward_listens_workers_do_not_poll(
    fleet: Fleet,
) -> None:
    """Each wait ends within its bound, or its leader would look like one that hangs."""
    fleet.board.armed = 1
    worker = fleet.worker(poll=POLL)
    for _ in range(3):
        began = time.monotonic()
        assert worker.wait_for_work(idle) is None
        assert POLL <= time.monotonic() - began < POLL + 5
        assert worker.only_own(), "it waits on, and claims nothing"
    fleet.board.listening = False
    assert worker.wait_for_work(idle) is Counter.WAKEUPS_POLL


# Chains.


class Leaders:
    """Threads that claim when they are woken: all items that there are, and at most `at_once`.
    The first runs of `together` of them end together."""

    def __init__(self, fleet: Fleet, workers: int, items: int, at_once: int, together: int) -> None:
        self.fleet, self.left, self.at_once = fleet, items, at_once
        #: What each worker got, and its claims that found nothing.
        self.got, self.empty = [0] * workers, [0] * workers
        self._lock, self._together = threading.Lock(), threading.Barrier(together)
        self._stopping = threading.Event()
        self._waiters = [fleet.worker(index) for index in range(workers)]

    def _claim(self) -> int:
        with self._lock:
            count = min(self.at_once, self.left)
            self.left -= count
            return count

    def _lead(self, index: int) -> None:
        waiter = self._waiters[index]
        while not self._stopping.is_set():
            waiter.wait_for_work(self._stopping.is_set)
            while not self._stopping.is_set():
                waiter.before_claim()
                count = self._claim()
                waiter.after_claim(full=count >= self.at_once)
                if not count:
                    self.empty[index] += 1
                    break
                if not self.got[index]:
                    self._together.wait(10)
                self.got[index] += count

    def all_wait(self) -> bool:
        parked = [self.fleet.parked(index) for index in range(len(self.got))]
        return all(parked) and not self.fleet.worker_pipe.pending

    def drain(self) -> None:
        with ExitStack() as threads:
            for index in range(len(self.got)):
                threads.enter_context(beside(self._lead, index))
            try:
                eventually(self.all_wait)
                self.fleet.worker_pipe.put()
                eventually(lambda: self.all_wait() and not self.left)
            finally:
                self._stopping.set()
                for waiter in self._waiters:
                    waiter.wake()


def test_a_burst_wakes_all_workers_in_a_chain_and_not_one_for_each_command(fleet: Fleet) -> None:
    """4 workers, 100 commands: at most 8 bytes, and all of them work."""
    leaders = Leaders(fleet, 4, 100, 5, together=4)
    leaders.drain()
    assert sum(leaders.got) == 100 and min(leaders.got) > 0, leaders.got
    assert fleet.worker_pipe.put_so_far <= 8
    assert sum(leaders.empty) <= 5
    assert fleet.worker_pipe.pending == 0


def test_a_single_command_wakes_one_worker(fleet: Fleet) -> None:
    """It looks once more, and no other does."""
    leaders = Leaders(fleet, 4, 1, 5, together=1)
    leaders.drain()
    assert sorted(leaders.got) == [0, 0, 0, 1]
    assert (fleet.worker_pipe.put_so_far, sum(leaders.empty)) == (1, 1)


# Quarantine processes.


def test_a_quarantine_process_leaves_when_there_are_no_more_suspects(fleet: Fleet) -> None:
    """And takes no byte that is meant for a worker."""
    left: list[str] = []
    waiter = fleet.worker(leave=lambda: left.append("left"))
    fleet.worker_pipe.put()
    waiter.before_claim()
    with beside(waiter.wait_for_work, idle):
        eventually(lambda: left == ["left"])
        waiter.wake()
    assert fleet.worker_pipe.pending == 1 and not fleet.parked()


def test_it_does_not_leave_with_something_to_settle(fleet: Fleet) -> None:
    left: list[str] = []
    assert fleet.worker(leave=lambda: left.append("left")).wait_for_work(busy) is None
    assert left == []
