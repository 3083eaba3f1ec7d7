"""The depths of queues and the age of the oldest snapshot, read from the database while clients
of probes ask for them. No client waits for the database."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psycopg

from cmdbus.clock import time
from cmdbus.errors import CmdbusError
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.sessions import abort_io, abort_io_at
from cmdbus.worker.probes.responses import Depths

logger = logging.getLogger(__name__)

#: Seconds from one count to the next.
_FRESH_SECONDS = 5.0
#: Seconds that a client waits for a new count.
_TIMEOUT_SECONDS = 0.02
#: Seconds after which an old count is no answer any longer.
_STALE_SECONDS = 60.0
#: Seconds after which a count is aborted, as its server may be silent.
_COUNT_SECONDS = 10.0
#: Seconds without a question until the session is closed.
_IDLE_SECONDS = 60.0


class DepthGauge:
    """A thread with a session of its own, from the first question on."""

    def __init__(
        self, connect: Callable[[], Connection], claims: Claims, within: float = _COUNT_SECONDS
    ) -> None:
        self._connect = connect
        self._within = within
        self._claims = claims
        self._asked = threading.Event()
        self._counted = threading.Event()
        self._stopping = False
        #: Written by the thread.
        self._latest: tuple[float, Depths, float] | None = None
        self.thread = threading.Thread(target=self._run, name="steward-depths", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self, seconds: float) -> None:
        self._stopping = True
        self._asked.set()
        self.thread.join(seconds)

    def read(self) -> Depths | None:
        """None if they are unknown, or too old."""
        if self._age() > _FRESH_SECONDS:
            self._counted.clear()
            self._asked.set()
            self._counted.wait(_TIMEOUT_SECONDS)
        latest = self._latest
        return latest[1] if latest is not None and self._age() < _STALE_SECONDS else None

    @property
    def oldest_snapshot(self) -> float | None:
        """Its age in seconds when the depths were counted."""
        latest = self._latest
        return latest[2] if latest is not None and self._age() < _STALE_SECONDS else None

    def _age(self) -> float:
        latest = self._latest
        return time.monotonic() - latest[0] if latest is not None else float("inf")

    def _run(self) -> None:
        connection: Connection | None = None
        while not self._stopping:
            asked = self._asked.wait(None if connection is None else _IDLE_SECONDS)
            self._asked.clear()
            if asked and self._age() > _FRESH_SECONDS and not self._stopping:
                connection = self._count(connection)
            elif not asked:
                _close(connection)
                connection = None
        _close(connection)

    def _count(self, connection: Connection | None) -> Connection | None:
        """Returns the session for the next count."""
        try:
            connection = connection or self._connect()
            with abort_io_at(time.monotonic() + self._within, partial(abort_io, connection)):
                rows = self._claims.rows(connection, "read_depths")
                oldest = float(self._claims.value(connection, "read_oldest_snapshot"))
            depths = {(domain, state): count for domain, state, count in rows}
            self._latest = time.monotonic(), depths, oldest
            self._counted.set()
        except (psycopg.Error, CmdbusError, OSError) as error:
            logger.debug("the depths of queues are not known: %s", error)
            _close(connection)
            return None
        return connection


def _close(connection: Connection | None) -> None:
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()
