"""Waits for replies as a node waits for work: while it is armed for their domain, senders notify.

It is armed only while its reader has had nothing to do for a while, and listens only then: a
session that no thread reads would fill up with notifications, and with it the server's queue.
"""

import secrets
from collections.abc import Callable
from threading import Event, RLock

import psycopg

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.database.adapters import own_cursor
from cmdbus.database.executor import Executor
from cmdbus.database.pool import Connection
from cmdbus.database.statements import render
from cmdbus.errors import CmdbusError
from cmdbus.producer.connections import Connections
from cmdbus.producer.listening_session import NUMBER_BITS, ListeningSession, close_with_owner

#: Seconds between two attempts to claim, doubling: the longest one, and as long as no notification
#: was heard. A sender that has read the flag before it was set sends no notification.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, _MAX_UNHEARD_SECONDS = 0.01, 2.0, 0.5
#: The pause from which on a reader is armed, and for how many seconds.
_ARMS_FROM_SECONDS, _ARMED_SECONDS = 0.1, 20.0
#: Seconds until the next attempt to listen, after one that failed.
_RETRY_SECONDS = 1.0


class ReplyWaiter:
    """Used by the thread that reads; any may close it."""

    def __init__(
        self,
        open_session: Callable[[], Connection],
        connections: Connections,
        executor: Executor,
        node: int,
        domain: str,
    ) -> None:
        self._open_session, self._connections, self._executor = open_session, connections, executor
        self._node, self._domain = node, domain
        self._number = secrets.randbits(NUMBER_BITS)
        self._backoff = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._closing = Event()
        #: Held while the session is used. Reentrant: a signal handler may close the reader.
        self._lock = RLock()
        #: The session, if there is one.
        self._sessions: list[ListeningSession] = []
        self._hears = False
        self._armed_until = self._retry_at = 0.0
        close_with_owner(self, self._sessions)

    def wait(self, most: float) -> None:
        """Returns when there may be a reply, or after a pause of at most these seconds."""
        pause = self._backoff.pause()
        with self._lock:
            try:
                if self._arms(pause):
                    return
                if self._sessions:
                    self._hear(min(most, pause if self._hears else _MAX_UNHEARD_SECONDS, pause))
                    return
            except (psycopg.Error, CmdbusError, OSError):
                self._lose_session()
        self._closing.wait(max(0.0, min(most, pause, _MAX_UNHEARD_SECONDS)))

    def end(self) -> None:
        """After the wait is over: senders need not notify any longer."""
        self._backoff.reset()
        with self._lock:
            if not self._armed_until:
                return
            self._armed_until = 0.0
            try:
                self._connections.rows(None, "leave", "worker", node=self._node)
                for session in self._sessions:
                    self._executor.execute(session.connection, "unlisten")
            except (psycopg.Error, CmdbusError):  # The flag is cleared when its time is over.
                self._lose_session()

    def interrupt(self) -> None:
        """The thread that waits returns."""
        self._closing.set()
        for session in list(self._sessions):
            session.abort()

    def close(self) -> None:
        self.interrupt()
        with self._lock:
            self._lose_session()
            self.end()

    def _arms(self, pause: float) -> bool:
        """Whether it is armed now and was not before: replies may have come without notice."""
        now = time.monotonic()
        listens = bool(self._sessions) and now < self._armed_until
        if (
            pause < _ARMS_FROM_SECONDS
            or now < self._retry_at
            or (listens and now < self._armed_until - _ARMED_SECONDS / 2)
            or self._closing.is_set()
        ):
            return False
        self._retry_at = now + _RETRY_SECONDS
        if not self._sessions:
            self._sessions.append(ListeningSession(self._open_session()))
        connection = self._sessions[0].connection
        if not listens:
            text = render("listen_for_replies", self._executor.schema, caller=f"{self._number:x}")
            own_cursor(connection).execute(text.encode())
        values = {"node": self._node, "domains": [self._domain], "seconds": _ARMED_SECONDS}
        self._armed_until = now + _ARMED_SECONDS
        self._executor.execute(connection, "arm_reader", values)
        if not self._hears:
            channel = f"{self._executor.schema}_c{self._number:x}"
            self._connections.rows(None, "greet_caller", "worker", channel=channel)
        return not listens

    def _hear(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        [session] = self._sessions
        while (left := until - time.monotonic()) > 0 and not self._closing.is_set():
            session.wait(left)
            payloads = session.received()
            self._hears |= bool(payloads)
            if self._domain in payloads:
                return

    def _lose_session(self) -> None:
        self._hears = False
        while self._sessions:
            self._sessions.pop().close()
