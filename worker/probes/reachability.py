"""Whether the database answers, for readiness probes."""

from collections.abc import Callable

import psycopg

from cmdbus.clock import time
from cmdbus.database.connect_errors import TOO_MANY_CONNECTIONS, classify
from cmdbus.database.statements import statement
from cmdbus.errors import CmdbusError
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.probes.session_thread import IDLE_SECONDS, SessionThread

#: Seconds between two questions.
_PERIOD_SECONDS = 0.4
#: Seconds after which an answer that has not come counts as none.
_ANSWER_SECONDS = 1.1
#: Seconds that the first probe waits for the first answer.
_FIRST_ANSWER_SECONDS = 0.3


class Reachability(SessionThread):
    def __init__(self, connect: Callable[[], Connection], schema: str) -> None:
        super().__init__("steward-reachability", connect)
        self._ping = statement("ping", schema)
        self._probed_at = float("-inf")
        # Written by the thread.
        self._away = False
        #: Monotonic time from which the pending question is overdue.
        self._overdue_at = float("inf")

    @property
    def is_away(self) -> bool:
        """True within 2 s after the database has stopped to answer, while probes come."""
        idle = self._is_idle()
        self._probed_at = time.monotonic()
        if idle:
            self.ask(_FIRST_ANSWER_SECONDS)
        return self._away or time.monotonic() > self._overdue_at

    def _is_idle(self) -> bool:
        return time.monotonic() - self._probed_at > IDLE_SECONDS

    def answer(self) -> None:
        while not (self._is_idle() or self._stopping.is_set()):
            self._overdue_at = time.monotonic() + _ANSWER_SECONDS
            self._away = not self._answers()
            self._overdue_at = float("inf")
            self._answered.set()
            self._stopping.wait(_PERIOD_SECONDS)

    def _answers(self) -> bool:
        """Tries a new session if the old one has ended, which says nothing about the database."""
        for is_last in (False, True):
            try:
                with self.session(_ANSWER_SECONDS) as connection:
                    connection.execute(self._ping)
                return True
            except BlockingIOError:  # No thread for it, which says nothing about the database.
                return not self._away
            except (psycopg.Error, CmdbusError, OSError) as error:
                self.close()
                if is_last or time.monotonic() > self._overdue_at:
                    return TOO_MANY_CONNECTIONS in classify(str(error)).sqlstates
        return False
