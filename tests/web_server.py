"""A server of the page with an application of a test's, and clients on real sockets."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from cmdbus.web.http.runner import Application
from cmdbus.web.http.server import Server
from cmdbus.web.http.settings import ServerSettings

#: Seconds after which a client gives up.
PATIENCE = 20.0


@contextmanager
def serving(
    application: Application,
    settings: ServerSettings | None = None,
    *,
    port: int = 0,
    started: bool = True,
) -> Iterator[Server]:
    """With `started=False` the test itself starts it."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    server = Server(listener, application, settings)
    if started:
        server.start()
    try:
        yield server
    finally:
        server.stop()


class Client:
    def __init__(self, server: Server, *, receives: int | None = None) -> None:
        """`receives`: bytes that the system keeps for this client while it reads nothing."""
        self.socket = socket.socket()
        if receives is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(server.address)
        self.received = b""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, path: str = "/", *fields: str, version: str = "1.1") -> tuple[int, bytes]:
        lines = [f"GET {path} HTTP/{version}", "Host: localhost", *fields]
        self.send("\r\n".join([*lines, "", ""]).encode())
        return self.response()

    def response(self) -> tuple[int, bytes]:
        """The status and the body of the next one."""
        head = self.until(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        length = int(fields.get(b"content-length", b"0"))
        while len(self.received) < length:
            self._more()
        body, self.received = self.received[:length], self.received[length:]
        return int(head.split()[1]), body

    def until(self, end: bytes) -> bytes:
        while end not in self.received:
            self._more()
        found, _, self.received = self.received.partition(end)
        return found

    def closed(self) -> bool:
        """Waits for the end of the connection."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError(self.received)
        self.received += data
