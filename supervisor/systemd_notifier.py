"""Notifies a service manager by systemd's protocol: a datagram to $NOTIFY_SOCKET.

Without a service manager it does nothing. Must never raise or wait: a manager that does not read
misses notifications.
"""

import os
import re
import socket
from contextlib import suppress

from cmdbus.clock import time


class SystemdNotifier:
    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._status = ""
        self.is_reloading = False
        path = os.environ.get("NOTIFY_SOCKET", "")
        # A file or an abstract name; other kinds cannot be reached.
        self._address = "\0" + path[1:] if path[:1] == "@" else path if path[:1] == "/" else ""
        #: Seconds between two pings, half of the manager's timeout; None: no watchdog.
        self.watchdog = _watchdog()
        self._pinged = float("-inf")
        if self._address:
            with suppress(OSError):
                self._socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
                )
                self._socket.setblocking(False)

    def ready(self) -> None:
        """The first fleet is ready, or the one after a reload."""
        self.is_reloading = False
        self._send("READY=1")

    def reloading(self) -> None:
        """Until the next `ready`."""
        self.is_reloading = True
        at = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={at}")

    def stopping(self, seconds: float) -> None:
        """The stop may take `seconds` from now."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`, sent when it has changed."""
        line = " ".join(text.split())
        if line and line != self._status:
            self._status = line
            self._send(f"STATUS={line}")

    def ping(self, now: float) -> None:
        """Pings the watchdog when it is time, in monotonic seconds. Only the loop may call it: a
        ping from elsewhere would prove nothing."""
        if self.watchdog is not None and now - self._pinged >= self.watchdog:
            self._pinged = now
            self._send("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            # A full queue, or a manager that is gone.
            with suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)


def clear_notify_env() -> None:
    """In a child: neither it nor its programs may notify in the service's name."""
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        os.environ.pop(name, None)


def _watchdog() -> float | None:
    pid, timeout = str(os.getpid()), os.environ.get("WATCHDOG_USEC", "")
    is_watched = os.environ.get("WATCHDOG_PID", pid) == pid and re.fullmatch(
        "0*[1-9][0-9]*", timeout
    )
    return int(timeout) / 2e6 if is_watched else None
