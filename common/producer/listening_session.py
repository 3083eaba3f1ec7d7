"""A session that receives notifications."""

import os
import select
import socket
import weakref
from contextlib import suppress

import psycopg

from cmdbus.database.pool import Connection

#: Bits of the number of a channel: a name with a long schema has space for 13 hexadecimal digits.
NUMBER_BITS = 52


class ListeningSession:
    """Read by one thread at a time; the methods raise psycopg.Error or OSError if it is lost.

    Bypasses the driver, which would wait for a silent server without a bound.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # Not select(): that knows no descriptor above 1023.
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def received(self) -> list[str]:
        """The payloads that have arrived since the last call."""
        session, payloads = self.connection.pgconn, []
        session.consume_input()
        while notification := session.notifies():
            payloads.append(notification.extra.decode())
        return payloads

    def wait(self, seconds: float) -> None:
        """Until something arrives."""
        self._poll.poll(max(seconds, 0.0) * 1000)

    def abort(self) -> None:
        """Frees the thread that waits, which then finds the session lost. It must not be closed
        meanwhile: its descriptor would be another's."""
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.connection.fileno())) as socket_,
        ):
            socket_.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.connection.close()


def close_with_owner(owner: object, sessions: list[ListeningSession]) -> None:
    """Closes these sessions at the end of their owner, or of the interpreter, which would warn of
    open ones."""
    weakref.finalize(owner, _close_own, os.getpid(), sessions)


def _close_own(pid: int, sessions: list[ListeningSession]) -> None:
    """In a forked child they are the parent's."""
    if os.getpid() == pid:
        for session in sessions:
            session.close()
