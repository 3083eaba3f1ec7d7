"""What probes and the page of metrics say of a board."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from cmdbus.board.board import Board
from cmdbus.board.counters import Counter, OutcomeLabel
from cmdbus.board.health import HealthReport
from cmdbus.board.layout import BUCKETS
from cmdbus.board.records import ExitRecord, Phase, Restart, Role, SupervisorState
from cmdbus.board.seats import Seat
from cmdbus.board.threads import StepReason, ThreadsView
from cmdbus.worker.probes.exposition import render
from cmdbus.worker.probes.responses import Gauges, Response, live, ready, status

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
AWAY = HealthReport(database_away=True)


@pytest.fixture
def board() -> Iterator[Board]:
    with closing(Board.in_memory(5, 4)) as board:
        show(board)
        yield board


def show(
    board: Board, state: SupervisorState = SupervisorState.RUNNING, due: int = NOW + SECOND
) -> None:
    board.supervise(pid=10, state=state, since=1, due=due, wanted=2)


def worker(board: Board, number: int, levels: HealthReport = HealthReport(), **more: Any) -> Seat:  # noqa: B008
    return process(board, Role.WORKER, number, number, levels, **more)


def process(
    board: Board,
    role: Role,
    index: int,
    number: int,
    levels: HealthReport = HealthReport(),  # noqa: B008
    *,
    is_ready: bool = True,
    due: int = NOW + SECOND,
    since: int = 1,
) -> Seat:
    seat = board.seat(index)
    seat.assign(role, number=number, generation=1)
    seat.enter(pid=100 + index, generation=1, now=since)
    if is_ready:
        seat.ready(since)
    seat.beat(due, levels)
    return seat


def reasons_of(answer: Response) -> tuple[int, list[str]]:
    return answer.status, json.loads(answer.body)["reasons"]


def readiness(board: Board) -> tuple[int, list[str]]:
    return reasons_of(ready(board.snapshot(), NOW))


def families(board: Board, depths: dict[tuple[str, str], int] | None = None) -> dict[str, Metric]:
    page = render(board.snapshot(), board.counters(), Gauges(depths))
    return {family.name: family for family in text_string_to_metric_families(page)}


def values(family: Metric, name: str = "") -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for sample in family.samples
        if sample.name.endswith(name)
    }


# Live.


def test_it_is_live_while_the_supervisor_comes_back_in_time(board: Board) -> None:
    for state in SupervisorState:
        show(board, state)
        good = state not in (SupervisorState.STOPPED, SupervisorState.GIVING_UP)
        assert (live(board.snapshot(), NOW).status == 200) is good, state
    show(board, due=NOW - 7 * SECOND)
    assert reasons_of(live(board.snapshot(), NOW)) == (503, ["the supervisor is late by 7 s"])
    with closing(Board.in_memory(1, 1)) as unsupervised:
        assert reasons_of(live(unsupervised.snapshot(), NOW)) == (503, ["there is no supervisor"])


# Ready.


def test_it_is_ready_when_a_worker_can_run_commands(board: Board) -> None:
    assert readiness(board) == (503, ["worker 0 has no process", "worker 1 has no process"])
    worker(board, 0, is_ready=False)
    assert readiness(board) == (503, ["worker 0 is starting", "worker 1 has no process"])
    worker(board, 0)
    assert readiness(board) == (200, ["worker 1 has no process"])
    worker(board, 1)
    assert readiness(board) == (200, [])


def test_a_worker_that_stops_is_not_one_without_a_process(board: Board) -> None:
    """Nor one that is missing while the steward or the quarantine process stops."""
    for role, index in ((Role.STEWARD, 3), (Role.QUARANTINE, 4)):
        process(board, role, index, 0).order_to_stop(0, 1, by=NOW)
    assert readiness(board) == (503, ["worker 0 has no process", "worker 1 has no process"])
    worker(board, 0).order_to_stop(0, 1, by=NOW)
    assert readiness(board) == (503, ["worker 0 is stopping", "worker 1 has no process"])
    process(board, Role.WORKER, 2, 0)
    assert readiness(board) == (200, ["worker 1 has no process"])


def test_degraded_is_ready_and_critical_is_not(board: Board) -> None:
    """The health of each worker is on the page."""
    degraded = HealthReport(consecutive_failures=11, last_success=990.0)
    worker(board, 0, degraded)
    worker(board, 1, HealthReport(stuck_threads=4))
    answer = ready(board.snapshot(), NOW)
    assert reasons_of(answer) == (
        200,
        [
            "worker 0 is DEGRADED: 11 failures in a row, and more than 10 are too many",
            "worker 1 is CRITICAL: 4 stuck threads within 5 minutes, and more than 3 are too many",
        ],
    )
    assert json.loads(answer.body)["seats"][0] == {
        "seat": 0,
        "health": "DEGRADED",
        "reasons": degraded.reasons,
        "last_success": 10.0,
        "consecutive_failures": 11,
        "stuck_threads": 0,
        "pool_exhaustions": 0,
    }
    worker(board, 0, HealthReport(pool_exhaustions=6))
    assert readiness(board)[0] == 503


def test_workers_that_do_not_come_back_are_not_ready(board: Board) -> None:
    for number in (0, 1):
        worker(board, number, due=NOW - 2 * SECOND)
    assert readiness(board) == (503, ["worker 0 is late by 2 s", "worker 1 is late by 2 s"])


def test_processes_that_do_not_die_are_told_and_counted(board: Board) -> None:
    for number in (0, 1):
        worker(board, number)
    board.undead = 2
    assert readiness(board) == (200, ["processes that survived SIGKILL: 2"])
    assert values(families(board)["cmdbus_undead_processes"]) == {(): 2}


def test_it_is_not_ready_while_the_database_is_away(board: Board) -> None:
    """As a look has just found, or, where nothing looks, as the steward says."""
    for number in (0, 1):
        worker(board, number)
    process(board, Role.STEWARD, 2, 0, AWAY)
    assert readiness(board) == (503, ["the database is away"])
    worker(board, 1, HealthReport(last_success=NOW / SECOND - 1))
    assert readiness(board) == (503, ["the database is away"])
    assert reasons_of(ready(board.snapshot(), NOW, away=False)) == (200, [])
    process(board, Role.STEWARD, 2, 0)
    assert reasons_of(ready(board.snapshot(), NOW, away=True)) == (503, ["the database is away"])
    for number in (0, 1):
        worker(board, number, AWAY)
    assert readiness(board)[0] == 503


def test_it_is_not_ready_while_it_stops(board: Board) -> None:
    worker(board, 0)
    worker(board, 1)
    show(board, SupervisorState.STOPPING)
    assert readiness(board) == (503, ["the supervisor is stopping"])
    show(board, SupervisorState.STARTING)
    assert readiness(board) == (200, [])


def test_a_successor_counts_as_soon_as_it_is_ready(board: Board) -> None:
    worker(board, 0, HealthReport(stuck_threads=4))
    worker(board, 1, HealthReport(stuck_threads=4))
    board.seat(0).order_to_stop(0, 1, by=NOW)
    process(board, Role.WORKER, 2, 0, is_ready=False)
    assert readiness(board)[0] == 503
    process(board, Role.WORKER, 2, 0)
    assert readiness(board)[0] == 200


# Status.


def test_status_shows_the_board_the_counters_and_the_queues(board: Board) -> None:
    seat = worker(board, 0)
    seat.slot(0).counters.ended(
        seat.command_type("payments", "Debit").index, OutcomeLabel.COMPLETED, 1
    )
    depths = {("payments", "ready"): 3, ("payments", "scheduled"): 1}
    answer = status(board.snapshot(), board.counters(), depths, NOW)
    shown = json.loads(answer.body)
    assert answer.status == 200
    assert shown.items() >= json.loads(json.dumps(board.snapshot().to_dict(NOW))).items()
    assert shown["queues"] == {"payments": {"ready": 3, "scheduled": 1}}
    assert shown["counters"]["commands"] == [
        {"domain": "payments", "type": "Debit", "outcome": "completed", "count": 1}
    ]
    unknown = status(board.snapshot(), board.counters(), None, NOW)
    assert json.loads(unknown.body)["queues"] is None


# Metrics.


def test_every_family_is_on_the_first_page(board: Board) -> None:
    """With its type and what it means."""
    page = render(board.snapshot(), board.counters(), Gauges())
    assert re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE) == [
        ("cmdbus_commands_total", "counter"),
        ("cmdbus_batches_processed_total", "counter"),
        ("cmdbus_empty_receives_total", "counter"),
        ("cmdbus_notification_wakeups_total", "counter"),
        ("cmdbus_claim_failures_total", "counter"),
        ("cmdbus_lost_leases_total", "counter"),
        ("cmdbus_wakeups_total", "counter"),
        ("cmdbus_dequeue_latency_seconds", "histogram"),
        ("cmdbus_handler_duration_seconds", "histogram"),
        ("cmdbus_queue_depth", "gauge"),
        ("cmdbus_unreachable_commands", "gauge"),
        ("cmdbus_batches", "gauge"),
        ("cmdbus_slots", "gauge"),
        ("cmdbus_threads", "gauge"),
        ("cmdbus_threads_bound", "gauge"),
        ("cmdbus_threads_reason", "gauge"),
        ("cmdbus_process_restarts_total", "counter"),
        ("cmdbus_health", "gauge"),
        ("cmdbus_process_rss_bytes", "gauge"),
        ("cmdbus_undead_processes", "gauge"),
        ("cmdbus_oldest_snapshot_seconds", "gauge"),
        ("cmdbus_managed_processes", "gauge"),
        ("cmdbus_breaker_state", "gauge"),
        ("cmdbus_breaker_denied_total", "counter"),
    ]
    assert page.count("# HELP ") == 24 and page.endswith("\n")


def test_series_whose_labels_are_known_are_there_before_their_first_event(board: Board) -> None:
    found = families(board)
    sources = [name for name, value in Counter.__members__.items() if name.startswith("WAKEUPS_")]
    assert values(found["cmdbus_wakeups"]) == {
        (name.removeprefix("WAKEUPS_").lower(),): 0 for name in sources
    }
    assert values(found["cmdbus_process_restarts"]) == {(r.name.lower(),): 0 for r in Restart}
    assert values(found["cmdbus_slots"]) == {(phase.name.lower(),): 0 for phase in Phase}
    assert values(found["cmdbus_health"]) == {("0",): 4, ("1",): 4}
    seat = worker(board, 0)
    command_type = seat.command_type("payments", "Debit")
    seat.slot(0).counters.dequeue_latency.observe(command_type.index, [0.1])
    assert values(families(board)["cmdbus_commands"]) == {
        ("payments", "Debit", end.name.lower()): 0 for end in OutcomeLabel
    }


def test_counters_are_those_of_the_board(board: Board) -> None:
    for number, name in ((0, "Debit"), (1, "a.b:c-d_E")):
        seat = worker(board, number)
        counters = seat.slot(0).counters
        counters.ended(seat.command_type("payments", name).index, OutcomeLabel.TROUBLE, 1)
        counters.add(Counter.BATCHES_PROCESSED, 3)
        counters.add(Counter.WAKEUPS_PIPE)
    board.count_restart(Restart.HUNG)
    found = families(board)
    ended = values(found["cmdbus_commands"])
    assert {labels: count for labels, count in ended.items() if count} == {
        ("payments", "Debit", "trouble"): 1,
        ("payments", "a.b:c-d_E", "trouble"): 1,
    }
    assert values(found["cmdbus_batches_processed"]) == {(): 6}
    assert values(found["cmdbus_wakeups"])["pipe",] == 2
    assert values(found["cmdbus_process_restarts"])["hung",] == 1


def test_histograms_are_cumulative_and_end_with_all(board: Board) -> None:
    seat = worker(board, 0)
    counters, kind = seat.slot(0).counters, seat.command_type("payments", "Debit").index
    counters.handler_duration.observe(kind, [0.0005, 0.003, 0.003, 100.0])
    family = families(board)["cmdbus_handler_duration_seconds"]
    buckets = values(family, "_bucket")
    assert [float(le) for _, _, le in buckets] == [*BUCKETS, float("inf")]
    assert list(buckets.values()) == [1, 1, *[3] * (len(BUCKETS) - 2), 4]
    assert values(family, "_count") == {("payments", "Debit"): 4}
    assert values(family, "_sum")["payments", "Debit"] == pytest.approx(100.0065)


def test_depths_are_those_of_the_database_and_none_while_it_is_not_known(board: Board) -> None:
    """Whatever the name of a domain that another program has written."""
    odd = 'od"d\\do\nmain{}, é'
    depths = {("payments", "ready"): 3, (odd, "troubleshooting"): 2}
    assert values(families(board, depths)["cmdbus_queue_depth"]) == {
        ("payments", "ready"): 3,
        ("payments", "in_progress"): 0,
        ("payments", "scheduled"): 0,
        ("payments", "limited"): 0,
        ("payments", "troubleshooting"): 0,
        (odd, "ready"): 0,
        (odd, "in_progress"): 0,
        (odd, "scheduled"): 0,
        (odd, "limited"): 0,
        (odd, "troubleshooting"): 2,
    }
    assert not values(families(board, None)["cmdbus_queue_depth"])


def test_a_process_and_its_successor_have_one_series(board: Board) -> None:
    worker(board, 0).rss_bytes = 1000
    process(board, Role.WORKER, 2, 0, is_ready=False).rss_bytes = 2000
    samples = families(board)["cmdbus_process_rss_bytes"].samples
    assert [(sample.labels, sample.value) for sample in samples] == [({"seat": "0"}, 1000)]


def test_threads_are_shown_with_their_range_and_the_reason_of_a_number_that_changes(
    board: Board,
) -> None:
    worker(board, 0).threads = ThreadsView(4, 4, 4).to_cell()
    worker(board, 1).threads = ThreadsView(5, 2, 32, StepReason.NO_GAIN).to_cell()
    found = families(board)
    assert values(found["cmdbus_threads"]) == {("0",): 4, ("1",): 5}
    assert values(found["cmdbus_threads_bound"]) == {
        **{("0", "least"): 4, ("0", "most"): 4},
        **{("1", "least"): 2, ("1", "most"): 32},
    }
    assert values(found["cmdbus_threads_reason"]) == {
        ("1", reason.name.lower()): reason is StepReason.NO_GAIN for reason in StepReason
    }


def test_health_and_slots_are_those_of_the_living(board: Board) -> None:
    seat = worker(board, 0, AWAY)
    worker(board, 1, HealthReport(stuck_threads=4))
    for number, phase in enumerate((Phase.RUNNING, Phase.RUNNING, Phase.AWAY)):
        slot = seat.slot(number)
        slot.occupy(number, 1)
        slot.enter(phase, 1, 0)
    seat.slot(3).occupy(-1, 1)
    found = families(board)
    assert values(found["cmdbus_health"]) == {("0",): 3, ("1",): 2}
    assert sum(values(found["cmdbus_slots"]).values()) == 3
    assert values(found["cmdbus_slots"])["running",] == 2
    seat.record_exit(0, ExitRecord(generation=1, pid=100, signal=9))
    found = families(board)
    assert values(found["cmdbus_health"])["0",] == 4
    assert sum(values(found["cmdbus_slots"]).values()) == 0
