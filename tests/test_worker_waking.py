"""A worker that waits: for a notification, a timer, and never longer than it must."""

import threading
import time
from typing import Any

import psutil
import psycopg
import pytest
from eventually import eventually
from handlers import await_drained, connect, found, handling, kinds, running, seat_of
from queries import SESSIONS, end_listening_sessions, scalar

from cmdbus import (
    Command,
    CommandBus,
    Context,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)
from cmdbus.worker import Worker

#: Seconds by which only what waits for a worker's next poll is late, which comes once in 60 s here.
_NEXT_POLL_S = 20.0


def test_a_delayed_command_starts_on_time_and_never_early(dsn: str, bus: CommandBus) -> None:
    """And the second timer is not forgotten."""

    def debit(command: Command, context: Context) -> float:
        return time.time()

    with running(dsn, handling(debit), poll_interval=60):
        bus.wait("payments", bus.send("payments", "Debit"))
        ids = [bus.send("payments", "Debit", delay=delay) for delay in (0.6, 0.3)]
        for id_ in reversed(ids):
            record = bus.wait("payments", id_)
            late = record.result - record.due_at.timestamp()
            assert -0.001 < late < _NEXT_POLL_S


def test_a_retry_in_half_an_hour_is_scheduled_and_runs_as_the_second_attempt_when_due(
    dsn: str, bus: CommandBus
) -> None:
    """The command is rescheduled here, and the clock not moved."""
    later = RetryPolicy(max_attempts=2, backoff=(1800,), jitter=0)

    def debit(command: Command, context: Context) -> int:
        if context.attempt == 1:
            raise TransientCommandError("AWAY", "the bank is away")
        return context.attempt

    with running(dsn, handling(debit, retry=later), poll_interval=60):
        id_ = bus.send("payments", "Debit")
        eventually(lambda: bus.snapshot("payments")["scheduled"] == 1)
        record = found(bus, id_)
        assert (record.status, record.attempts) == ("PENDING", 1)
        failed = bus.audit("payments", id_)[-1]
        assert failed.kind == "FAILED"
        assert (record.due_at - failed.at).total_seconds() == pytest.approx(1800, abs=1)
        bus.reschedule("payments", id_, delay=0.2)
        record = bus.wait("payments", id_)
        assert (record.status, record.result, record.attempts) == ("COMPLETED", 2, 2)
        assert record.started_at is not None and record.started_at >= record.due_at


def counts(worker: Worker) -> dict[str, int]:
    """Claims that found something, claims that found nothing, and wake-ups by their source."""
    metrics = worker.metrics()
    wakeups = metrics["cmdbus_wakeups_total"]
    assert isinstance(wakeups, dict)
    return {
        "found": int(str(metrics["cmdbus_batches_processed_total"])),
        "empty": int(str(metrics["cmdbus_empty_receives_total"])),
        **wakeups,
    }


class Quiet:
    """Whether a worker's sessions have not been asked anything for a while."""

    def __init__(self, watcher: psycopg.Connection) -> None:
        self._watcher = watcher

    def __call__(self, seconds: float = 0.5) -> None:
        seen, since, times = self._look(), time.monotonic(), 0

        def quiet() -> bool:
            nonlocal seen, since, times
            if (now := self._look()) != seen:
                seen, since, times = now, time.monotonic(), 0
            times += 1
            # While this process stalls its worker asks nothing, either.
            return times > 10 and time.monotonic() - since > seconds

        eventually(quiet)

    def _look(self) -> object:
        query = f"SELECT array_agg((pid, state, state_change) ORDER BY pid)::text {SESSIONS}"
        seen = scalar(self._watcher, query)
        assert "transaction" not in str(seen)
        return seen


