"""A network between a client and its server that a test can cut."""

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Forwards connections to the server of `dsn`, under a DSN of its own.

    `change` may make something else of what a client sends, as poolers do.
    """

    def __init__(self, dsn: str, change: Callable[[bytes], bytes] = bytes) -> None:
        self._change = change
        self._server = conninfo_to_dict(dsn)
        self._folder = tempfile.TemporaryDirectory(prefix="p")
        self.dsn = make_conninfo(dsn, host=self._folder.name, port=5432)
        self._listener = socket.socket(socket.AF_UNIX)
        self.socket = Path(self._folder.name) / _SOCKET
        self._listener.bind(str(self.socket))
        self._listener.listen()
        self._clients: list[socket.socket] = []
        #: Connections that were made until then are silenced; a number of connections.
        self._muted = self._frozen = 0
        self._all_frozen = False
        self._servers: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """The clients' side is gone; the server's side stays open and learns nothing."""
        # What connects again meanwhile is not meant.
        clients, self._clients = self._clients, []
        for client in clients:
            _shut(client)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nothing listens there meanwhile, and what was connected is gone."""
        aside = self.socket.rename(self.socket.with_name("away"))
        self.cut()
        yield
        aside.rename(self.socket)

    def mute(self) -> None:
        """The server hears and does what it is told, and its answers do not arrive; on the
        present connections."""
        self._muted = len(self._servers)

    def freeze(self, new_ones: bool = False) -> None:
        """Nothing arrives any more on the present connections, which stay open."""
        self._frozen = len(self._servers)
        self._all_frozen = new_ones

    def _swallows(self, number: int, from_client: bool) -> bool:
        frozen = self._all_frozen or number < self._frozen
        return frozen or (not from_client and number < self._muted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _shut(self._listener)
        for end in (*self._clients, *self._servers):
            _shut(end)
        for thread in self._threads:
            thread.join(10)
        for end in (self._listener, *self._servers):
            end.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            number = len(self._servers)
            self._clients.append(client)
            self._servers.append(server)
            for way in ((client, server, self._change), (server, client, None)):
                swallows = partial(self._swallows, number, way[2] is not None)
                self._threads.append(threading.Thread(target=_forward, args=(*way, swallows)))
                self._threads[-1].start()

    def _connect(self) -> socket.socket:
        host, port = str(self._server["host"]), self._server.get("port", "5432")
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
            return server
        return socket.create_connection((host, int(str(port))))


def _forward(
    source: socket.socket,
    target: socket.socket,
    change: Callable[[bytes], bytes] | None,
    swallows: Callable[[], bool],
) -> None:
    """Until the source ends. A client's end is not passed on: that is the point."""
    with suppress(OSError):
        while data := source.recv(65536):
            if not swallows():
                target.sendall(change(data) if change else data)
    if change:
        source.close()
    else:
        _shut(target)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
