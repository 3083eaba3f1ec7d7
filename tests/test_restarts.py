"""Which deaths keep a successor waiting, for how long, and when the supervisor gives up."""

import random
from itertools import pairwise

import pytest

from cmdbus.board.records import Role
from cmdbus.supervisor.restarts import QUIET_SECONDS, WINDOW_SECONDS, Restarts

A, B = (Role.WORKER, 0), (Role.WORKER, 1)
NOW = 1_000.0
MOMENT = 1e-6


def test_who_never_died_may_start_at_any_time() -> None:
    assert A not in Restarts().not_before
    assert not Restarts().too_many(1, NOW)


def test_the_first_successor_starts_at_once_and_the_pause_doubles_up_to_30_s() -> None:
    restarts, now = Restarts(), NOW
    pauses = []
    for _ in range(9):
        pauses.append(restarts.exited_early(A, now, rand=0.0))
        assert restarts.not_before[A] == now + pauses[-1]
        now += pauses[-1]
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_the_dice_make_a_pause_shorter_by_up_to_a_fifth_and_never_longer() -> None:
    dice = random.Random(7)
    seen = set()
    for _ in range(300):
        restarts = Restarts()
        pauses = [restarts.exited_early(A, NOW, dice.random()) for _ in range(8)]
        for pause, full in zip(pauses, [0, 1, 2, 4, 8, 16, 30, 30], strict=True):
            assert 0.8 * full <= pause <= full
        seen.add(pauses[-1])
    assert max(seen) - min(seen) > 5, "they spread"


@pytest.mark.parametrize(("early", "next_pause"), [(MOMENT, 8.0), (0.0, 0.0)])
def test_a_quiet_minute_and_no_less_ends_the_row(early: float, next_pause: float) -> None:
    restarts = Restarts()
    pauses = [restarts.exited_early(A, NOW, 0.0) for _ in range(4)]
    quiet_since = NOW + pauses[-1]
    assert restarts.exited_early(A, quiet_since + QUIET_SECONDS - early, 0.0) == next_pause


def test_a_pause_is_no_quiet_time() -> None:
    """A boot that takes 35 s and fails, and a pause of 30 s: that is more than a minute."""
    restarts, now = Restarts(), NOW
    pauses = []
    for _ in range(20):
        pauses.append(restarts.exited_early(A, now, 0.0))
        now += pauses[-1] + 35
    assert pauses[6:] == [30] * 14


def test_having_been_ready_for_a_while_ends_no_row() -> None:
    """It dies early, lives for 20 s, dies early again: the pause grows."""
    restarts, now = Restarts(), NOW
    pauses = []
    for _ in range(6):
        pauses.append(restarts.exited_early(A, now, 0.0))
        now += pauses[-1] + 20  # That exit was not early, and is not counted.
        now += 3
    assert all(earlier < later for earlier, later in pairwise(pauses))


def test_each_number_waits_for_itself() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.exited_early(A, NOW, 0.0)
    assert restarts.not_before.get(B, 0.0) <= NOW
    assert restarts.exited_early(B, NOW, 0.0) == 0.0


@pytest.mark.parametrize(("wanted", "most"), [(1, 6), (3, 6), (4, 8), (16, 32)])
def test_too_many_over_all_numbers_within_a_minute_end_the_supervisor(
    wanted: int, most: int
) -> None:
    restarts = Restarts()
    for death in range(most):
        assert not restarts.too_many(wanted, NOW)
        restarts.exited_early((Role.WORKER, death % wanted), NOW, 0.5)
    assert restarts.too_many(wanted, NOW)
    assert restarts.too_many(wanted, NOW + WINDOW_SECONDS - MOMENT)
    assert not restarts.too_many(wanted, NOW + WINDOW_SECONDS)


def test_a_whole_fleet_that_dies_at_boot_is_given_up_within_a_minute() -> None:
    """And the number of its starts is bounded."""
    for wanted in (1, 4, 16):
        restarts, starts = Restarts(), 0
        dice = random.Random(wanted)
        at = dict.fromkeys(range(wanted), NOW)
        while True:
            number = min(at, key=lambda n: at[n])
            now = at[number] + 0.3  # 0.3 s after its start it dies.
            starts += 1
            at[number] = now + restarts.exited_early((Role.WORKER, number), now, dice.random())
            if restarts.too_many(wanted, now):
                break
        assert now < NOW + 60 and starts <= max(6, 2 * wanted)


def test_the_latest_exit_decides_and_of_those_at_one_time_a_late_one() -> None:
    restarts = Restarts()
    assert not restarts.latest_was_early
    for at, early, late in ((NOW, True, False), (NOW + 1, False, True), (NOW + 2, True, True)):
        if late:
            restarts.exited_late(at)
        if early:
            restarts.exited_early(A, at, 0.0)
        assert restarts.latest_was_early is (early and not late)


def test_processes_that_find_nothing_to_run_wait_but_exit_no_earlier_than_they_should() -> None:
    restarts, post = Restarts(), (Role.QUARANTINE, 0)
    assert [restarts.ran_nothing(post, NOW, 0.0) for _ in range(4)] == [0, 1, 2, 4]
    restarts.ran(post)
    assert restarts.ran_nothing(post, NOW, 0.0) == 0
    assert not restarts.too_many(1, NOW) and not restarts.latest_was_early


def test_one_number_that_dies_for_days_is_no_reason_to_give_up_a_large_fleet() -> None:
    """Nor to fall over: twice as long a thousand times is more than a float can hold."""
    restarts, now = Restarts(), NOW
    for _ in range(5_000):
        now += restarts.exited_early(A, now, 0.0) + 1
        assert not restarts.too_many(16, now)
    assert restarts.not_before[A] <= now + 30


def test_a_fork_that_fails_waits_as_long_as_a_death_would_but_is_none() -> None:
    """The supervisor lives, and tries again with longer and longer pauses."""
    restarts, now = Restarts(), NOW
    pauses = []
    for _ in range(50):
        pauses.append(restarts.not_started(A, now, 0.0))
        now += pauses[-1]
        assert restarts.not_before[A] == now
    assert pauses[:6] == [1, 2, 4, 8, 16, 30] and set(pauses[6:]) == {30}
    assert not restarts.too_many(1, now)
