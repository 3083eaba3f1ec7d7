"""When a process is healthy, and when it is so again."""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from cmdbus.board.health import WINDOW, Health, HealthReport
from cmdbus.worker.pipeline import process_health as module
from cmdbus.worker.pipeline.process_health import ProcessHealth


def health_of(process: ProcessHealth, now: float = 0.0) -> Health:
    return process.levels(now).health


def test_a_process_to_which_nothing_happened_is_healthy() -> None:
    assert ProcessHealth().levels(0.0) == HealthReport()
    assert HealthReport().health is Health.HEALTHY
    assert HealthReport().reasons == []


@pytest.mark.parametrize(
    ("levels", "health"),
    [
        (HealthReport(consecutive_failures=10), Health.HEALTHY),
        (HealthReport(consecutive_failures=11), Health.DEGRADED),
        (HealthReport(stuck_threads=3), Health.HEALTHY),
        (HealthReport(stuck_threads=4), Health.CRITICAL),
        (HealthReport(pool_exhaustions=5), Health.HEALTHY),
        (HealthReport(pool_exhaustions=6), Health.CRITICAL),
        (HealthReport(consecutive_failures=11, stuck_threads=4), Health.CRITICAL),
        (HealthReport(stuck_threads=4, database_away=True), Health.DATABASE_AWAY),
        (HealthReport(database_away=True), Health.DATABASE_AWAY),
    ],
)
def test_thresholds_are_more_than_ten_three_and_five(levels: HealthReport, health: Health) -> None:
    assert levels.health is health
    assert bool(levels.reasons) is (health is not Health.HEALTHY)


def test_the_eleventh_failure_in_a_row_degrades_and_a_success_recovers() -> None:
    process = ProcessHealth()
    for second in range(10):
        process.ended(second, failures=1)
    assert health_of(process, 10) is Health.HEALTHY
    process.ended(10, failures=1)
    assert health_of(process, 10) is Health.DEGRADED
    process.ended(11, succeeded=True)
    assert process.levels(11) == HealthReport(last_success=11)
    process.ended(12, failures=1)
    assert process.levels(12).consecutive_failures == 1


def test_failures_in_a_row_do_not_leave_with_the_window() -> None:
    process = ProcessHealth()
    for _ in range(11):
        process.ended(0, failures=1)
    assert health_of(process, 10 * WINDOW) is Health.DEGRADED


@pytest.mark.parametrize(
    ("happens", "tolerated"), [(ProcessHealth.stuck, 3), (ProcessHealth.pool_exhausted, 5)]
)
def test_one_event_too_many_is_critical_until_the_first_leaves_the_window(
    happens: Callable[[ProcessHealth, float], object], tolerated: int
) -> None:
    process = ProcessHealth()
    for second in range(tolerated):
        happens(process, second)
    assert health_of(process, tolerated) is Health.HEALTHY
    happens(process, tolerated)
    assert health_of(process, WINDOW - 0.001) is Health.CRITICAL
    assert health_of(process, WINDOW) is Health.HEALTHY
    assert process.levels(WINDOW + tolerated) == HealthReport()


def test_events_further_apart_than_the_window_never_add_up() -> None:
    process = ProcessHealth()
    for number in range(50):
        process.stuck(number * WINDOW / 3)
        process.pool_exhausted(number * WINDOW / 5)
        assert health_of(process, number * WINDOW / 3) is Health.HEALTHY


def test_while_the_database_is_away_no_health_is_judged_and_nothing_counts() -> None:
    process = ProcessHealth()
    process.stuck(0)
    for _ in range(8):
        process.ended(1, failures=1)
    process.database_away(2)
    for _ in range(100):
        process.ended(3, failures=1)
        process.pool_exhausted(3)
        process.stuck(3)
    assert process.levels(4).health is Health.DATABASE_AWAY
    assert process.levels(4).reasons == ["the database is away"]
    assert (process.database_back(5), process.database_back(6)) == (3, None)
    assert process.levels(5) == HealthReport(stuck_threads=1)


def test_the_database_coming_back_twice_forgives_no_failure() -> None:
    process = ProcessHealth()
    process.ended(0, failures=1)
    process.database_back(1)
    assert process.levels(1).consecutive_failures == 1


def test_a_thread_with_an_older_time_does_not_move_the_window_back() -> None:
    process = ProcessHealth()
    process.pool_exhausted(1_000)
    process.pool_exhausted(10)
    assert process.levels(1_000).pool_exhaustions == 2
    assert process.levels(1_000 + WINDOW).pool_exhaustions == 0


def test_reasons_name_the_numbers_and_the_limits() -> None:
    levels = HealthReport(consecutive_failures=12, stuck_threads=4, pool_exhaustions=6)
    assert levels.reasons == [
        "4 stuck threads within 5 minutes, and more than 3 are too many",
        "6 pool exhaustions within 5 minutes, and more than 5 are too many",
        "12 failures in a row, and more than 10 are too many",
    ]
    assert levels.health is Health.CRITICAL


def test_counts_are_exact_under_concurrent_updates() -> None:
    process = ProcessHealth()

    def hammer(_: int) -> None:
        for number in range(14):
            process.ended(0, failures=1)
            if number % 7 == 0:
                process.pool_exhausted(0)
                process.stuck(0)
        process.levels(0)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: switching_at_each_opcode(lambda: hammer(n)), range(4)))
    assert process.levels(0) == HealthReport(
        consecutive_failures=56, pool_exhaustions=8, stuck_threads=8
    )


def switching_at_each_opcode(run: Callable[[], None]) -> None:
    """Lets another thread run at each instruction of the module. By itself the interpreter
    switches threads only where a function begins or a loop goes back, so that `x += 1` looks
    atomic, and a missing lock is never seen."""

    def switch(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            time.sleep(0)
        return switch

    before = sys.gettrace()
    sys.settrace(switch)
    try:
        run()
    finally:
        sys.settrace(before)
