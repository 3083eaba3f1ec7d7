"""A worker of a fleet that found nothing: woken by a byte, which is a duty."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest
from eventually import eventually

from cmdbus.board.board import Board
from cmdbus.board.counters import Counter
from cmdbus.board.node import Node
from cmdbus.board.wake_pipe import Wire
from cmdbus.worker.waiting.node_waiter import LeavingWake, WiredWake

#: These wakes talk to the board and to wires alone.
NO_CONNECTION: psycopg.Connection = None  # type: ignore[assignment]
POLL = 0.1


def idle() -> bool:
    return False


def busy() -> bool:
    return True


class CountingWire(Wire):
    """Says how many bytes were put into it."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.put_so_far = 0

    def put(self) -> None:
        self.put_so_far += 1
        super().put()


@dataclass
class Fleet:
    """Workers of one node, each of which is only its leader."""

    board: Board
    wake: CountingWire
    call: Wire
    opened: ExitStack
    #: What rests on threads of the test ended with.
    ended: list[Counter | None] = field(default_factory=list)

    def worker(self, place: int = 0, jitter_ms: int = 0, poll: float = 60.0) -> WiredWake:
        node = Node(
            board=self.board,
            seat=self.board.seat(place),
            generation=1,
            parent=1,
            wake=self.wake,
            call=self.call,
        )
        wake = WiredWake(node, poll, jitter_ms, look=0.01)
        self.opened.callback(wake.stop)
        return wake

    def parked(self, place: int = 0) -> bool:
        return self.board.seat_view(place).parked is not None

    @contextmanager
    def resting(self, worker: WiredWake, place: int = 0) -> Iterator[None]:
        """On a thread, which must have ended at the end."""

        def rest() -> None:
            self.ended.append(worker.rest(NO_CONNECTION, idle))

        thread = threading.Thread(target=rest)
        thread.start()
        try:
            eventually(lambda: self.parked(place))
            yield
            thread.join(10)
            assert not thread.is_alive()
        finally:
            worker.ring()
            thread.join(10)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with ExitStack() as opened:
        board, wake, call = Board.in_memory(4, 2), CountingWire(8), Wire(1)
        for what in (board, wake, call):
            opened.callback(what.close)
        for place in range(4):
            board.seat(place).enter(pid=1, generation=1, now=1)
        board.set_listening(True)
        board.set_armed(1)
        yield Fleet(board, wake, call, opened)


# Parking.


def test_whoever_rests_shows_it_before_it_looks_for_the_last_time(fleet: Fleet) -> None:
    """Race 1i (2): first parked, then whether there is something to do, then the number."""
    fleet.board.set_armed(0)
    seen = []

    def look() -> bool:
        seen.append((fleet.parked(), fleet.call.pending))
        return True

    assert fleet.worker().rest(NO_CONNECTION, look) is None
    assert seen == [(True, 0)]
    assert not fleet.parked()


@pytest.mark.parametrize(("number", "calls"), [(0, 1), (7, 0)])
def test_whoever_parks_while_nothing_is_armed_calls_the_steward(
    fleet: Fleet, number: int, calls: int
) -> None:
    fleet.board.set_armed(number)
    worker = fleet.worker()
    fleet.wake.put()
    worker.rest(NO_CONNECTION, idle)
    assert fleet.call.pending == calls


def test_a_rest_that_fails_leaves_nobody_parked(fleet: Fleet) -> None:
    def look() -> bool:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fleet.worker().rest(NO_CONNECTION, look)
    assert not fleet.parked()


def test_whoever_rests_says_so_again_where_it_was_written_over(fleet: Fleet) -> None:
    """Fault 26: the steward would disarm, and what is sent then would wait for the poll."""
    fleet.board.set_armed(0)
    worker = fleet.worker()
    with fleet.resting(worker):
        since = fleet.board.seat_view(0).parked
        fleet.call.drain()
        fleet.board.seat(0).unpark()
        eventually(lambda: fleet.board.seat_view(0).parked == since)
        eventually(lambda: fleet.call.pending)
        fleet.wake.put()


# Bytes.


def test_a_byte_wakes_one_and_it_is_that_ones(fleet: Fleet) -> None:
    """M061: a competing consumer."""
    first, second = fleet.worker(0), fleet.worker(1)
    with fleet.resting(first, 0), fleet.resting(second, 1):
        fleet.wake.put()
        eventually(lambda: fleet.ended == [Counter.WAKEUPS_PIPE])
        assert [fleet.parked(0), fleet.parked(1)].count(True) == 1
        assert fleet.wake.pending == 0
        fleet.wake.put()
    assert fleet.ended == [Counter.WAKEUPS_PIPE] * 2


