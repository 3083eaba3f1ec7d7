"""What a leader does after a round trip has failed: it leads again once it has a session, unless
another thread has one. Whatever keeps this thread from a session, such as the limit of its role,
the other thread can lead immediately."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psycopg

from cmdbus.board.records import Phase
from cmdbus.clock import time
from cmdbus.worker.claims.connections import PoolExhausted
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.pipeline.local_queue import LEADERSHIP, LocalQueue
from cmdbus.worker.pipeline.telemetry import Telemetry
from cmdbus.worker.pipeline.worker_thread import WorkerThread
from cmdbus.worker.waiting.node_waiter import NodeWaiter

logger = logging.getLogger(__name__)

#: Seconds until the next round trip after one that failed.
_AFTER_FAILURE = 1.0


class Recovery:
    def __init__(
        self,
        waiter: NodeWaiter,
        telemetry: Telemetry,
        queue: LocalQueue,
        stopping: threading.Event,
        other_has_session: Callable[[WorkerThread], bool],
        report: Callable[[Callable[[], object]], object],
    ) -> None:
        """`report` gets messages for the log."""
        self._waiter, self._telemetry = waiter, telemetry
        self._queue, self._stopping = queue, stopping
        self._other_has_session, self._report = other_has_session, report
        #: The latest warning, which is not repeated.
        self._last_warning = ""

    def recover(self, thread: WorkerThread, error: Exception) -> bool:
        """Replaces the session, however long that takes, unless the worker stops meanwhile. False
        if the leadership was passed on."""
        self._waiter.claim_failed()
        read_only = isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        lost = isinstance(error, psycopg.Error) and (read_only or thread.connection.lost())
        thread.connection.drop()
        if not lost:
            # A handler may have changed the session, the connection object or the process.
            self.warn_once(error, f"trying again every {_AFTER_FAILURE:g} s")
            self._stopping.wait(_AFTER_FAILURE)
            return True
        then = "the connection is lost: reconnecting until the database answers"
        self.warn_once(error, then, logging.WARNING)
        if read_only:
            # Where the DSN takes any server, the next session may lead to the same one.
            self._stopping.wait(_AFTER_FAILURE)
        elif self.pass_on(thread):
            return False
        thread.slot.enter(Phase.AWAY, time.monotonic_ns(), 0)
        self._note_outage(error)
        while not self._stopping.is_set():
            # Raises if the worker stops or the pool is exhausted; the loop's condition decides.
            with suppress(psycopg.OperationalError):
                thread.connection.reconnect(self._stopping)
                self._telemetry.database_back(self._report)
                return True
            if self.pass_on(thread):
                return False
        return True

    def pass_on(self, thread: WorkerThread) -> bool:
        """Leaves the leadership to the threads that have sessions, and opens one for this thread,
        which may then draw the leadership as well. False if no other thread has a session."""
        if self._stopping.is_set() or not self._other_has_session(thread):
            return False
        thread.slot.enter(Phase.AWAY, time.monotonic_ns(), 0)
        self._queue.put(LEADERSHIP)
        try:
            thread.connection.reconnect()
        except Exception as error:  # It is met again when no other thread can lead.
            self._note_outage(error)
            self._stopping.wait(_AFTER_FAILURE)
        thread.slot.end(time.monotonic_ns())
        return True

    def _note_outage(self, error: Exception) -> None:
        """Until a round trip succeeds."""
        if isinstance(error, psycopg.Error) and not isinstance(error, PoolExhausted):
            self._telemetry.health.database_away(time.monotonic())

    def succeeded(self) -> None:
        self._last_warning = ""

    def warn_once(self, error: Exception, then: str, level: int = logging.ERROR) -> None:
        """Once for a row of equal errors: the server may refuse the same for an hour."""
        why = reason(error)
        if why != self._last_warning:
            message = "a round trip failed (%s); %s"
            self._report(partial(logger.log, level, message, why, then))
        self._last_warning = why
