"""What a service manager receives, over a real socket of its kind."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from cmdbus.supervisor.systemd_notifier import SystemdNotifier, clear_notify_env


@contextmanager
def manager(monkeypatch: pytest.MonkeyPatch, name: str | None = None) -> Iterator[socket.socket]:
    """The socket of a service manager that started us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(5)
        path = f"@cmdbus-test-{uuid4().hex}" if name is None else name
        receiver.bind("\0" + path[1:] if path.startswith("@") else path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        yield receiver


def heard(receiver: socket.socket) -> list[str]:
    return receiver.recv(4096).decode().split("\n")


def nothing_more(receiver: socket.socket) -> bool:
    receiver.setblocking(False)
    try:
        receiver.recv(4096)
    except BlockingIOError:
        return True
    return False


@pytest.fixture(autouse=True)
def no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", ["abstract", "file"])
def test_the_manager_hears_of_each_change(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    name = None if kind == "abstract" else str(tmp_path / "n")
    with manager(monkeypatch, name) as receiver, closing(SystemdNotifier()) as notifier:
        notifier.ready()
        assert heard(receiver) == ["READY=1"]
        notifier.reloading()
        state, at = heard(receiver)
        assert state == "RELOADING=1"
        assert at.removeprefix("MONOTONIC_USEC=").isdigit()
        notifier.status("two\nlines")
        assert heard(receiver) == ["STATUS=two lines"]
        notifier.status("two lines")  # nothing new
        notifier.stopping(2.5)
        assert heard(receiver) == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=2500000"]


def test_the_watchdog_hears_twice_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that hangs says nothing, and is restarted."""
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with manager(monkeypatch) as receiver, closing(SystemdNotifier()) as notifier:
        assert notifier.watchdog == 5.0
        for at in (100.0, 101.0, 104.9):
            notifier.ping(at)
        assert heard(receiver) == ["WATCHDOG=1"]
        notifier.ping(105.0)
        assert heard(receiver) == ["WATCHDOG=1"]
        assert nothing_more(receiver)


@pytest.mark.parametrize(
    ("microseconds", "pid"), [("10000000", "1"), ("0", None), ("soon", None), ("", None)]
)
def test_a_watchdog_that_is_not_for_this_process_hears_nothing(
    microseconds: str, pid: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    if pid:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    with manager(monkeypatch) as receiver, closing(SystemdNotifier()) as notifier:
        notifier.ping(100.0)
        assert nothing_more(receiver)


@pytest.mark.parametrize("path", [None, "", "/nowhere/notify", "vsock:2:1", "@", "/" + "x" * 200])
def test_without_a_manager_nothing_happens(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", path)
    with closing(SystemdNotifier()) as notifier:
        notifier.ready()
        notifier.stopping(2.5)


def test_a_manager_that_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with manager(monkeypatch) as receiver, closing(SystemdNotifier()) as notifier:
        for number in range(5000):  # more than any queue of datagrams holds
            notifier.status(f"number {number}")
        assert heard(receiver) == ["STATUS=number 0"]


def test_a_child_process_sends_the_service_manager_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    with manager(monkeypatch) as receiver:
        text = "from cmdbus.supervisor.systemd_notifier import *; clear_notify_env();"
        text += "SystemdNotifier().ready()"
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", text], check=True, env=dict(os.environ)
        )
        assert nothing_more(receiver)
        clear_notify_env()
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)
