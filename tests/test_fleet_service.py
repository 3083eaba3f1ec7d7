"""A fleet and the service manager that started it, over a real socket of systemd's kind."""

import signal
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from uuid import uuid4

import pytest
from eventually import eventually, stays
from fleet import Fleet, kill, write_app

pytestmark = pytest.mark.fleet

WATCHDOG_S = 1.0
#: Imports well in the preflight, and in no worker process.
BROKEN_IN_WORKERS = """
import sys
from fleet_app import registry as registry
assert "cmdbus.worker.boot.process" not in sys.modules
"""


class Manager:
    """Reads what the supervisor sends; each line with the time at which it was read."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver
        self._lines: list[tuple[float, str]] = []

    def lines(self) -> list[str]:
        self._read()
        return [line for _, line in self._lines]

    def times(self, line: str) -> list[float]:
        self._read()
        return [at for at, each in self._lines if each == line]

    def await_line(self, line: str, count: int = 1, within: float = 20.0) -> None:
        eventually(lambda: self.lines().count(line) >= count, within)

    def _read(self) -> None:
        while True:
            try:
                datagram = self._receiver.recv(4096)
            except BlockingIOError:
                return
            self._lines += [(time.monotonic(), line) for line in datagram.decode().split("\n")]


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f"cmdbus-test-{uuid4().hex}"
        receiver.bind(f"\0{name}")
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield Manager(receiver)


@pytest.mark.fleet(started=False)
def test_a_service_manager_hears_of_a_fleets_whole_life(manager: Manager, fleet: Fleet) -> None:
    fleet.start()
    manager.await_line("READY=1")
    assert len(fleet.workers()) == 2, "it is ready when all of its workers are"
    manager.await_line("STATUS=2 of 2 processes ready")
    manager.await_line("WATCHDOG=1", 4)
    beats = manager.times("WATCHDOG=1")
    # Of any number of them one may be late, on a machine that stalls.
    assert median(b - a for a, b in pairwise(beats)) < WATCHDOG_S
    fleet.send_signal(signal.SIGHUP)
    manager.await_line("RELOADING=1")
    manager.await_line("READY=1", 2)
    assert fleet.stop() == 0
    manager.await_line("STOPPING=1")
    lines = manager.lines()
    order = [lines.index(line) for line in ("READY=1", "RELOADING=1", "STOPPING=1")]
    assert order == sorted(order)
    assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in lines)


@pytest.mark.fleet(procs=1, started=False)
def test_a_service_manager_hears_that_a_reload_is_over_that_kept_the_old_application(
    manager: Manager, fleet: Fleet
) -> None:
    fleet.start()
    manager.await_line("READY=1")
    write_app(fleet.place, BROKEN_IN_WORKERS)
    fleet.send_signal(signal.SIGHUP)
    fleet.await_saying("the fleet keeps the old one")
    manager.await_line("READY=1", 2)


@pytest.mark.fleet(procs=1)
def test_a_supervisor_that_hangs_is_silent_for_its_service_manager(
    manager: Manager, fleet: Fleet
) -> None:
    """No thread of its own sends the pings: they would go on while its loop hangs."""
    manager.await_line("WATCHDOG=1", 2)
    kill(fleet.pid, signal.SIGSTOP)
    try:
        eventually(lambda: is_stopped(fleet))
        manager.lines()
        silent_since = time.monotonic()
        stays(lambda: manager.times("WATCHDOG=1")[-1] <= silent_since, 2 * WATCHDOG_S)
    finally:
        kill(fleet.pid, signal.SIGCONT)
    manager.await_line("WATCHDOG=1", len(manager.times("WATCHDOG=1")) + 2)


def is_stopped(fleet: Fleet) -> bool:
    return Path(f"/proc/{fleet.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
