"""How a worker chooses its number of threads from a range: simulated, in microseconds."""

import pytest
from thread_plants import Plant, run, run_together, steps

from cmdbus.board.threads import StepReason
from cmdbus.settings import ThreadRange
from cmdbus.worker.load_sample import LoadSample
from cmdbus.worker.thread_policy import ThreadPolicy

WIDE = ThreadRange(1, 32)
WAITING = Plant(io=0.02)
COMPUTING = Plant(cpu=0.002)
MIXED = Plant(io=0.02, cpu=0.005)
CROWDED = Plant(io=0.02, contention=0.01)
PLANTS = {
    "waiting": WAITING,
    "waiting long": Plant(io=3.0),
    "computing": COMPUTING,
    "computing on half a CPU": Plant(cpu=0.002, cpus=0.5),
    "mixed": MIXED,
    "mostly waiting": Plant(io=0.02, cpu=0.0018),
    "a database that gets slower with more sessions": CROWDED,
    "one that gets slower by little": Plant(io=0.02, contention=0.002),
}


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("bounds", [WIDE, ThreadRange(2, 32), ThreadRange(1, 8)])
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_the_best_number_is_found_within_30_seconds_and_kept(
    plant: Plant, bounds: ThreadRange, noise: float
) -> None:
    history = run(ThreadPolicy(bounds, bounds.least), lambda second: plant, 360, noise=noise)
    rates = [rate for _, rate in history]
    assert sum(rates[30:60]) / 30 >= 0.9 * plant.best(bounds)
    assert sum(rates[60:]) / 300 >= 0.93 * plant.best(bounds)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_it_takes_one_step_in_some_seconds_and_few_at_a_steady_load(plant: Plant) -> None:
    history = run(ThreadPolicy(WIDE, 1), lambda second: plant, 660, noise=0.05)
    assert all(steps(history[second : second + 3]) <= 1 for second in range(600))
    assert steps(history[:61]) <= 18
    later = [steps(history[second : second + 61]) for second in range(120, 600, 60)]
    assert max(later) <= 8 and sum(later) / len(later) <= 4, later


@pytest.mark.parametrize("after", [60, 900])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (WAITING, COMPUTING),
        (COMPUTING, WAITING),
        (WAITING, MIXED),
        (MIXED, WAITING),
        (WAITING, CROWDED),
        (CROWDED, WAITING),
        (COMPUTING, MIXED),
        (Plant(io=0.02, arrivals=0), WAITING),
    ],
)
def test_after_the_load_has_changed_the_best_number_is_found_again(
    one: Plant, other: Plant, after: int
) -> None:
    plant = lambda second: one if second < after else other  # noqa: E731
    history = run(ThreadPolicy(WIDE, 1), plant, after + 120, noise=0.05)
    rates = [rate for _, rate in history[after + 30 :]]
    assert sum(rates) / len(rates) >= 0.9 * other.best(WIDE)


def test_threads_that_compute_are_few() -> None:
    policy = ThreadPolicy(WIDE, 32)
    run(policy, lambda second: COMPUTING, 60, noise=0.0)
    assert policy.threads <= 4


@pytest.mark.parametrize("start", [1, 32])
def test_without_work_it_has_the_least(start: int) -> None:
    policy = ThreadPolicy(WIDE, start)
    history = run(policy, lambda second: Plant(io=0.02, arrivals=0), 120)
    assert (policy.threads, steps(history)) == (1, 5 if start == 32 else 0)
    assert policy.reason is (StepReason.THREADS_IDLE if start == 32 else StepReason.STARTED)


@pytest.mark.parametrize("threads", [2, 3, 4, 9])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.55, 0.57, 0.59])
def test_its_threads_end_however_many_were_busy_before_the_work_ended(
    threads: int, share: float
) -> None:
    """The last window with commands may show nearly all of them busy."""
    ending, idle = Plant(io=0.02, arrivals=share * threads / 0.02), Plant(io=0.02, arrivals=0)
    policy = ThreadPolicy(ThreadRange(1, threads), threads)
    run(policy, lambda second: ending if second < 4 else idle, 60, noise=0.0)
    assert policy.threads == 1


def test_a_load_that_some_threads_can_take_gets_as_many() -> None:
    """150 a second, of which each takes 20 ms, keep three busy."""
    for start in (1, 32):
        policy = ThreadPolicy(WIDE, start)
        history = run(policy, lambda second: Plant(io=0.02, arrivals=150.0), 180)
        assert 4 <= policy.threads <= 5
        assert steps(history, since=60) <= 1