def test_woken_and_with_a_full_claim_one_passes_one_on(fleet: Fleet) -> None:
    """M070: and only the first claim after the wake does."""
    worker = fleet.worker()
    fleet.wake.put()
    assert worker.rest(NO_CONNECTION, idle) is Counter.WAKEUPS_PIPE
    for _ in range(5):
        worker.working(NO_CONNECTION)
        worker.stepped(full=True)
    assert fleet.wake.pending == 1


def test_woken_and_with_less_than_a_full_claim_one_passes_none_on(fleet: Fleet) -> None:
    """M072: a wake that finds no more than it can do itself ends there."""
    worker = fleet.worker()
    fleet.wake.put()
    worker.rest(NO_CONNECTION, idle)
    worker.stepped(full=False)
    worker.stepped(full=True)
    assert fleet.wake.pending == 0


def test_a_tight_loop_sends_nothing(fleet: Fleet) -> None:
    """M074."""
    worker = fleet.worker()
    for _ in range(1_000):
        worker.working(NO_CONNECTION)
        worker.stepped(full=True)
    assert fleet.wake.put_so_far == 0


def test_whoever_is_busy_does_not_take_a_byte(fleet: Fleet) -> None:
    """Race 1i (3)."""
    fleet.wake.put()
    assert fleet.worker().rest(NO_CONNECTION, busy) is None
    assert fleet.wake.pending == 1


def test_a_byte_taken_by_one_that_got_busy_meanwhile_goes_back(fleet: Fleet) -> None:
    """Race 1i (3): claim, or write it back."""
    answers = iter([False, True])
    worker = fleet.worker()
    fleet.wake.put()
    assert worker.rest(NO_CONNECTION, lambda: next(answers)) is None
    assert fleet.wake.pending == 1
    worker.stepped(full=True)
    assert fleet.wake.pending == 1, "and is not passed on besides"


def test_a_byte_whose_claim_was_not_made_before_the_stop_goes_back(fleet: Fleet) -> None:
    stops, done = fleet.worker(0), fleet.worker(1)
    for worker in (stops, done):
        fleet.wake.put()
        worker.rest(NO_CONNECTION, idle)
    done.stepped(full=False)
    done.stop()
    assert fleet.wake.pending == 0
    stops.stop()
    assert fleet.wake.pending == 1


def test_a_byte_whose_claim_failed_is_still_to_be_passed_on_by_the_next(fleet: Fleet) -> None:
    worker = fleet.worker()
    fleet.wake.put()
    worker.rest(NO_CONNECTION, idle)
    worker.working(NO_CONNECTION)  # And the statement fails: there is no `stepped`.
    worker.working(NO_CONNECTION)
    worker.stepped(full=True)
    assert fleet.wake.pending == 1


def test_jitter_spreads_claims_after_a_wake_up_over_its_whole_length(fleet: Fleet) -> None:
    def pauses(jitter_ms: int) -> list[float]:
        """Seconds from a byte that is already there to the claim."""
        worker = fleet.worker(jitter_ms=jitter_ms)
        found = []
        for _ in range(100):
            fleet.wake.put()
            began = time.monotonic()
            assert worker.rest(NO_CONNECTION, idle) is Counter.WAKEUPS_PIPE
            found.append(time.monotonic() - began)
            worker.stepped(full=False)
        return sorted(found)

    without, spread = pauses(0), pauses(10)
    # A busy machine adds to both: of 100, only the ends are compared, and the middle.
    assert spread[50] - without[50] > 0.003
    assert spread[10] - without[10] < 0.003
    assert spread[75] - spread[25] > 0.003
    assert spread[75] - without[75] < 0.010


# The own bell.


def test_whoever_rings_after_the_claim_ends_the_rest_that_follows(fleet: Fleet) -> None:
    worker = fleet.worker()
    worker.working(NO_CONNECTION)
    worker.ring()
    fleet.wake.put()
    assert worker.rest(NO_CONNECTION, idle) is None
    assert fleet.wake.pending == 1, "the byte is left to another one"


def test_whoever_rang_before_the_claim_has_been_heard_by_it(fleet: Fleet) -> None:
    worker = fleet.worker()
    worker.ring()
    worker.ring()
    worker.working(NO_CONNECTION)
    fleet.wake.put()
    assert worker.rest(NO_CONNECTION, idle) is Counter.WAKEUPS_PIPE


def test_the_bell_for_one_that_rests_is_only_for_one_that_rests(fleet: Fleet) -> None:
    worker = fleet.worker()
    worker.ring_if_resting()
    with fleet.resting(worker):
        assert fleet.ended == []
        worker.ring_if_resting()
    assert fleet.ended == [None]


def test_after_the_stop_nobody_is_rung_and_no_other_file_gets_the_byte(fleet: Fleet) -> None:
    worker = fleet.worker()

    def stopped_meanwhile() -> bool:
        worker.stop()
        worker.ring_if_resting()
        worker.ring()
        return True

    assert worker.rest(NO_CONNECTION, stopped_meanwhile) is None


# Polling.