@pytest.mark.parametrize("count", [1, 40])
def test_an_idle_worker_is_woken_once_by_a_send_and_asks_nothing_meanwhile(
    dsn: str, bus: CommandBus, count: int
) -> None:
    """All that was sent at once is claimed before it waits again, and one claim finds nothing.
    While it waits it neither asks the database anything nor uses its CPU."""
    with (
        running(dsn, handling(), poll_interval=60, concurrency=4) as worker,
        connect(dsn) as watcher,
    ):
        quiet = Quiet(watcher)
        eventually(lambda: seat_of(worker).parked and armed(watcher))
        quiet()
        for _ in range(3):
            before = counts(worker)
            for id_ in bus.send_many([SendRequest("payments", "Debit")] * count):
                bus.wait("payments", id_)
            eventually(lambda: counts(worker)["empty"] > before["empty"])  # noqa: B023
            quiet()
            grown = {name: now - before[name] for name, now in counts(worker).items()}
            found = grown.pop("found")
            assert found == 1 if count == 1 else 1 <= found < count / 2
            assert {name: by for name, by in grown.items() if by} == {"empty": 1, "pipe": 1}
        used, began = cpu_seconds_of_workers(), time.monotonic()
        quiet()
        assert cpu_seconds_of_workers() - used < 0.03 + (time.monotonic() - began) / 10