def test_threads_that_idle_while_commands_wait_do_not_come_and_go() -> None:
    """As no more threads are woken for quick commands."""
    policy = ThreadPolicy(WIDE, 1)
    history = run(policy, lambda second: Plant(cpu=0.002, awake=2), 900, noise=0.0)
    assert 2 <= policy.threads <= 4
    assert steps(history, since=120) <= 14


def test_a_pause_between_two_loads_forgets_what_has_failed() -> None:
    policy = ThreadPolicy(WIDE, 1)
    idle = Plant(io=0.02, arrivals=0)
    run(policy, lambda second: COMPUTING if second < 600 else idle, 700, noise=0.0)
    history = run(policy, lambda second: WAITING, 40, noise=0.0)
    assert policy.threads == 32
    assert history[20][0] == 32


def test_nothing_is_tried_for_a_minute_after_there_was_no_connection_for_more() -> None:
    policy = ThreadPolicy(WIDE, 1)
    while policy.threads < 8:
        policy.observe(WAITING.sample(policy.threads, 1.0))
    policy.refuse(9)
    assert (policy.threads, policy.reason) == (4, StepReason.NO_RESOURCES)
    run(policy, lambda second: WAITING, 59, noise=0.0)
    assert policy.threads == 4
    run(policy, lambda second: WAITING, 30, noise=0.0)
    assert policy.threads > 4


def test_a_shortage_without_a_step_before_it_costs_some_threads_and_never_the_last() -> None:
    policy = ThreadPolicy(ThreadRange(2, 32), 14)
    policy.refuse(14)
    assert policy.threads == 10
    policy.refuse(3)
    assert policy.threads == 3
    policy.refuse(1)
    assert policy.threads == 2


def test_the_figures_of_an_outage_say_nothing() -> None:
    """Its trial is not judged: it would fail, and be taken back."""
    policy = ThreadPolicy(WIDE, 1)
    while policy.threads < 8:
        policy.observe(WAITING.sample(policy.threads, 1.0))
    policy.forget()
    run(policy, lambda second: WAITING, 10, noise=0.0)
    assert policy.threads > 8


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("plant", [COMPUTING, MIXED], ids=["computing", "mixed"])
def test_processes_that_share_a_machine_do_not_fight_for_it(plant: Plant, count: int) -> None:
    """Each decides by itself, and all of them together do as much as two CPUs let them."""
    policies = [ThreadPolicy(WIDE, 1) for _ in range(count)]
    history = run_together(policies, plant, 2.0, 600)
    rates = [rate for _, rate in history]
    assert sum(rates[30:]) / 570 >= 0.95 * 2.0 / plant.cpu
    assert sum(changed for changed, _ in history[300:]) / count / 5 <= 3, "a minute"


def test_each_step_has_its_reason() -> None:
    policy, reasons = ThreadPolicy(WIDE, 1), [StepReason.STARTED]
    for second in range(900):
        plant = WAITING if second < 300 else COMPUTING if second < 600 else CROWDED
        plant = Plant(io=0.02, arrivals=0) if second > 800 else plant
        if policy.observe(plant.sample(policy.threads, 1.0)):
            reasons.append(policy.reason)
    assert reasons[1:6] == [StepReason.WORK_WAITS] * 5
    assert {*reasons} >= {
        StepReason.NO_GAIN,
        StepReason.FEWER_DID_LESS,
        StepReason.FEWER_MAY_DO,
        StepReason.CPU_BUSY,
        StepReason.THREADS_IDLE,
    }


def test_handlers_that_become_slower_get_fewer_threads() -> None:
    policy, reasons = ThreadPolicy(WIDE, 1), set[StepReason]()
    for second in range(200):
        plant = WAITING if second < 50 else CROWDED
        if policy.observe(plant.sample(policy.threads, 1.0)):
            reasons.add(policy.reason)
    assert StepReason.HANDLERS_SLOWER in reasons
    assert 6 <= policy.threads <= 16


def test_a_busy_machine_counts_only_for_a_process_that_computes() -> None:
    """As other processes are the cause of it."""
    assert not LoadSample(cpu=0.2, seconds=2.0, machine=2.0).is_cpu_busy
    assert LoadSample(cpu=1.2, seconds=2.0, machine=2.0).is_cpu_busy
    assert not LoadSample(cpu=1.2, seconds=2.0, machine=1.0).is_cpu_busy
    assert LoadSample(cpu=1.9, seconds=2.0, machine=1.0).is_cpu_busy
