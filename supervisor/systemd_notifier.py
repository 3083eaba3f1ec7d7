"""What a service manager is told, by systemd's protocol: a datagram to $NOTIFY_SOCKET.

Without a service manager nothing happens. Must never raise, and never wait: a manager
that does not read loses its news.
"""

import os
import socket
from contextlib import suppress

from cmdbus.clock import time


class SystemdNotifier:
    """The supervising process's line to its service manager."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._status = ""
        path = os.environ.get("NOTIFY_SOCKET", "")
        # The two kinds that there are: a file, and an abstract name. Others cannot be reached.
        self._address = "\0" + path[1:] if path[:1] == "@" else path if path[:1] == "/" else ""
        #: Seconds between two pings, which is half of what the manager waits; None: no watchdog.
        self.watchdog = _watchdog()
        self._pinged = float("-inf")
        if self._address:
            with suppress(OSError):
                self._socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
                )
                self._socket.setblocking(False)

    def ready(self, status: str = "") -> None:
        """The first fleet is ready, or the one after a reload."""
        self._send("READY=1", *self._news(status))

    def reloading(self, status: str = "") -> None:
        """Until the next `ready`."""
        at = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={at}", *self._news(status))

    def stopping(self, status: str = "") -> None:
        self._send("STOPPING=1", *self._news(status))

    def status(self, text: str) -> None:
        """One line for `systemctl status`, sent when it has changed."""
        self._send(*self._news(text))

    def extend(self, seconds: float) -> None:
        """The start, stop or reload that is under way may take so much longer from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def ping(self, now: float) -> None:
        """At every round of the loop: says so to the watchdog when it is time, in monotonic
        seconds. Only who decides may call it: a ping from elsewhere would prove nothing."""
        if self.watchdog is not None and now - self._pinged >= self.watchdog:
            self._pinged = now
            self._send("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _news(self, status: str) -> list[str]:
        line = " ".join(status.split())
        if not line or line == self._status:
            return []
        self._status = line
        return [f"STATUS={line}"]

    def _send(self, *lines: str) -> None:
        if self._socket is not None and lines:
            # A full queue, or a manager that is gone.
            with suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)


def clear_notify_env() -> None:
    """In a child: what it or its programs say is not the service's word."""
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        os.environ.pop(name, None)


def _watchdog() -> float | None:
    """Half of the manager's patience, if it is for this process."""
    for_whom = os.environ.get("WATCHDOG_PID")
    if for_whom is not None and for_whom != str(os.getpid()):
        return None
    patience = os.environ.get("WATCHDOG_USEC", "")
    if not patience.isascii() or not patience.isdigit() or int(patience) == 0:
        return None
    return int(patience) / 2e6
