"""The server: accepts, reads, hands over to threads, and writes, with a deadline for each."""

import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus

from cmdbus.clock import time
from cmdbus.web.http.connection import DISPENSABLE, Connection, State
from cmdbus.web.http.heads import HEAD_END, BadRequestError, Head, environ_of, plain_response
from cmdbus.web.http.runner import Answer, Application, Runner, answer, place_of
from cmdbus.web.http.settings import ServerSettings
from cmdbus.web.http.streams import Stream, close_body

logger = logging.getLogger(__name__)

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_CHUNK_BYTES = 64 * 1024
#: Connections that are accepted before others are served again.
_ACCEPTED_AT_ONCE = 32
#: Seconds without accepting clients when the system has no descriptor for another one.
_PAUSE_SECONDS = 0.1
#: Seconds between two warnings about that.
_WARNED_SECONDS = 60.0
#: Seconds of one wait, at most: infinity is none that the system takes.
_MAX_PAUSE = 3600.0


class Server:
    def __init__(
        self,
        listener: socket.socket,
        application: Application,
        settings: ServerSettings | None = None,
    ) -> None:
        """`listener` is a listening socket, which the server closes when it stops."""
        listener.setblocking(False)
        self._listener, self._application = listener, application
        self._settings = settings or ServerSettings()
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._connections: dict[Connection, None] = {}
        self._selector = selectors.DefaultSelector()
        self._runner = Runner(self._settings.threads)
        #: What waits for no database is not held up by what does.
        self._quick = Runner(self._settings.quick_threads)
        #: Of the threads, for the server's own.
        self._answers: deque[tuple[Connection, Answer | None]] = deque()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._stop_by: float | None = None
        self._accepts_at = 0.0
        self._warns_at = 0.0
        self._thread = threading.Thread(target=self.run, name="web-server", daemon=True)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        """Serves in a thread."""
        self._thread.start()

    def stop(self, seconds: float = 1.0) -> None:
        """Accepts no more, ends streams, and waits as long for requests that run."""
        self.ask_to_stop(seconds)
        self._thread.join(seconds + 1.0)

    def ask_to_stop(self, seconds: float) -> None:
        """From a signal handler, too."""
        self._stop_by = time.monotonic() + seconds
        self._wake()

    def run(self) -> None:
        """Serves until it is asked to stop."""
        self._selector.register(self._listener, _READ)
        self._selector.register(self._woken, _READ)
        try:
            while self._stop_by is None:
                self._turn()
            self._finish()
        finally:
            self._runner.stop()
            self._quick.stop()
            for connection in [*self._connections]:
                self._close(connection)
            self._selector.close()
            for each in (self._listener, self._waker, self._woken):
                each.close()

    def _finish(self) -> None:
        assert self._stop_by is not None
        with suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()
        self._accepts_at = 0.0
        for connection in [*self._connections]:
            connection.keeps = False
            if connection.state not in (State.BUSY, State.SENDING):
                self._close(connection)
        while self._connections and time.monotonic() < self._stop_by:
            self._turn()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._pause()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif key.data in self._connections:
                self._safely(self._send if events & _WRITE else self._receive, key.data)
        while self._answers:
            connection, made = self._answers.popleft()
            self._safely(partial(self._take, made), connection)
        now = time.monotonic()
        for connection in [each for each in self._connections if each.deadline <= now]:
            self._safely(self._expire, connection)
        if 0.0 < self._accepts_at <= now:
            self._accepts_at = 0.0
            self._selector.register(self._listener, _READ)

    def _pause(self) -> float:
        now = time.monotonic()
        times = [now + _MAX_PAUSE, *(each.deadline for each in self._connections)]
        if self._accepts_at:
            times.append(self._accepts_at)
        if self._stop_by is not None:
            times.append(self._stop_by)
        return max(0.0, min(times) - now)

    def _wake(self) -> None:
        with suppress(OSError):  # Full: it is about to wake; closed: it has stopped.
            self._waker.send(b"\0")

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                if time.monotonic() > self._warns_at:
                    logger.warning("clients have to give way: %s", error.strerror)
                    self._warns_at = time.monotonic() + _WARNED_SECONDS
                if self._close_dispensable():
                    continue
                self._selector.unregister(self._listener)
                self._accepts_at = time.monotonic() + _PAUSE_SECONDS
                return
            if len(self._connections) >= self._settings.connections:
                self._close_dispensable()
            if len(self._connections) >= self._settings.connections:
                accepted.close()
                continue
            accepted.setblocking(False)
            with suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            by = time.monotonic() + self._settings.head_seconds
            connection = Connection(accepted, str(address[0]), State.HEAD, by)
            self._connections[connection] = None
            self._watch(connection, _READ)

    def _close_dispensable(self) -> bool:
        """The oldest of the most dispensable; False if there is none."""
        for state in DISPENSABLE:
            for connection in self._connections:
                if connection.state is state:
                    self._close(connection)
                    return True
        return False

    def _safely(self, step: Callable[[Connection], object], connection: Connection) -> None:
        """A defect ends one connection, and not the server."""
        try:
            step(connection)
        except OSError:
            self._close(connection)
        except Exception as error:
            logger.error("a client could not be served: %s", place_of(error))
            self._close(connection)

    def _receive(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close(connection)
        elif connection.state in (State.LINGERING, State.STREAMING):
            connection.ignored += len(data)
            if connection.ignored > self._settings.head_bytes:
                self._close(connection)
        else:
            connection.received += data
            self._go_on(connection)
            if connection.state is State.BODY:
                self._bound_bodies(connection)

    def _go_on(self, connection: Connection) -> None:
        """With what was received: a part of a request, a whole one, or the beginning of a next."""
        try:
            if connection.state is State.IDLE and connection.received:
                by = time.monotonic() + self._settings.head_seconds
                connection.enter(State.HEAD, by)
            if connection.state is State.HEAD:
                self._read_head(connection)
            head = connection.head
            if connection.state is State.BODY and head is not None:
                if len(connection.received) < head.body_bytes:
                    return
                self._hand_over(connection, head)
        except BadRequestError as error:
            self._refuse(connection, error.status, str(error))

    def _read_head(self, connection: Connection) -> None:
        head = connection.take_head(self._settings)
        if head is None:
            return
        connection.head = head
        if head.waits and len(connection.received) < head.body_bytes:
            connection.socket.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.enter(State.BODY, time.monotonic() + self._settings.body_seconds)

    def _bound_bodies(self, latest: Connection) -> None:
        """Where too much is received in all, the oldest that is not complete gives way."""
        bodies = [each for each in self._connections if each.state is State.BODY]
        received = sum(len(each.received) for each in bodies)
        for each in bodies:
            if received > self._settings.all_bodies_bytes and each is not latest:
                received -= len(each.received)
                self._close(each)

    def _hand_over(self, connection: Connection, head: Head) -> None:
        body = bytes(connection.received[: head.body_bytes])
        del connection.received[: head.body_bytes]
        environ = environ_of(head, body, server=self.address, peer=connection.peer)
        connection.enter(State.BUSY)
        self._watch(connection, 0)

        runner = self._runner if head.path.startswith(b"/api/") else self._quick

        def work() -> None:
            made = answer(self._application, environ, head.keeps)
            if made.stream is None and head.method == "HEAD":
                made.content = made.content[: made.content.index(HEAD_END) + len(HEAD_END)]
            self._hand_back(connection, made)

        try:
            runner.run(work)
        except RuntimeError:
            self._refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, "no thread can be started")

    def _take(self, made: Answer | None, connection: Connection) -> None:
        """What a thread has made; None: its stream has ended."""
        if made is None or connection not in self._connections:
            self._close(connection)
            close_body(made and made.stream)
            return
        connection.head = None
        if made.stream is not None:
            self._stream(connection, made.content, made.stream)
            return
        connection.keeps = made.keeps and self._stop_by is None
        self._begin_to_send(connection, made.content)

    def _stream(self, connection: Connection, head: bytes, body: Iterable[bytes]) -> None:
        streams = sum(each.state is State.STREAMING for each in self._connections)
        stream = None
        if streams < self._settings.streams and self._stop_by is None:
            with suppress(OSError, RuntimeError):  # no descriptor, no thread
                stream = Stream(connection.socket, head, body)
                stream.start(lambda: self._hand_back(connection, None))
                connection.stream = stream
                by = time.monotonic() + self._settings.stream_seconds
                connection.enter(State.STREAMING, by)
                self._watch(connection, _READ)  # for its end
                return
        close_body(body)
        if stream is not None:
            stream.close()
        self._refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, "too many streams are open")

    def _hand_back(self, connection: Connection, made: Answer | None) -> None:
        """In a thread."""
        self._answers.append((connection, made))
        self._wake()

    def _refuse(self, connection: Connection, status: HTTPStatus, sentence: str) -> None:
        connection.received.clear()
        connection.head, connection.keeps = None, False
        self._begin_to_send(connection, plain_response(status, sentence))

    def _begin_to_send(self, connection: Connection, content: bytes) -> None:
        connection.sending = memoryview(content)
        connection.enter(State.SENDING, time.monotonic() + self._settings.send_seconds)
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        with suppress(BlockingIOError):
            while connection.sending:
                connection.sending = connection.sending[
                    connection.socket.send(connection.sending) :
                ]
        if connection.sending:
            self._watch(connection, _WRITE)
            return
        now = time.monotonic()
        if not connection.keeps:
            connection.socket.shutdown(socket.SHUT_WR)
            connection.enter(State.LINGERING, now + self._settings.linger_seconds)
            self._watch(connection, _READ)
            return
        connection.enter(State.IDLE, now + self._settings.idle_seconds)
        self._watch(connection, _READ)
        self._go_on(connection)

    def _expire(self, connection: Connection) -> None:
        if connection.state in (State.HEAD, State.BODY) and connection.received:
            self._refuse(connection, HTTPStatus.REQUEST_TIMEOUT, "the request took too long")
        else:
            self._close(connection)

    def _watch(self, connection: Connection, events: int) -> None:
        if events == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.socket, events, connection)
        elif not events:
            self._selector.unregister(connection.socket)
        else:
            self._selector.modify(connection.socket, events, connection)
        connection.events = events

    def _close(self, connection: Connection) -> None:
        if self._connections.pop(connection, 0) == 0:
            return
        self._watch(connection, 0)
        if connection.stream is not None:
            connection.stream.end()
        connection.socket.close()
