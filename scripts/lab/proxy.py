"""A network between a client and its server. Subclasses delay, lose or change what it carries."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SOCKET = ".s.PGSQL.5432"
_CHUNK_BYTES = 65536
_BACKLOG = 200
_THREADS_END_S = 10.0


@dataclass(eq=False, slots=True)
class Link:
    """One connection of a client."""

    number: int
    client: socket.socket
    server: socket.socket
    #: The queries of prepared statements, whose names alone go with later requests.
    prepared: dict[bytes, bytes] = field(default_factory=dict)
    #: The client's side ends at the next reply.
    loses_reply: bool = False

    def cut(self) -> None:
        shut(self.client)
        shut(self.server)


class Proxy:
    """Forwards connections to the server of `dsn`, under a DSN of its own."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self._server = conninfo_to_dict(dsn)
        self.dsn = make_conninfo(dsn, host=str(directory), port=5432)
        self.socket = directory / _SOCKET
        self._accepted = 0
        self._closed = False
        self._links: set[Link] = set()
        self._listeners: list[socket.socket] = []
        self._threads: set[threading.Thread] = set()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.socket))
        self._listen(listener)

    def listen(self, address: str) -> str:
        """Also listens there, by TCP; the DSN of that."""
        listener = socket.create_server((address, 0))
        self._listen(listener)
        return make_conninfo(self.dsn, host=address, port=listener.getsockname()[1])

    def cut(self) -> None:
        """Ends the present connections."""
        for link in [*self._links]:
            link.cut()

    def close(self) -> None:
        self._closed = True
        for listener in self._listeners:
            shut(listener)
        for link in [*self._links]:
            link.cut()
        while threads := [*self._threads]:
            threads[0].join(_THREADS_END_S)
            self._threads.discard(threads[0])
        for listener in self._listeners:
            listener.close()

    # What subclasses change. Each may raise an OSError, which ends the connection.

    def on_connect(self) -> None:
        """Before the server is reached."""

    def on_request(self, link: Link, data: bytes) -> None:
        link.server.sendall(data)

    def on_reply(self, link: Link, data: bytes) -> None:
        link.client.sendall(data)

    def on_client_gone(self, link: Link) -> None:
        shut(link.server)

    # The threads: one for each listener, and two for each connection.

    def _listen(self, listener: socket.socket) -> None:
        listener.listen(_BACKLOG)
        self._listeners.append(listener)
        self._start(self._accept, listener)

    def _start(self, run: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(run, *arguments), daemon=True)
        self._threads.add(thread)
        thread.start()
        return thread

    def _run(self, run: Callable[..., None], *arguments: object) -> None:
        with suppress(OSError):
            run(*arguments)
        self._threads.discard(threading.current_thread())

    def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            self._start(self._serve, client, self._accepted)
            self._accepted += 1

    def _serve(self, client: socket.socket, number: int) -> None:
        with client:
            self.on_connect()
            with self._connect() as server:
                link = Link(number, client, server)
                self._links.add(link)
                if self._closed:
                    link.cut()
                replies = self._start(self._carry_replies, link)
                with suppress(OSError):
                    while data := client.recv(_CHUNK_BYTES):
                        self.on_request(link, data)
                self.on_client_gone(link)
                replies.join()
                self._links.discard(link)

    def _carry_replies(self, link: Link) -> None:
        try:
            while data := link.server.recv(_CHUNK_BYTES):
                self.on_reply(link, data)
        finally:
            shut(link.client)

    def _connect(self) -> socket.socket:
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


def shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
