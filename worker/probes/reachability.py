"""Whether the database answers, for readiness probes: tested while clients probe, in a session of
its own, with a deadline for every answer, as a server may be silent."""

import select
import threading
from collections.abc import Callable

import psycopg

from cmdbus.clock import time
from cmdbus.database.connect_errors import TOO_MANY_CONNECTIONS, classify
from cmdbus.database.statements import statement
from cmdbus.errors import CmdbusError
from cmdbus.worker.claims.claim import Connection

#: Seconds between two questions.
_PERIOD_SECONDS = 0.4
#: Seconds after which an answer that has not come counts as none.
_ANSWER_SECONDS = 1.1
#: Seconds that the first probe waits for the first answer.
_FIRST_ANSWER_SECONDS = 0.3
#: Seconds without a probe after which the session is closed.
_IDLE_SECONDS = 60.0


class Reachability:
    """A thread with a session of its own, from the first probe on."""

    def __init__(self, connect: Callable[[], Connection], schema: str) -> None:
        self._connect = connect
        self._ping = statement("ping", schema)
        self._probed = threading.Event()
        self._answered = threading.Event()
        self._stopping = threading.Event()
        self._probed_at = float("-inf")
        # Written by the thread.
        self._away = False
        #: Monotonic time of the pending question; None while there is none.
        self._asked_at: float | None = None
        self._connection: Connection | None = None
        self.thread = threading.Thread(target=self._run, name="steward-reachability", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self, seconds: float) -> None:
        self._stopping.set()
        self._probed.set()
        self.thread.join(seconds)

    @property
    def is_away(self) -> bool:
        """True within 2 s after the database has stopped to answer, while probes come."""
        idle = time.monotonic() - self._probed_at > _IDLE_SECONDS
        self._probed_at = time.monotonic()
        if idle:
            self._answered.clear()
            self._probed.set()
            self._answered.wait(_FIRST_ANSWER_SECONDS)
        asked_at = self._asked_at
        overdue = asked_at is not None and time.monotonic() > asked_at + _ANSWER_SECONDS
        return self._away or overdue

    def _run(self) -> None:
        while not self._stopping.is_set():
            if time.monotonic() - self._probed_at > _IDLE_SECONDS:
                self._close()
                self._probed.wait()
                self._probed.clear()
                continue
            self._asked_at = time.monotonic()
            self._away = not self._answers()
            self._asked_at = None
            self._answered.set()
            self._stopping.wait(_PERIOD_SECONDS)
        self._close()

    def _answers(self) -> bool:
        """Tries a new session if the old one has ended, which says nothing about the database."""
        for fresh in (False, True):
            if fresh:
                self._close()
            try:
                if self._connection is None:
                    self._connection = self._connect()
                _ask(self._connection, self._ping)
                return True
            except _SilentError:
                self._close()
                return False
            except (psycopg.Error, CmdbusError, OSError) as error:
                if fresh:
                    return TOO_MANY_CONNECTIONS in classify(str(error)).sqlstates
        return False

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _SilentError(Exception):
    """The server has not answered in time."""


def _ask(connection: Connection, query: bytes) -> None:
    """Below the driver, which would wait for a silent server without a bound."""
    session = connection.pgconn
    # Not select(): that knows no descriptor above 1023.
    poll = select.poll()
    poll.register(session.socket, select.POLLIN)
    deadline = time.monotonic() + _ANSWER_SECONDS
    session.send_query(query)
    while True:
        while session.is_busy():
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise _SilentError
            session.consume_input()
        if session.get_result() is None:
            break
    if session.status != psycopg.pq.ConnStatus.OK:
        raise psycopg.OperationalError("the session has ended")
