"""How far ahead a worker claims, as values."""

from cmdbus.worker.pipeline.prefetch_policy import MAX_PREFETCH, PrefetchPolicy


def test_a_type_is_quick_after_a_quick_run_and_not_after_a_slow_one() -> None:
    prefetch = PrefetchPolicy()
    assert not prefetch.is_quick("payments", "Debit"), "it has never run"
    prefetch.ran("payments", "Debit", 0.049)
    assert prefetch.is_quick("payments", "Debit")
    prefetch.ran("payments", "Slow", 0.05)
    assert not prefetch.is_quick("payments", "Slow")


def test_one_slow_run_among_many_quick_ones_leaves_a_type_quick() -> None:
    """Its thread may have waited for a CPU."""
    prefetch = PrefetchPolicy()
    for _ in range(3):
        for _ in range(150):
            prefetch.ran("payments", "Debit", 0.001)
        prefetch.ran("payments", "Debit", 0.2)
        assert prefetch.is_quick("payments", "Debit")


def test_a_type_that_turned_slow_is_quick_again_after_a_quick_run() -> None:
    prefetch = PrefetchPolicy()
    for _ in range(20):
        prefetch.ran("payments", "Debit", 0.2)
    assert not prefetch.is_quick("payments", "Debit")
    prefetch.ran("payments", "Debit", 0.001)
    assert prefetch.is_quick("payments", "Debit")


def test_a_type_is_tiny_while_its_runs_take_less_than_a_millisecond() -> None:
    prefetch = PrefetchPolicy()
    assert not prefetch.is_tiny("payments", "Debit"), "nothing is known yet"
    prefetch.ran("payments", "Debit", 0.0005)
    assert prefetch.is_tiny("payments", "Debit")
    prefetch.ran("payments", "Debit", 0.02)
    assert not prefetch.is_tiny("payments", "Debit")


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
    assert [steps.step(after=0.001, takes=0.001, claims=16) for _ in range(4)][-1] == MAX_PREFETCH


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
