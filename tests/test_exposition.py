"""What the page of metrics says of a board."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from shown_boards import AWAY, families, families_of, process, show, values, worker

from cmdbus.board.board import Board
from cmdbus.board.counters import Counter, OutcomeLabel
from cmdbus.board.health import HealthReport
from cmdbus.board.layout import BUCKETS
from cmdbus.board.records import ExitRecord, Phase, Restart, Role
from cmdbus.board.threads import StepReason, ThreadsView
from cmdbus.worker.probes.exposition import render
from cmdbus.worker.probes.responses import Gauges


@pytest.fixture
def board() -> Iterator[Board]:
    with closing(Board.in_memory(5, 4)) as board:
        show(board)
        yield board


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
        ("cmdbus_database_up", "gauge"),
        ("cmdbus_queue_depth", "gauge"),
        ("cmdbus_queue_oldest_seconds", "gauge"),
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
        ("cmdbus_bridge_moved_total", "counter"),
        ("cmdbus_bridge_refused_total", "counter"),
        ("cmdbus_bridge_failing", "gauge"),
        ("cmdbus_nodes", "gauge"),
    ]
    assert page.count("# HELP ") == 30 and page.endswith("\n")


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
    assert {"0.5", "1.0", "+Inf"} < {le for _, _, le in buckets}  # as OpenMetrics writes them
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


def test_the_database_and_its_nodes_are_shown_once_they_are_known(board: Board) -> None:
    before = families(board)
    for name in ("database_up", "queue_oldest_seconds", "nodes"):
        assert not before[f"cmdbus_{name}"].samples
    gauges = Gauges(
        depths={("payments", "ready"): 1, ("orders", "scheduled"): 1},
        oldest={"payments": 2.5},
        nodes={"lost": 3},
        bridges={("orders-in", "in", what): n for n, what in enumerate(("moved", "failing"))},
        up=False,
    )
    found = families_of(render(board.snapshot(), board.counters(), gauges))
    assert values(found["cmdbus_database_up"]) == {(): 0}
    assert values(found["cmdbus_queue_oldest_seconds"]) == {("orders",): 0, ("payments",): 2.5}
    assert values(found["cmdbus_nodes"]) == {("running",): 0, ("stopped",): 0, ("lost",): 3}
    assert values(found["cmdbus_bridge_moved"]) == {("orders-in", "in"): 0}
    assert values(found["cmdbus_bridge_failing"]) == {("orders-in", "in"): 1}


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
