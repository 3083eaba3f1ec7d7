"""A network between a client and its server that falls silent, is slow, trickles, cuts, or
loses the reply to a chosen request."""

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SOCKET = ".s.PGSQL.5432"
_AT_ONCE = 65536
#: While it trickles, a byte passes in each direction of each connection every so often.
_TRICKLE_S = 0.1
#: A client says once what a prepared statement is, and later only its name.
_PREPARED = re.compile(rb"P.{4}(_pg3_\d+)\0([^\0]*)\0", re.DOTALL)


class Proxy:
    """Forwards connections to the server of `dsn`, under a DSN of its own."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self._server = conninfo_to_dict(dsn)
        self.dsn = make_conninfo(dsn, host=str(directory), port=5432)
        self._flowing = threading.Event()
        self._flowing.set()
        self._silences = 0
        self._late_by = 0.0
        self._trickles = 0
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        #: Whose reply is to be lost, by a name under which that is counted.
        self._lose: dict[str, bytes] = {}
        self.lost: Counter[str] = Counter()
        self._listeners: list[socket.socket] = []
        door = socket.socket(socket.AF_UNIX)
        door.bind(str(directory / _SOCKET))
        self._listen(door)

    def listen(self, address: str) -> str:
        """Also there, by TCP; under which DSN."""
        door = socket.create_server((address, 0))
        self._listen(door)
        return make_conninfo(self.dsn, host=address, port=door.getsockname()[1])

    def _listen(self, door: socket.socket) -> None:
        door.listen(200)
        self._listeners.append(door)
        threading.Thread(target=self._accept, args=(door,), daemon=True).start()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing comes through, in neither direction; nobody is told."""
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

    def cut(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            _shut(end)

    def lose_replies(self, name: str, pattern: bytes) -> None:
        """The next request with the pattern reaches the server, which carries it out; its
        client's connection dies instead of getting the reply."""
        with self._lock:
            self._lose[name] = pattern

    def close(self) -> None:
        self._flowing.set()
        for door in self._listeners:
            _shut(door)
            door.close()
        self.cut()

    def _accept(self, door: socket.socket) -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._flowing.wait()
        try:
            server = self._reach()
        except OSError:
            client.close()
            return
        with self._lock:
            self._ends |= {client, server}
        deaf = threading.Event()
        back = threading.Thread(target=self._bring, args=(client, server, deaf), daemon=True)
        back.start()
        self._carry(client, server, deaf)
        _shut(server)
        back.join()
        with self._lock:
            self._ends -= {client, server}
        client.close()
        server.close()

    def _reach(self) -> socket.socket:
        host, port = str(self._server["host"]), str(self._server.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, int(port)))
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            server.close()
            raise
        return server

    def _carry(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        prepared: dict[bytes, bytes] = {}
        with suppress(OSError):
            while data := client.recv(_AT_ONCE):
                self._pass()
                prepared.update(_PREPARED.findall(data))
                if self._is_to_be_lost(data, prepared):
                    deaf.set()
                self._send(server, data)

    def _bring(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(_AT_ONCE):
                self._pass()
                if deaf.is_set():
                    break  # The server has done it, or it would not answer.
                self._send(client, data)
        _shut(client)
        _shut(server)

    def _pass(self) -> None:
        if (seconds := self._late_by) > 0:
            time.sleep(seconds)
        self._flowing.wait()

    def _send(self, target: socket.socket, data: bytes) -> None:
        while data and self._trickles:
            target.sendall(data[:1])
            data = data[1:]
            time.sleep(_TRICKLE_S)
        target.sendall(data)

    def _is_to_be_lost(self, data: bytes, prepared: Mapping[bytes, bytes]) -> bool:
        if not self._lose:
            return False
        known = [query for name, query in prepared.items() if b"\0%s\0" % name in data]
        with self._lock:
            for name, pattern in self._lose.items():
                if any(pattern in text for text in (data, *known)):
                    del self._lose[name]
                    self.lost[name] += 1
                    return True
        return False


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
