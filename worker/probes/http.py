"""Answers GET and HEAD with small pages, however slow or many its clients are.

One thread, which never blocks: a client that sends or reads nothing delays no other. A connection
is for one request and has a deadline; when there are too many, a new one replaces the oldest.
The standard library's server has a thread for each connection, no deadline for a connection whose
client sends a byte now and again, and reads heads of up to 6 MB.
"""

import ipaddress
import logging
import re
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus

from cmdbus.board.wake_pipe import WakePipe
from cmdbus.clock import time
from cmdbus.worker.probes.responses import Response

logger = logging.getLogger(__name__)

#: Answers by path; None is 404.
Site = Callable[[str], Response | None]

_MAX_CLIENTS = 64
_CLIENT_SECONDS = 5.0
_MAX_BYTES = 8192
_CHUNK_BYTES = 4096
#: Seconds without accepting clients when the system has no descriptor for another one.
_PAUSE_SECONDS = 0.1

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(r"\r?\n")
_REQUEST = re.compile(r"([A-Z]{1,20}) (\S{1,2000}) HTTP/1\.[01]", re.ASCII)
_PATH = re.compile(r"(/[^?#]*)", re.ASCII)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:]*)(:\d{1,5})?", re.ASCII)


class Server:
    """On a non-blocking listening socket, from which other processes may accept, too."""

    def __init__(
        self, listener: socket.socket, site: Site, *, host: str, timeout: float = _CLIENT_SECONDS
    ) -> None:
        """`host`: the name by which its address was given; `timeout`: seconds for each client."""
        self._timeout = timeout
        self._listener = listener
        self._site = site
        #: The name that a request must use if only this machine can reach the socket: with
        #: another name, a web page could make a browser here read it (DNS rebinding).
        self._host = host if _is_local(str(listener.getsockname()[0])) else None
        self._selector = selectors.DefaultSelector()
        #: Connections with their deadlines, the oldest first.
        self._clients: dict[socket.socket, float] = {}
        self._wake_pipe = WakePipe(1)
        #: The error of the latest warning, which is not repeated until a client is accepted.
        self._last_warning: str | None = None
        self._stopping = False
        self.thread = threading.Thread(target=self._run, name="steward-http", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self, seconds: float) -> None:
        """Accepts no more clients and closes the connections."""
        self._stopping = True
        self._wake_pipe.put()
        self.thread.join(seconds)
        if not self.thread.is_alive():
            # The thread must not close it: it may end before there is a byte in it.
            self._wake_pipe.close()

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_pipe, selectors.EVENT_READ)
        while not self._stopping:
            for key, _ in self._selector.select(self._pause()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._clients:
                    self._go_on(key)
            while self._clients and self._pause() == 0:
                self._close_oldest()
        while self._clients:
            self._close_oldest()
        self._selector.close()

    def _pause(self) -> float | None:
        """Seconds until the first deadline."""
        return next((max(0.0, by - time.monotonic()) for by in self._clients.values()), None)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            self._last_warning = None
        except (BlockingIOError, ConnectionError):
            return  # Another process was faster, or the client has gone.
        except OSError as error:
            if self._last_warning != error.strerror:
                logger.warning("no further probe can be answered: %s", error.strerror)
            self._last_warning = error.strerror
            self._close_oldest()
            time.sleep(_PAUSE_SECONDS)
            return
        if len(self._clients) >= _MAX_CLIENTS:
            self._close_oldest()
        connection.setblocking(False)
        self._clients[connection] = time.monotonic() + self._timeout
        steps = self._serve(connection)
        self._selector.register(connection, next(steps), steps)

    def _go_on(self, key: selectors.SelectorKey) -> None:
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        try:
            if (event := next(key.data)) != key.events:
                self._selector.modify(connection, event, key.data)
        except (StopIteration, OSError):
            self._close(connection)

    def _serve(self, connection: socket.socket) -> Iterator[int]:
        """Reads a request and answers it; yields what the connection must be ready for next."""
        received = b""
        while (head := _head(received)) is None:
            yield selectors.EVENT_READ
            if not (data := connection.recv(_CHUNK_BYTES)):
                return
            received += data
        page = memoryview(self._answer(head))
        while page := page[connection.send(page) :]:
            yield selectors.EVENT_WRITE
        connection.shutdown(socket.SHUT_WR)
        # Until the client has closed, so that it has read all of it.
        ignored = 0
        while data and ignored < 2 * _MAX_BYTES:
            yield selectors.EVENT_READ
            data = connection.recv(_CHUNK_BYTES)
            ignored += len(data)

    def _answer(self, head: bytes) -> bytes:
        try:
            answer, only_head = respond(head, self._site, host=self._host)
        except Exception:
            logger.exception("a request could not be answered")
            answer, only_head = _plain(HTTPStatus.INTERNAL_SERVER_ERROR), False
        return _page(answer, only_head)

    def _close_oldest(self) -> None:
        if self._clients:
            self._close(next(iter(self._clients)))

    def _close(self, connection: socket.socket) -> None:
        del self._clients[connection]
        self._selector.unregister(connection)
        connection.close()


def _head(received: bytes) -> bytes | None:
    """None until it is complete; an endless one is complete when it is too long."""
    if end := _HEAD_END.search(received):
        return received[: end.start()]
    return received if len(received) > _MAX_BYTES else None


def respond(head: bytes, site: Site, *, host: str | None) -> tuple[Response, bool]:
    """The answer, and whether only its head is wanted. `host`: it must name this one, or this
    machine; None lets it name any."""
    if len(head) > _MAX_BYTES:
        return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), False
    line, *fields = _LINE_END.split(head.decode("latin-1"))
    request = _REQUEST.fullmatch(line)
    path = request and _PATH.match(request[2])
    if not request or not path:
        return _plain(HTTPStatus.BAD_REQUEST), False
    if request[1] not in ("GET", "HEAD"):
        return _plain(HTTPStatus.METHOD_NOT_ALLOWED), False
    only_head = request[1] == "HEAD"
    if host is not None and not all(_is_local(h) or h == host for h in _hosts(fields)):
        return _plain(HTTPStatus.MISDIRECTED_REQUEST), only_head
    return site(path[1]) or _plain(HTTPStatus.NOT_FOUND), only_head


def _hosts(fields: list[str]) -> list[str]:
    named = [field.partition(":") for field in fields]
    values = [value.strip() for name, _, value in named if name.strip().lower() == "host"]
    matches = [_HOST.fullmatch(value) for value in values]
    return [match[1].strip("[]") if match else "" for match in matches]


def _is_local(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(status: HTTPStatus) -> Response:
    return Response(status, f"{status.value} {status.phrase}\n", "text/plain; charset=utf-8")


def _page(answer: Response, only_head: bool) -> bytes:
    status = HTTPStatus(answer.status)
    body = answer.body.encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {answer.type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Content-Security-Policy: default-src 'none'",
        "Connection: close",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode() + (b"" if only_head else body)