def cpu_seconds_of_workers() -> float:
    """Of the threads that a worker has in this process."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    return float(
        sum(
            used.user_time + used.system_time
            for used in psutil.Process().threads()
            if "worker" in names.get(used.id, "") or "runner" in names.get(used.id, "")
        )
    )


def test_a_command_is_claimed_within_10_ms_of_its_send_and_its_worker_waits_again(
    dsn: str, bus: CommandBus
) -> None:
    """As its record and its events show; other processes may hold up most of them here."""
    waits: list[float] = []
    registry = handling(lambda command, context: time.sleep(0.01))
    with running(dsn, registry, poll_interval=60) as worker:

        def found_quickly() -> bool:
            waiting = counts(worker)["empty"]
            id_ = bus.send("payments", "Debit")
            record = bus.wait("payments", id_)
            assert record.started_at is not None and record.finished_at is not None
            sent, received, completed = bus.audit("payments", id_)
            assert [sent.kind, received.kind, completed.kind] == ["SENT", "RECEIVED", "COMPLETED"]
            assert (sent.at, received.at) == (record.created_at, record.started_at)
            assert completed.at == record.finished_at
            assert (completed.at - received.at).total_seconds() >= 0.01
            waits.append((received.at - sent.at).total_seconds())
            assert waits[-1] >= 0
            eventually(lambda: counts(worker)["empty"] > waiting)
            return len(waits) >= 10 and sorted(waits)[len(waits) // 4] < 0.01

        eventually(found_quickly, 40)


def test_a_worker_whose_listener_died_finds_work_and_listens_again(
    dsn: str, bus: CommandBus
) -> None:
    with running(dsn, handling(), poll_interval=60):
        bus.wait("payments", bus.send("payments", "Debit"))
        eventually(lambda: end_listening_sessions(dsn) == 1)
        for _ in range(5):
            bus.wait("payments", bus.send("payments", "Debit"))


def test_a_send_that_began_before_the_arming_and_ends_after_it_is_found(
    dsn: str, bus: CommandBus
) -> None:
    """Its trigger saw that nothing was armed, and sent no notification: only the wait for
    the transactions that wrote before the arming can find it."""
    with psycopg.connect(dsn) as slow, connect(dsn) as watcher:
        for _ in range(3):
            held = bus.send("payments", "Debit", connection=slow)
            with running(dsn, handling(), poll_interval=600) as worker:
                eventually(lambda: armed(watcher))
                looks = counts(worker)["empty"]
                eventually(lambda: counts(worker)["empty"] >= looks + 4)  # noqa: B023
                slow.commit()
                bus.wait("payments", held)
            assert not armed(watcher)


def test_a_send_to_a_worker_at_rest_is_found_by_its_notification(dsn: str, bus: CommandBus) -> None:
    """At rest nothing else looks: the wait for earlier writers is over, and the poll is far."""
    still = (
        f"SELECT count(*) = 0 {SESSIONS}"
        " AND (state <> 'idle' OR state_change > clock_timestamp() - interval '0.5 s')"
    )
    with running(dsn, handling(), poll_interval=600), connect(dsn) as watcher:
        for _ in range(3):
            eventually(lambda: armed(watcher) and scalar(watcher, still))
            bus.wait("payments", bus.send("payments", "Debit"))


def test_a_waiting_command_runs_once_another_session_no_longer_locks_it(
    dsn: str, bus: CommandBus
) -> None:
    """Every claim has skipped it, and nothing notifies of the end of a lock."""
    held = bus.send("payments", "Debit")
    with psycopg.connect(dsn) as stranger, connect(dsn) as watcher:
        stranger.execute("SELECT FROM cmdbus.ready FOR UPDATE")
        with running(dsn, handling(), poll_interval=600) as worker:
            eventually(lambda: armed(watcher))
            looks = counts(worker)["empty"]
            eventually(lambda: counts(worker)["empty"] >= looks + 4)
            stranger.rollback()
            bus.wait("payments", held, 5)


def armed(watcher: psycopg.Connection) -> bool:
    return bool(scalar(watcher, "SELECT last_value FROM cmdbus.armed"))


def test_a_delayed_send_that_commits_after_the_look_at_its_time_is_on_time(
    dsn: str, bus: CommandBus
) -> None:
    """Its sender compared with a look that has passed meanwhile, and notified no worker."""
    with (
        running(dsn, handling(lambda command, context: time.time()), poll_interval=60),
        psycopg.connect(dsn) as slow,
        connect(dsn) as watcher,
    ):

        def reads_in() -> float:
            return float(scalar(watcher, "SELECT last_value / 1e6 FROM cmdbus.alarm")) - time.time()

        for _ in range(2):
            eventually(lambda: 50 < reads_in() <= 60)
            sooner = bus.send("payments", "Debit", delay=0.2)
            # Unless that time has passed already, and nothing is tested then.
            eventually(lambda: reads_in() < 0.2 or found(bus, sooner).status == "COMPLETED")  # noqa: B023
            held = bus.send("payments", "Debit", delay=0.4, connection=slow)
            bus.wait("payments", sooner)
            eventually(lambda: reads_in() > 50)
            slow.commit()
            record = bus.wait("payments", held)
            assert record.result - record.due_at.timestamp() < _NEXT_POLL_S


def test_what_is_due_is_not_late_for_a_worker_that_never_rests(dsn: str, bus: CommandBus) -> None:
    """It looks often enough without a notification."""
    going = True

    def again(command: Command, context: Context) -> None:
        if going:
            bus.send("payments", "Again")
        time.sleep(0.002)

    registry = handling(lambda command, context: time.time())
    registry.register("payments", "Again", again)
    with running(dsn, registry, poll_interval=60, concurrency=2), psycopg.connect(dsn) as slow:
        bus.send_many([SendRequest("payments", "Again")] * 20)
        sooner = bus.send("payments", "Debit", delay=0.1, priority="high")
        held = bus.send("payments", "Debit", delay=0.2, priority="high", connection=slow)
        bus.wait("payments", sooner)
        slow.commit()
        for id_ in (sooner, held):
            record = bus.wait("payments", id_)
            assert record.result - record.due_at.timestamp() < _NEXT_POLL_S
        going = False


def test_no_command_is_left_in_the_queue_while_its_thread_rests(dsn: str, bus: CommandBus) -> None:
    """In bursts to one thread, which may draw the leadership before the last of them."""
    with running(dsn, handling(), concurrency=1, poll_interval=600):
        for size in (500, *(3 + n % 8 for n in range(40))):
            bus.send_many([SendRequest("payments", "Debit")] * size)
            await_drained(bus)


def test_a_resting_worker_is_woken_by_a_retry_and_by_the_reply_of_a_cancel(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that becomes claimable waits for the next poll (60 s)."""
    fixed, replies = threading.Event(), list[Any]()

    def debit(command: Command, context: Context) -> str:
        if not fixed.is_set():
            raise PermanentCommandError("GONE", "no such account")
        return "paid"

    registry = handling(debit)
    registry.register("payments", "Reply", lambda command, _: replies.append(command.data))
    with CommandBus(dsn) as bus, running(dsn, registry, concurrency=2, poll_interval=60):
        first, second = [bus.send("payments", "Debit", reply_to="payments") for _ in range(2)]
        # Each is logged once it is settled.
        eventually(lambda: [r.levelname for r in caplog.records].count("ERROR") == 2)
        fixed.set()
        bus.troubleshooting.retry("payments", first, operator="ann")
        assert bus.wait("payments", first).result == "paid"
        bus.troubleshooting.cancel("payments", second, operator="ann")
        eventually(lambda: {reply["outcome"] for reply in replies} == {"CANCELED", "SUCCESS"})
        ends = ["OPERATOR_RETRY", "RECEIVED", "COMPLETED"]
        assert kinds(bus, first)[-4:] == ["MOVED_TO_TROUBLESHOOTING_QUEUE", *ends]
