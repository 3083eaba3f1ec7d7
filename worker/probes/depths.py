"""The depths of queues and the age of the oldest snapshot. No client waits for the database."""

import logging
from collections.abc import Callable

import psycopg

from cmdbus.clock import time
from cmdbus.errors import CmdbusError
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.probes.responses import Depths
from cmdbus.worker.probes.session_thread import SessionThread

logger = logging.getLogger(__name__)

#: Seconds from one count to the next.
_FRESH_SECONDS = 5.0
#: Seconds that a client waits for a new count.
_TIMEOUT_SECONDS = 0.02
#: Seconds after which an old count is no answer any longer.
_STALE_SECONDS = 60.0
#: Seconds after which a count is aborted.
_COUNT_SECONDS = 10.0


class DepthGauge(SessionThread):
    def __init__(
        self, connect: Callable[[], Connection], claims: Claims, within: float = _COUNT_SECONDS
    ) -> None:
        super().__init__("steward-depths", connect)
        self._within = within
        self._claims = claims
        #: Written by the thread: the latest count with its time, and the snapshot's age.
        self._counted_at = float("-inf")
        self._latest: tuple[Depths | None, float | None] = None, None

    def read(self) -> tuple[Depths | None, float | None]:
        """The depths, and the seconds since the oldest snapshot was taken; None while they are
        unknown, or too old."""
        if self._age() > _FRESH_SECONDS:
            self.ask(_TIMEOUT_SECONDS)
        return self._latest if self._age() < _STALE_SECONDS else (None, None)

    def _age(self) -> float:
        return time.monotonic() - self._counted_at

    def answer(self) -> None:
        if self._age() <= _FRESH_SECONDS:
            return
        try:
            with self.session(self._within) as connection:
                rows = self._claims.rows(connection, "read_depths")
                oldest = float(self._claims.value(connection, "read_oldest_snapshot"))
            depths = {(domain, state): count for domain, state, count in rows}
            self._latest, self._counted_at = (depths, oldest), time.monotonic()
        except (psycopg.Error, CmdbusError, OSError) as error:
            logger.debug("the depths of queues are not known: %s", error)
            self.close()
