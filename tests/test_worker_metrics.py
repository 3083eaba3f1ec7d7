"""A worker's metrics: counters, and its health."""

import time
from itertools import count
from typing import Any

import pytest
from eventually import eventually
from handlers import ONCE, SOON, Gate, await_drained, connect, handling, leave_effect, running

from cmdbus import BusinessRuleError, Command, CommandBus, Context, SendRequest
from cmdbus.worker import Worker
from cmdbus.worker.pipeline.prefetch_policy import MAX_PREFETCH


def test_counters_are_those_of_what_happened(dsn: str, bus: CommandBus) -> None:
    """By outcome; and the latest exceptions."""

    def debit(command: Command, context: Context) -> None:
        if command.data == "tx":
            leave_effect(command, context)
        if command.data == "fail":
            raise ValueError("no")
        if command.data == "rule":
            raise BusinessRuleError("NO", "rule")

    with running(dsn, handling(debit, retry=SOON), poll_interval=0.5) as worker:
        data = [None] * 20 + ["tx"] * 5 + ["rule"] * 3 + ["fail"] * 2
        ids = bus.send_many([SendRequest("payments", "Debit", each) for each in data])
        for id_ in ids:
            bus.wait("payments", id_)
        ends = {"completed": 25, "failed": 3, "retry": 4, "trouble": 2}
        counts = {("payments", "Debit", end): count for end, count in ends.items()}
        # They are counted once they are known to be committed.
        eventually(lambda: worker.metrics()["cmdbus_commands_total"] == counts)
        metrics = worker.metrics()
        for histogram in ("cmdbus_dequeue_latency_seconds", "cmdbus_handler_duration_seconds"):
            assert metrics[histogram]["payments", "Debit"]["count"] == 34  # type: ignore[index]
        assert (metrics["claim_failures"], metrics["cmdbus_lost_leases_total"]) == (0, 0)
        assert counted(worker, "batches_processed") > 0 and counted(worker, "empty_receives") > 0
        assert worker.health.health == "HEALTHY"
        assert {failed.command_id for failed in worker.last_exceptions} == set(map(str, ids[-2:]))
        errors = [(failed.type, failed.error) for failed in worker.last_exceptions]
        assert errors == [("Debit", "ValueError: no")] * 6


def counted(worker: Worker, name: str) -> int:
    return int(str(worker.metrics()[f"cmdbus_{name}_total"]))


def test_how_long_handlers_took_is_counted_by_type_and_on_average(
    dsn: str, bus: CommandBus
) -> None:
    with running(dsn, handling(lambda command, context: time.sleep(0.1))) as worker:
        for type in ("Debit", "Noop", "Debit"):
            bus.wait("payments", bus.send("payments", type))
        # They are counted once they are known to be committed.
        eventually(lambda: sum(seen["count"] for seen in durations_of(worker).values()) == 3)
        metrics, durations = worker.metrics(), durations_of(worker)
        slept = durations["payments", "Debit"]
        assert slept["count"] == 2 and 0.2 <= slept["sum"] < 20
        total = sum(seen["sum"] for seen in durations.values())
        assert metrics["avg_process_time"] == pytest.approx(total / 3)
        assert 0 < float(str(metrics["avg_fetch_time"])) < 5


def durations_of(worker: Worker) -> dict[tuple[str, str], Any]:
    durations = worker.metrics()["cmdbus_handler_duration_seconds"]
    assert isinstance(durations, dict)
    return durations


def test_a_wait_is_counted_with_the_claim_and_a_duration_with_the_settlement(
    dsn: str, bus: CommandBus
) -> None:
    """So that a long command shows at once how long it has waited."""
    gate = Gate()
    with running(dsn, handling(gate)) as worker:

        def counted_of(histogram: str) -> int:
            found = worker.metrics()[f"cmdbus_{histogram}_seconds"]
            assert isinstance(found, dict)
            return sum(shown["count"] for shown in found.values())

        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        assert (counted_of("dequeue_latency"), counted_of("handler_duration")) == (1, 0)
        gate.open.set()
        bus.wait("payments", sent)
        eventually(lambda: counted_of("handler_duration") == 1)
        assert counted_of("dequeue_latency") == 1


def test_a_claim_that_fails_is_counted(dsn: str, bus: CommandBus) -> None:
    with connect(dsn) as admin, running(dsn, handling(), poll_interval=0.5) as worker:
        admin.execute("ALTER TABLE cmdbus.ready RENAME TO away")
        eventually(lambda: worker.metrics()["claim_failures"] != 0)
        admin.execute("ALTER TABLE cmdbus.away RENAME TO ready")
        bus.wait("payments", bus.send("payments", "Debit"))
        assert worker.metrics()["claim_failures"] == counted(worker, "claim_failures")


def test_a_drain_is_claimed_in_batches_and_waits_for_nothing(dsn: str, bus: CommandBus) -> None:
    """No claim is empty while there is something that is not claimed."""
    started = count(1)
    while_more_waits: list[tuple[int, int]] = []

    def debit(command: Command, context: Context) -> None:
        if next(started) == 2000 - MAX_PREFETCH - 50:
            while_more_waits.append((counted(worker, "empty_receives"), wakeups()))

    def wakeups() -> int:
        by_source = worker.metrics()["cmdbus_wakeups_total"]
        assert isinstance(by_source, dict)
        return sum(by_source.values())

    bus.send_many([SendRequest("payments", "Debit")] * 2000)
    with running(dsn, handling(debit), concurrency=4, poll_interval=600) as worker:
        await_drained(bus)
        assert while_more_waits == [(0, 0)]
        assert counted(worker, "batches_processed") < 500
        assert counted(worker, "empty_receives") < 10


def test_many_failures_in_a_row_degrade_a_worker_and_a_success_heals_it(
    dsn: str, bus: CommandBus
) -> None:
    def debit(command: Command, context: Context) -> None:
        if command.data:
            raise ValueError

    with running(dsn, handling(debit, retry=ONCE)) as worker:
        for wrong in [True] * 11:
            assert worker.health.health == "HEALTHY"
            bus.wait("payments", bus.send("payments", "Debit", wrong))
        eventually(lambda: worker.health.health == "DEGRADED")
        assert worker.health.reasons == ["11 failures in a row, and more than 10 are too many"]
        bus.wait("payments", bus.send("payments", "Debit", False))
        eventually(lambda: worker.health.health == "HEALTHY")
