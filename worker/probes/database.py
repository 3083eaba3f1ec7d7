"""The questions of probes to the database: each kind has a thread with a session of its own, as
long as clients ask. No client waits for the database."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import itemgetter
from typing import Any

import psycopg

from cmdbus.clock import time
from cmdbus.database.adapters import Row
from cmdbus.database.connect_errors import TOO_MANY_CONNECTIONS, classify
from cmdbus.database.executor import Executor
from cmdbus.database.statements import statement
from cmdbus.errors import CmdbusError
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.sessions import abort_io, abort_io_at
from cmdbus.worker.probes.responses import Gauges

logger = logging.getLogger(__name__)

#: Seconds without a question after which the session is closed.
_IDLE_SECONDS = 60.0
#: Seconds from one count of depths to the next, and until an old one is no answer any longer.
_FRESH_SECONDS, _STALE_SECONDS = 5.0, 60.0
#: Seconds that a client waits for a new count, and after which a count is aborted.
_TIMEOUT_SECONDS, _COUNT_SECONDS = 0.02, 10.0
#: Seconds between two pings, and after which a missing answer counts as none.
_PING_SECONDS, _PONG_SECONDS = 0.4, 1.1
#: Seconds that the first probe waits for the first answer.
_FIRST_ANSWER_SECONDS = 0.3


class SessionThread:
    def __init__(self, name: str, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._stopping = threading.Event()
        self._connection: Connection | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self, seconds: float) -> None:
        self._stopping.set()
        self._asked.set()
        self.thread.join(seconds)

    def ask(self, seconds: float) -> None:
        """Waits at most this long for an answer."""
        self._answered.clear()
        self._asked.set()
        self._answered.wait(seconds)

    def answer(self) -> None:
        """Called by the thread after a question."""
        raise NotImplementedError

    @contextmanager
    def session(self, within: float) -> Iterator[Connection]:
        """Opened if there is none; aborted after this many seconds, as its server may be silent."""
        self._connection = connection = self._connection or self._connect()
        with abort_io_at(time.monotonic() + within, partial(abort_io, connection)):
            yield connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._asked.wait(None if self._connection is None else _IDLE_SECONDS):
                self.close()
            elif not self._stopping.is_set():
                self._asked.clear()
                self.answer()
                self._answered.set()
        self.close()


class DepthGauge(SessionThread):
    """The depths of queues with the ages of their oldest commands, the age of the oldest snapshot,
    the numbers of batches, of processes, of nodes, and of commands that no living node claims, and
    the states of breakers and bridges."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        statements: Executor,
        within: float = _COUNT_SECONDS,
        *,
        name: str = "steward-depths",
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        """`within`: seconds after which a count is aborted; `timeout`: those for which a client
        waits for a new one."""
        super().__init__(name, connect)
        self._within, self._timeout = within, timeout
        self._statements = statements
        #: Written by the thread: the latest counts with their time.
        self._counted_at = float("-inf")
        self._latest = Gauges()
        self._up: bool | None = None

    def read(self) -> Gauges:
        """Without those that are unknown or too old."""
        if self._age() > _FRESH_SECONDS:
            self.ask(self._timeout)
        latest = self._latest if self._age() < _STALE_SECONDS else Gauges()
        return latest._replace(up=self._up)

    def _age(self) -> float:
        return time.monotonic() - self._counted_at

    def answer(self) -> None:
        if self._age() <= _FRESH_SECONDS:
            return
        try:
            with self.session(self._within) as connection:
                self._latest = self._count(connection)
            self._counted_at, self._up = time.monotonic(), True
            self.counted()
        except (psycopg.Error, CmdbusError, OSError) as error:
            self._up = answered(error)
            self.failed(error)
            self.close()

    def counted(self) -> None:
        """Called by the thread after a count."""

    def failed(self, error: Exception) -> None:
        """Called by the thread if it could not count."""
        logger.debug("the depths of queues are not known: %s", error)

    def _count(self, connection: Connection) -> Gauges:
        rows = self._statements.rows(connection, "read_depths")
        return Gauges(
            depths={(domain, state): count for domain, state, count, _ in rows},
            oldest=_oldest(rows),
            oldest_snapshot=float(self._statements.value(connection, "read_oldest_snapshot")),
            batches=self._counts(connection, "count_batches", itemgetter(0)),
            processes=self._counts(connection, "count_processes", itemgetter(0, 1)),
            unreachable=self._counts(connection, "count_unreachable", itemgetter(0, 1, 2)),
            breakers=self._counts(connection, "count_breakers", itemgetter(0)),
            bridges=self._counts(connection, "count_bridges", itemgetter(0, 1, 2)),
            nodes=self._counts(connection, "count_nodes", itemgetter(0)),
        )

    def _counts(
        self, connection: Connection, name: str, key_of: Callable[[Row], Any]
    ) -> dict[Any, int] | None:
        """The last value of each row, by the key. None if the server cannot count them in time, or
        the role lacks a right since an upgrade: the depths are known all the same."""
        try:
            rows = self._statements.rows(connection, name)
        except (psycopg.errors.QueryCanceled, psycopg.errors.InsufficientPrivilege) as error:
            logger.debug("%s: %s", name, error)
            return None
        return {key_of(row): row[-1] for row in rows}


def _oldest(rows: list[Row]) -> dict[str, float]:
    """The greatest age of each domain."""
    oldest: dict[str, float] = {}
    for domain, _, _, age in rows:
        if age is not None:
            oldest[domain] = max(age, oldest.get(domain, 0.0))
    return oldest


def answered(error: Exception) -> bool:
    """Whether a server that is up has refused something: a right, a missing table."""
    return isinstance(error, psycopg.ProgrammingError | psycopg.errors.QueryCanceled)


class Reachability(SessionThread):
    """Whether the database answers."""

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
        self._asked.set()  # The thread may have found in between that no probes come.
        if idle:
            self.ask(_FIRST_ANSWER_SECONDS)
        return self._away or time.monotonic() > self._overdue_at

    def _is_idle(self) -> bool:
        return time.monotonic() - self._probed_at > _IDLE_SECONDS

    def answer(self) -> None:
        while not (self._is_idle() or self._stopping.is_set()):
            self._overdue_at = time.monotonic() + _PONG_SECONDS
            self._away = not self._answers()
            self._overdue_at = float("inf")
            self._answered.set()
            self._stopping.wait(_PING_SECONDS)
        self.close()

    def _answers(self) -> bool:
        """Tries a new session if the old one has ended, which says nothing about the database."""
        for is_last in (False, True):
            try:
                with self.session(_PONG_SECONDS) as connection:
                    connection.execute(self._ping)
                return True
            except BlockingIOError:  # No thread for it, which says nothing about the database.
                return not self._away
            except (psycopg.Error, CmdbusError, OSError) as error:
                self.close()
                if is_last or time.monotonic() > self._overdue_at:
                    return TOO_MANY_CONNECTIONS in classify(str(error)).sqlstates
        return False
