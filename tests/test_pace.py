"""Which types are quick, and how far ahead a worker claims them, as values."""

from cmdbus.worker.pipeline.handled_types import RunTimes
from cmdbus.worker.pipeline.prefetch_policy import MAX_PREFETCH, PrefetchPolicy


def run_times(*seconds: float) -> RunTimes:
    times = RunTimes()
    for each in seconds:
        times.add(each)
    return times


def test_a_type_is_quick_after_a_quick_run_and_not_after_a_slow_one() -> None:
    assert not run_times().is_quick, "nothing is known yet"
    assert run_times(0.049).is_quick
    assert not run_times(0.05).is_quick


def test_one_slow_run_among_many_quick_ones_leaves_a_type_quick() -> None:
    """Its thread may have waited for a CPU."""
    for rounds in (1, 2, 3):
        assert run_times(*([0.001] * 150 + [0.2]) * rounds).is_quick


def test_a_type_that_turned_slow_is_quick_again_after_a_quick_run() -> None:
    slow = [0.2] * 20
    assert not run_times(*slow).is_quick
    assert run_times(*slow, 0.001).is_quick


def test_a_type_is_tiny_while_its_runs_take_less_than_a_millisecond() -> None:
    assert not run_times().is_tiny, "nothing is known yet"
    assert run_times(0.0005).is_tiny
    assert not run_times(0.0005, 0.02).is_tiny


class Steps:
    """One after the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pace = PrefetchPolicy()

    def step(self, after: float, takes: float, claims: int) -> int:
        """How far ahead to claim by the next one."""
        self.now += after
        began = self.now
        self.now += takes
        self.pace.claimed(claims, began, self.now)
        return self.pace.prefetch(10**6)


def test_claimed_ahead_is_what_is_started_within_20_ms() -> None:
    steps = Steps()
    assert steps.step(after=0, takes=0.001, claims=16) == 0, "the pace is not known"
    assert steps.step(after=0.02, takes=0.001, claims=16) == 16, "16 in 20 ms"
    assert [steps.step(after=0.001, takes=0.001, claims=32) for _ in range(4)][-1] == MAX_PREFETCH


def test_a_claim_immediately_after_another_does_not_count_as_pace() -> None:
    """Two threads that sleep for 20 ms finish one after the other."""
    steps = Steps()
    for _ in range(10):
        assert steps.step(after=0.0001, takes=0.001, claims=1) <= 3
        assert steps.step(after=0.0199, takes=0.001, claims=1) <= 3


def test_where_steps_are_slow_claims_are_large() -> None:
    steps = Steps()
    steps.step(after=0, takes=0.1, claims=16)
    assert steps.step(after=0.02, takes=0.1, claims=16) == 80, "what is started during a step"


def test_the_first_claim_after_a_wait_prefetches_less() -> None:
    """Others may be idle, too."""
    steps = Steps()
    steps.step(after=0, takes=0.001, claims=16)
    assert steps.step(after=0.01, takes=0.001, claims=0) == 3, "1,600 a second for 2 ms"
    assert steps.step(after=60, takes=0.001, claims=0) == 3, "the rest is no pace"


def test_nothing_is_claimed_ahead_of_more_payload_than_may_be_claimed() -> None:
    steps = Steps()
    steps.step(after=0, takes=0.001, claims=16)
    assert steps.step(after=0.02, takes=0.001, claims=16) > 0
    assert steps.pace.prefetch(-10) == 0
