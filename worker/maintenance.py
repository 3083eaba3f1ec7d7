"""What the steward does for the schema now and then: partitions of history for the days to
come, and the end of what is older than anybody wants to keep it.

A thread with a session of its own while it works, because it may take minutes.
"""

import logging
import random
import threading
from collections.abc import Callable

import psycopg

from cmdbus import schema as schemas
from cmdbus.errors import CmdbusError, SchemaError
from cmdbus.worker.claim import Connection
from cmdbus.worker.claims import Claims
from cmdbus.worker.rejections import reason
from cmdbus.worker.retention import Retention

logger = logging.getLogger(__name__)

#: Between two times, of which the first is soon; nodes spread by a fifth.
_EVERY_SECONDS, _FIRST_SECONDS = 3600.0, 10.0


class Maintenance:
    def __init__(self, claims: Claims, connect: Callable[[], Connection]) -> None:
        self._claims = claims
        self._connect = connect
        self._stopping = threading.Event()
        self._retention = Retention(claims, self._stopping)
        self._thread = threading.Thread(target=self._run, name="steward-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: what is not finished is done again."""
        self._stopping.set()

    def _run(self) -> None:
        pause = _FIRST_SECONDS
        while not self._stopping.wait(pause * random.uniform(0.9, 1.1)):
            pause = _EVERY_SECONDS
            try:
                with self._connect() as connection:
                    self.maintain(connection)
            except (psycopg.Error, CmdbusError) as error:
                _complain("maintain history", error)

    def maintain(self, connection: Connection) -> None:
        try:
            schemas.make_partitions(connection, self._claims.schema)
        except (psycopg.Error, SchemaError) as error:
            if connection.closed:
                raise
            _complain("make partitions of history", error)
        removed = self._retention.run(connection)
        if removed:
            logger.info("removed %s pieces of history that no domain keeps any longer", removed)


def _complain(what: str, error: Exception) -> None:
    logger.warning("cannot %s: %s; trying again later", what, reason(error))
