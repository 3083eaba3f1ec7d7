"""A network that falls silent, is slow, trickles, or loses the reply to a chosen request."""

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.proxy import Link
from lab.proxy import Proxy as PlainProxy

#: Seconds between two bytes in each direction of a connection, while it trickles.
_TRICKLE_S = 0.1
#: A client sends the query of a prepared statement once, and later only its name.
_PREPARED = re.compile(rb"P.{4}(_pg3_\d+)\0([^\0]*)\0", re.DOTALL)


class Proxy(PlainProxy):
    def __init__(self, dsn: str, directory: Path) -> None:
        self._flowing = threading.Event()
        self._flowing.set()
        self._silences = 0
        self._late_by = 0.0
        self._trickles = 0
        self._lock = threading.Lock()
        #: Part of a request whose reply is to be lost, by the name under which that is counted.
        self._lose: dict[str, bytes] = {}
        self.lost: Counter[str] = Counter()
        super().__init__(dsn, directory)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing comes through, in neither direction, and no connection ends."""
        with self._lock:
            self._silences += 1
            self._flowing.clear()
        try:
            yield
        finally:
            with self._lock:
                self._silences -= 1
                if not self._silences:
                    self._flowing.set()

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        with self._lock:
            self._late_by += seconds
        try:
            yield
        finally:
            with self._lock:
                self._late_by -= seconds

    @contextmanager
    def trickling(self) -> Iterator[None]:
        """A byte at a time comes through: more than a silence, and not enough."""
        with self._lock:
            self._trickles += 1
        try:
            yield
        finally:
            with self._lock:
                self._trickles -= 1

    def lose_replies(self, name: str, pattern: bytes) -> None:
        """The next request with the pattern reaches the server, which carries it out; its
        client's connection ends instead of the reply."""
        with self._lock:
            self._lose[name] = pattern

    def close(self) -> None:
        self._flowing.set()
        super().close()

    def on_connect(self) -> None:
        self._flowing.wait()

    def on_request(self, link: Link, data: bytes) -> None:
        self._delay()
        link.prepared.update(_PREPARED.findall(data))
        if self._is_to_be_lost(link, data):
            link.loses_reply = True
        self._send(link.server, data)

    def on_reply(self, link: Link, data: bytes) -> None:
        self._delay()
        if link.loses_reply:
            link.cut()  # The server has carried it out, or it would not reply.
        self._send(link.client, data)

    def _delay(self) -> None:
        if (seconds := self._late_by) > 0:
            time.sleep(seconds)
        self._flowing.wait()

    def _send(self, target: socket.socket, data: bytes) -> None:
        while data and self._trickles:
            target.sendall(data[:1])
            data = data[1:]
            time.sleep(_TRICKLE_S)
        target.sendall(data)

    def _is_to_be_lost(self, link: Link, data: bytes) -> bool:
        if not self._lose:
            return False
        known = [query for name, query in link.prepared.items() if b"\0%s\0" % name in data]
        with self._lock:
            for name, pattern in self._lose.items():
                if any(pattern in text for text in (data, *known)):
                    del self._lose[name]
                    self.lost[name] += 1
                    return True
        return False
