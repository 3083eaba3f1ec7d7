"""What a worker logs of settlements, while a handler or an instrument hangs."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from eventually import eventually
from handlers import ONCE, Function, Gate, handling, running
from queries import SESSIONS, rows

from cmdbus import BusinessRuleError, Command, CommandBus, Context
from cmdbus.worker import watch

#: Seconds until what hangs is given up.
TIMEOUT = 0.4
END_SESSIONS = f"SELECT pg_terminate_backend(pid, 5000) {SESSIONS}"


class Written(logging.Handler):
    """What was logged, under a lock that a handler may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def written(log: Written) -> Iterator[None]:
    """The worker's log is written there."""
    logger = logging.getLogger("cmdbus.worker")
    logger.addHandler(log)
    try:
        yield
    finally:
        logger.removeHandler(log)


def hanging(gate: Gate, log: Written) -> Function:
    """A handler that waits at the gate with the lock of the log."""

    def hang(command: Command, context: Context) -> None:
        with log.lock or nullcontext():
            gate(command, context)

    return hang


def test_a_command_that_hangs_with_the_lock_of_the_log_is_settled(
    dsn: str, bus: CommandBus
) -> None:
    """The log line of its timeout needs that lock: it comes last."""
    gate, log = Gate(), Written()
    registry = handling(hanging(gate, log), "Hang", retry=ONCE, timeout=TIMEOUT)
    with written(log), running(dsn, registry, concurrency=1):
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        record = bus.wait("payments", hung)
        assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "TIMEOUT")
        assert bus.wait("payments", bus.send("payments", "Noop")).status == "COMPLETED"
        assert not [line for line in log.lines if "failed in attempt" in line]
        gate.open.set()
        eventually(lambda: [line for line in log.lines if "failed in attempt 1 of 1" in line])


def test_a_process_that_stalls_still_settles_what_hangs_with_the_lock_of_the_log(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line about the stall needs that lock, too."""
    monkeypatch.setattr(watch, "_STALL_SECONDS", 0.0)
    gate, log = Gate(), Written()
    registry = handling(hanging(gate, log), "Hang", retry=ONCE, timeout=TIMEOUT)
    with written(log), running(dsn, registry, concurrency=1):
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        assert bus.wait("payments", hung).error_code == "TIMEOUT"
        gate.open.set()
        eventually(lambda: [line for line in log.lines if "the process stalled for" in line])


def test_a_leader_that_loses_its_session_waits_for_no_lock_of_the_log(
    dsn: str, bus: CommandBus
) -> None:
    gate, log = Gate(), Written()
    with written(log), running(dsn, handling(hanging(gate, log), "Hang"), concurrency=2):
        bus.send("payments", "Hang")
        gate.wait_for(1)
        assert rows(dsn, f"{END_SESSIONS} AND query LIKE '-- Settles%'")
        assert bus.wait("payments", bus.send("payments", "Noop"), 15).status == "COMPLETED"
        gate.open.set()
        eventually(lambda: [line for line in log.lines if "a round trip failed" in line])


def test_threads_that_would_log_a_failure_go_on_while_one_hangs_with_the_lock_of_the_log(
    dsn: str, bus: CommandBus
) -> None:
    """The leader, too."""
    gate, log = Gate(), Written()

    def fail(command: Command, context: Context) -> None:
        raise BusinessRuleError("NO", "rule")

    registry = handling(hanging(gate, log), "Hang")
    registry.register("payments", "Fail", fail)
    with written(log), running(dsn, registry, concurrency=3):
        bus.send("payments", "Hang")
        gate.wait_for(1)
        for _ in range(5):
            bus.wait("payments", bus.send("payments", "Fail"), 15)
        assert not log.lines
        gate.open.set()
    assert len([line for line in log.lines if "NO: rule" in line]) == 5


def test_an_instrument_that_hangs_keeps_neither_timeouts_nor_the_stop_waiting(
    dsn: str, bus: CommandBus
) -> None:
    """As an exporter does whose collector is away. No thread is free but housekeeping's, which ends
    what hangs and renews leases."""
    gate, ends = Gate(), threading.Event()
    registry = handling(gate, "Hang", retry=ONCE, timeout=TIMEOUT)
    with running(dsn, registry, concurrency=1) as worker:
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        assert worker._concurrency.threads
        worker._concurrency.threads.unsettled.log.add(lambda: ends.wait(20))
        assert bus.wait("payments", hung).error_code == "TIMEOUT"
        gate.open.set()
        worker.stop(timeout=0.1)
    ends.set()
    eventually(lambda: "log" not in {thread.name for thread in threading.enumerate()})


def test_what_a_handler_that_was_given_up_ends_with_is_not_logged(
    dsn: str, bus: CommandBus
) -> None:
    """It settles nothing: housekeeping has settled it."""
    gate, log = Gate(), Written()

    def hang(command: Command, context: Context) -> None:
        gate(command, context)
        raise RuntimeError("too late")

    registry = handling(hang, "Hang", retry=ONCE, timeout=TIMEOUT)
    with written(log), running(dsn, registry, concurrency=1):
        hung = bus.send("payments", "Hang")
        gate.wait_for(1)
        assert bus.wait("payments", hung).error_code == "TIMEOUT"
        gate.open.set()
        bus.wait("payments", bus.send("payments", "Noop"))
    failures = [line for line in log.lines if "failed in attempt" in line]
    assert len(failures) == 1 and "TIMEOUT" in failures[0], failures
    assert "is in the troubleshooting queue" in failures[0]
