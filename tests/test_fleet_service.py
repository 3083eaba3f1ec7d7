"""A fleet and the service manager that started it, over a real socket of systemd's kind."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from eventually import eventually, stays
from fleet import Fleet, kill, supervised, unstarted

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(90)]

WATCHDOG_S = 1.0


class Manager:
    """Reads what the supervisor sends; each line with the time at which it was read."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours = ours
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
                datagram = self._ours.recv(4096)
            except BlockingIOError:
                return
            self._lines += [(time.monotonic(), line) for line in datagram.decode().split("\n")]


@contextmanager
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        name = f"cmdbus-test-{uuid4().hex}"
        ours.bind(f"\0{name}")
        ours.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield Manager(ours)


def test_a_service_manager_hears_of_a_fleets_whole_life(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        manager(monkeypatch) as heard,
        unstarted(dsn, tmp_path, procs=2, threads=2) as fleet,
    ):
        fleet.start()
        heard.await_line("READY=1")
        assert len(fleet.workers()) == 2, "it is ready when all of its workers are"
        heard.await_line("STATUS=2 of 2 processes ready")
        heard.await_line("WATCHDOG=1", 4)
        beats = heard.times("WATCHDOG=1")
        assert max(b - a for a, b in pairwise(beats)) < WATCHDOG_S
        fleet.send_signal(signal.SIGHUP)
        heard.await_line("RELOADING=1")
        heard.await_line("READY=1", 2)
        assert fleet.stop() == 0
        heard.await_line("STOPPING=1")
        lines = heard.lines()
        order = [lines.index(line) for line in ("READY=1", "RELOADING=1", "STOPPING=1")]
        assert order == sorted(order)
        assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in lines)


def test_a_supervisor_that_hangs_is_silent_for_its_service_manager(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread of its own sends the pings: they would go on while its loop hangs."""
    with manager(monkeypatch) as heard, supervised(dsn, tmp_path, procs=1) as fleet:
        heard.await_line("WATCHDOG=1", 2)
        kill(fleet.pid, signal.SIGSTOP)
        try:
            eventually(lambda: is_stopped(fleet))
            heard.lines()
            silent_since = time.monotonic()
            stays(lambda: heard.times("WATCHDOG=1")[-1] <= silent_since, 2 * WATCHDOG_S)
        finally:
            kill(fleet.pid, signal.SIGCONT)
        heard.await_line("WATCHDOG=1", len(heard.times("WATCHDOG=1")) + 2)


def is_stopped(fleet: Fleet) -> bool:
    return Path(f"/proc/{fleet.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
