"""Receives the notifications of a schema, on a session of its own that it keeps alive."""

import logging
import select
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

import psycopg
from psycopg.pq.abc import PGconn

from cmdbus.backoff import Backoff
from cmdbus.clock import time
from cmdbus.database.statements import statement
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.printable import joined
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.sessions import abort_io, abort_io_at
from cmdbus.worker.waiting.subscriptions import Subscriptions

logger = logging.getLogger(__name__)

#: Seconds between two attempts to open a session.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 1.0
#: Seconds between two pings of its own session, which also bound its LISTEN, and for an answer.
_PING_SECONDS, _PONG_SECONDS = 10.0, 5.0


class Listener:
    """A thread with a LISTEN session of its own, which calls `began`, `heard`, `subscribed` and
    `ended`."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        statements: ClaimStatements,
        *,
        ping: float = _PING_SECONDS,
        pong: float = _PONG_SECONDS,
    ) -> None:
        self._connect = connect
        self._statements = statements
        self._ping_statement = statement("ping", statements.schema)
        self._ping = ping
        self._pong = pong
        self._stopping = threading.Event()
        self._subscriptions = Subscriptions(statements.schema)
        #: A byte, or its end, interrupts the wait for notifications.
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self.thread = threading.Thread(target=self._run, name="cmdbus-listener", daemon=True)
        #: Counts sessions; written by the listener, read by the steward.
        self.sessions = 0

    def began(self) -> None:
        """A new session listens; earlier notifications may have reached none."""

    def heard(self, notifications: Mapping[str, Collection[str]]) -> None:
        """Notifications came: their payloads, by channel."""

    def subscribed(self, channels: Collection[str]) -> None:
        """The session hears these channels from now on; earlier notifications reached none."""

    def ended(self) -> None:
        """The session is lost, or closed."""

    def start(self) -> None:
        self.thread.start()

    def subscribe(self, channels: Collection[str]) -> None:
        """Hears these channels, in this session and in later ones, and no other ones beside those
        of the schema."""
        self._subscriptions.wanted = channels
        with suppress(OSError):  # It has stopped, or has so many bytes that it does not wait.
            self._waker.send(b"\0")

    def request_stop(self) -> None:
        self._stopping.set()
        self._waker.close()

    def stop(self) -> None:
        self.request_stop()
        if self.thread.is_alive():
            self.thread.join(_PING_SECONDS)
        self._woken.close()

    def _run(self) -> None:
        pause, backoff = 0.0, Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while not self._stopping.wait(pause):
            sessions = self.sessions
            try:
                with self._connect() as connection:
                    self._listen(connection)
            except (psycopg.Error, DatabaseUnavailableError, OSError) as error:
                if self.sessions > sessions:
                    # Without a pause: notifications sent in the gap are lost.
                    pause = 0.0
                    backoff.reset()
                    logger.warning(
                        "the listening session is lost: %s; listening again as soon as it can",
                        joined(str(error)),
                    )
                else:
                    pause = backoff.pause()

    def _listen(self, connection: Connection) -> None:
        # Nothing else would end the wait for a server that has gone silent.
        with abort_io_at(time.monotonic() + self._ping, partial(abort_io, connection)):
            self._statements.execute(connection, "listen")
        self.sessions += 1
        self._subscriptions.forget()
        self.began()
        try:
            self._hear(connection.pgconn, connection.fileno())
        finally:
            self.ended()
            connection.close()

    def _hear(self, session: PGconn, descriptor: int) -> None:
        """Bypasses the driver, which would wait for a silent server without a bound."""
        # Not select(): that knows no descriptor above 1023.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        asked = False
        while True:
            if not asked and (statement_ := self._subscriptions.next_statement()):
                session.send_query(statement_)
                asked = True
            ready = dict(poll.poll((self._pong if asked else self._ping) * 1000))
            if self._stopping.is_set():
                return
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            elif descriptor not in ready:
                if asked:
                    raise psycopg.OperationalError("the server has gone silent")
                session.send_query(self._ping_statement)
                asked = True
            if descriptor in ready:
                asked = self._read(session, asked)

    def _read(self, session: PGconn, asked: bool) -> bool:
        """Whether what the session was asked is still not answered."""
        session.consume_input()
        if asked:
            while asked and not session.is_busy():
                asked = session.get_result() is not None
            if not asked and (channels := self._subscriptions.executed()):
                self.subscribed(channels)
        heard = defaultdict[str, set[str]](set)
        while notification := session.notifies():
            # Where the server's encoding is SQL_ASCII, any role can notify of any bytes.
            channel, payload = notification.relname, notification.extra
            heard[channel.decode(errors="replace")].add(payload.decode(errors="replace"))
        if heard:
            self.heard(heard)
        return asked