def test_a_rest_is_over_when_something_is_to_be_looked_at_again(fleet: Fleet) -> None:
    """Though the node is armed, and no byte comes."""
    worker = fleet.worker()
    until = time.monotonic() + 0.02
    assert worker.rest(NO_CONNECTION, idle, until) is Counter.WAKEUPS_TIMER
    assert until <= time.monotonic() < until + 5
    assert not fleet.parked()


def test_until_then_it_counts_as_a_worker_that_has_something_to_do(fleet: Fleet) -> None:
    """--drain ends a fleet whose workers have been parked for a second."""
    worker = fleet.worker()
    until = time.monotonic() + 60
    thread = threading.Thread(target=worker.rest, args=(NO_CONNECTION, idle, until))
    thread.start()
    eventually(fleet.parked)
    parked = fleet.board.seat_view(0).parked
    worker.ring()
    thread.join(10)
    assert parked == int(until * 1e9)


def test_while_nobody_listens_everybody_polls(fleet: Fleet) -> None:
    """The listener's connection died."""
    fleet.board.set_listening(False)
    assert fleet.worker(poll=POLL).rest(NO_CONNECTION, idle) is Counter.WAKEUPS_POLL


def test_while_the_steward_listens_nobody_polls_and_when_it_does_not_any_more_all_do(
    fleet: Fleet,
) -> None:
    """M086. Each rest ends within its bound, or its leader would look like one that hangs."""
    fleet.board.set_armed(1)
    worker = fleet.worker(poll=POLL)
    for _ in range(3):
        began = time.monotonic()
        assert worker.rest(NO_CONNECTION, idle) is None
        assert POLL <= time.monotonic() - began < POLL + 1
        assert worker.only_own(), "it rests on, and claims nothing"
    fleet.board.set_listening(False)
    assert worker.rest(NO_CONNECTION, idle) is Counter.WAKEUPS_POLL


# Chains.


def drains(
    fleet: Fleet, workers: int, items: int, at_once: int, together: int
) -> tuple[list[int], list[int]]:
    """What each worker got, and its claims that found nothing, once all rest again. The first
    runs of `together` workers end together."""
    left = [items]
    barrier = threading.Barrier(together)
    lock = threading.Lock()
    got, empty = [0] * workers, [0] * workers
    stopping = threading.Event()
    wakes = [fleet.worker(place) for place in range(workers)]

    def claim() -> int:
        with lock:
            count = min(at_once, left[0])
            left[0] -= count
            return count

    def lead(place: int) -> None:
        wake = wakes[place]
        while not stopping.is_set():
            wake.rest(NO_CONNECTION, stopping.is_set)
            while not stopping.is_set():
                wake.working(NO_CONNECTION)
                count = claim()
                wake.stepped(full=count >= at_once)
                if not count:
                    empty[place] += 1
                    break
                if not got[place]:
                    barrier.wait(10)
                got[place] += count

    threads = [threading.Thread(target=lead, args=(place,)) for place in range(workers)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(fleet.parked(place) for place in range(workers)))
        fleet.wake.put()
        eventually(lambda: _all_rest(fleet, workers) and not left[0])
    finally:
        stopping.set()
        for wake in wakes:
            wake.ring()
        for thread in threads:
            thread.join(10)
    return got, empty


def _all_rest(fleet: Fleet, workers: int) -> bool:
    return not fleet.wake.pending and all(fleet.parked(place) for place in range(workers))


def test_a_burst_wakes_all_in_a_chain_and_not_one_for_each_command(fleet: Fleet) -> None:
    """M071, M073, M075, M076: 4 workers, 100 commands: at most 8 bytes, and all of them work."""
    got, empty = drains(fleet, 4, 100, 5, together=4)
    assert sum(got) == 100 and min(got) > 0, got
    assert fleet.wake.put_so_far <= 8
    assert sum(empty) <= 5
    assert fleet.wake.pending == 0


def test_a_single_command_wakes_one_worker(fleet: Fleet) -> None:
    """M072: it looks once more, and nobody else does."""
    got, empty = drains(fleet, 4, 1, 5, together=1)
    assert sorted(got) == [0, 0, 0, 1]
    assert fleet.wake.put_so_far == 1
    assert sum(empty) == 1


# Those that run suspects.


def leaving(left: list[str]) -> LeavingWake:
    return LeavingWake(lambda: left.append("left"))


def test_a_process_for_suspects_leaves_when_there_are_no_more() -> None:
    left: list[str] = []
    wake = leaving(left)
    wake.working(NO_CONNECTION)
    thread = threading.Thread(target=wake.rest, args=(NO_CONNECTION, idle))
    thread.start()
    eventually(lambda: left == ["left"])
    wake.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_it_does_not_leave_with_something_to_settle() -> None:
    left: list[str] = []
    assert leaving(left).rest(NO_CONNECTION, busy) is None
    assert left == []
