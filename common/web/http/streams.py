"""A response without an end, such as a stream of events: written by a thread of its own."""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import GeneratorType

logger = logging.getLogger(__name__)

#: Seconds for a client to take one part.
_PART_SECONDS = 10.0


class Stream:
    def __init__(self, connection: socket.socket, head: bytes, body: Iterable[bytes]) -> None:
        """On a duplicate of the socket: its timeout is its own."""
        self._socket = connection.dup()
        self._socket.settimeout(_PART_SECONDS)
        self._head, self._body = head, body

    def start(self, ended: Callable[[], None]) -> None:
        """Calls `ended` when all is written, or the client does not read; raises RuntimeError
        where no thread can be started."""
        threading.Thread(target=self._run, args=(ended,), name="web-stream", daemon=True).start()

    def _run(self, ended: Callable[[], None]) -> None:
        try:
            self._socket.sendall(self._head)
            for part in self._body:
                self._socket.sendall(part)
        except (OSError, ValueError):
            pass  # The client has gone, or reads nothing.
        except Exception as error:
            logger.error("a stream of the page has failed: %s", type(error).__name__)
        finally:
            self.close()
            ended()

    def end(self) -> None:
        """From another thread: the next part is not written, and a body that waits ends."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not isinstance(self._body, GeneratorType):  # which only its own thread can close
            close_body(self._body)

    def close(self) -> None:
        close_body(self._body)
        self._socket.close()


def close_body(body: object) -> None:
    """As PEP 3333 wants it, also of one that is not iterated."""
    if close := getattr(body, "close", None):
        close()
