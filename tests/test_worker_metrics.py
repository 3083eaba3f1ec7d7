"""What a worker tells of itself: counters, and its health."""

import time
from itertools import count

import pytest
from eventually import eventually
from handlers import connect, leave_effect, running

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    RetryPolicy,
    SendRequest,
)
from cmdbus.worker.pipeline.prefetch_policy import MAX_PREFETCH

SOON = RetryPolicy(max_attempts=3, backoff=(0.01,), jitter=0.0)


def test_counters_are_those_of_what_happened(dsn: str, bus: CommandBus) -> None:
    """By outcome; a claim that failed, too, and how long claims and handlers took."""
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=SOON)
    def debit(command: Command, context: Context) -> None:
        if command.data == "tx":
            leave_effect(command, context)
        if command.data == "fail":
            raise ValueError("no")
        if command.data == "rule":
            raise BusinessRuleError("NO", "rule")

    @registry.handler("payments", "Sleep")
    def sleep(command: Command, context: Context) -> None:
        time.sleep(0.1)

    with running(dsn, registry, poll_interval=0.5) as worker:
        ids = [
            bus.send("payments", "Debit", data)
            for data in [None] * 20 + ["tx"] * 5 + ["rule"] * 3 + ["fail"] * 2
        ]
        for id_ in ids:
            bus.wait("payments", id_, 5)
        name = ("payments", "Debit")
        counts = {
            (*name, "completed"): 25,
            (*name, "failed"): 3,
            (*name, "retry"): 4,
            (*name, "trouble"): 2,
        }
        # They are counted once they are known to be committed.
        eventually(lambda: worker.metrics()["cmdbus_commands_total"] == counts)
        metrics = worker.metrics()
        for histogram in ("cmdbus_dequeue_latency_seconds", "cmdbus_handler_duration_seconds"):
            assert metrics[histogram][name]["count"] == 34  # type: ignore[index]
        assert (metrics["claim_failures"], metrics["cmdbus_lost_leases_total"]) == (0, 0)
        assert int(str(metrics["cmdbus_batches_processed_total"])) > 0
        assert int(str(metrics["cmdbus_empty_receives_total"])) > 0
        assert 0 < float(str(metrics["avg_process_time"])) < 1
        assert 0 < float(str(metrics["avg_fetch_time"])) < 1
        for _ in range(2):
            bus.wait("payments", bus.send("payments", "Sleep"), 5)
        metrics = worker.metrics()
        durations = metrics["cmdbus_handler_duration_seconds"]
        assert isinstance(durations, dict)
        slept = durations["payments", "Sleep"]
        assert slept["count"] == 2 and 0.2 <= slept["sum"] < 2
        total = sum(seen["sum"] for seen in durations.values())
        assert metrics["avg_process_time"] == pytest.approx(total / 36)
        assert worker.health.health == "HEALTHY"
        assert {failed.command_id for failed in worker.last_exceptions} == set(map(str, ids[-2:]))
        errors = [(failed.type, failed.error) for failed in worker.last_exceptions]
        assert errors == [("Debit", "ValueError: no")] * 6
        with connect(dsn) as admin:
            admin.execute("ALTER TABLE cmdbus.ready RENAME TO away")
            eventually(lambda: worker.metrics()["claim_failures"] != 0, 10)
            admin.execute("ALTER TABLE cmdbus.away RENAME TO ready")
        bus.wait("payments", bus.send("payments", "Debit"), 10)
        metrics = worker.metrics()
        assert metrics["claim_failures"] == metrics["cmdbus_claim_failures_total"]


def test_a_drain_is_claimed_in_batches_and_waits_for_nothing(dsn: str, bus: CommandBus) -> None:
    """No claim is empty while there is something
    that is not claimed."""
    registry, started = HandlerRegistry(), count(1)
    while_more_waits: list[tuple[int, int]] = []

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> None:
        if next(started) == 2000 - MAX_PREFETCH - 50:
            while_more_waits.append((counted("empty_receives"), wakeups()))

    def counted(name: str) -> int:
        return int(str(worker.metrics()[f"cmdbus_{name}_total"]))

    def wakeups() -> int:
        by_source = worker.metrics()["cmdbus_wakeups_total"]
        assert isinstance(by_source, dict)
        return sum(by_source.values())

    bus.send_many([SendRequest("payments", "Debit")] * 2000)
    with running(dsn, registry, concurrency=4, poll_interval=600) as worker:
        eventually(lambda: bus.snapshot("payments")["depth"] == 0, 10)
        eventually(lambda: bus.snapshot("payments")["in_progress"] == 0)
        assert while_more_waits == [(0, 0)]
        assert counted("batches_processed") < 500
        assert counted("empty_receives") < 10


def test_many_failures_in_a_row_degrade_a_worker_and_a_success_heals_it(
    dsn: str, bus: CommandBus
) -> None:
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit", retry=RetryPolicy(max_attempts=1))
    def debit(command: Command, context: Context) -> None:
        if command.data:
            raise ValueError

    with running(dsn, registry) as worker:
        for wrong in [True] * 11:
            assert worker.health.health == "HEALTHY"
            bus.wait("payments", bus.send("payments", "Debit", wrong), 5)
        eventually(lambda: worker.health.health == "DEGRADED")
        assert worker.health.reasons == ["11 failures in a row, and more than 10 are too many"]
        bus.wait("payments", bus.send("payments", "Debit", False), 5)
        eventually(lambda: worker.health.health == "HEALTHY")
