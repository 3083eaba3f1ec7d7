"""Hosts on this machine: network namespaces, each with a link to ours, which can be down.

They need root and iproute2. Their names hold the pid of the run that made them, so that a
later one can remove what a killed one left.
"""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv4Address

import psutil

from cmdbus.errors import CmdbusError

#: For measurements between hosts of one's own: 198.18.0.0/15, of which each link has four.
_ADDRESSES, _LINKS = IPv4Address("198.18.0.0"), 2**15
_NAME = re.compile(r"cmdbus-(\d+)-(\w+)")
_INSIDE = "eth0"
_ANSWERS_S = 10.0


class HostsError(CmdbusError):
    """Hosts cannot be made here; the message says why."""


class Host:
    """A network namespace with a link to ours."""

    def __init__(self, pid: int, letter: str, address: str = "") -> None:
        self._name = f"cmdbus-{pid}-{letter}"
        self._link = f"cb{pid}{letter}"
        #: Of our end of its link.
        self.address = address
        self._lock = threading.Lock()
        self._pulls = 0

    @property
    def prefix(self) -> Sequence[str]:
        """Of a command that runs there."""
        return ("ip", "netns", "exec", self._name)

    def make(self) -> None:
        inside = ("-n", self._name)
        _ip("netns", "add", self._name)
        _ip("link", "add", self._link, *f"type veth peer {_INSIDE} netns {self._name}".split())
        _ip("addr", "add", f"{self.address}/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        _ip(*inside, "addr", "add", f"{IPv4Address(self.address) + 1}/30", "dev", _INSIDE)
        _ip(*inside, "link", "set", _INSIDE, "up")
        _ip(*inside, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Also a half of it. The namespace goes with its last process."""
        for what in (("link", "del", self._link), ("netns", "del", self._name)):
            with suppress(HostsError):
                _ip(*what)

    def pull_plug(self) -> None:
        """Nothing comes through, and no connection ends, until each pull is undone. It acts at our
        end of the link: at theirs the route would be gone with it."""
        with self._lock:
            self._pulls += 1
            _ip("link", "set", self._link, "down")

    def plug_in(self) -> None:
        with self._lock:
            self._pulls -= 1
            if self._pulls <= 0:
                _ip("link", "set", self._link, "up")


@contextmanager
def hosts(names: Sequence[str]) -> Iterator[list[Host]]:
    """A HostsError says why there can be none."""
    if not names:
        yield []
        return
    if os.geteuid() != 0:
        raise HostsError("hosts of their own need root, for network namespaces")
    if shutil.which("ip") is None:
        raise HostsError("hosts of their own need the program ip, of iproute2")
    _sweep()
    with ExitStack() as stack:
        yield [stack.enter_context(_host(number, name)) for number, name in enumerate(names)]


@contextmanager
def _host(number: int, letter: str) -> Iterator[Host]:
    pid = os.getpid()
    ours = _ADDRESSES + 4 * ((8 * pid + number) % _LINKS) + 1
    host = Host(pid, letter, str(ours))
    try:
        host.make()
        yield host
    finally:
        host.remove()


def _sweep() -> None:
    """What is left of runs that were killed."""
    for line in _ip("netns", "list").splitlines():
        match = _NAME.match(line)
        if match and not psutil.pid_exists(int(match[1])):
            Host(int(match[1]), match[2]).remove()


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=_ANSWERS_S, check=False
    )
    if done.returncode != 0:
        raise HostsError(f"ip {' '.join(arguments)}: {' '.join(done.stderr.split())}")
    return done.stdout
