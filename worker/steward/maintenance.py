"""The steward's regular work for the schema: makes partitions of history for the days to come,
removes history that no domain keeps any longer, and reports commands that no worker handles.

A thread with a session of its own while it works, because it may take minutes.
"""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial

import psycopg

from cmdbus.clock import time
from cmdbus.database import schema as schemas
from cmdbus.errors import CmdbusError, SchemaError
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.claims.sessions import abort_io, abort_io_at
from cmdbus.worker.steward.retention import MIN_SWEEP_SECONDS, Retention
from cmdbus.worker.steward.unhandled import Unhandled

logger = logging.getLogger(__name__)

#: Seconds between two checks of the partitions and of whole days; nodes spread by a fifth.
_EVERY_SECONDS = 3600.0
#: Seconds after which the session of one maintenance is cut: its server has gone silent. The
#: next one does the rest.
_MAX_SECONDS = 1800.0
#: Seconds from the steward's start to the first maintenance.
_FIRST_SECONDS = 10.0


class Maintenance:
    def __init__(
        self,
        statements: ClaimStatements,
        connect: Callable[[], Connection],
        domains: Sequence[str] = (),
    ) -> None:
        """`domains` are those of the app that this fleet is for."""
        self._statements = statements
        self._connect = connect
        self._stopping = threading.Event()
        self._retention = Retention(statements, self._stopping)
        self._unhandled = Unhandled(statements, domains)
        #: Monotonic time of the next check of partitions and of whole days.
        self._days_at = float("-inf")
        self.thread = threading.Thread(target=self._run, name="steward-maintenance", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Does not wait: the next steward repeats unfinished work."""
        self._stopping.set()

    def _run(self) -> None:
        pause = _FIRST_SECONDS
        # Never earlier than asked for: the sweep would not be due yet.
        while not self._stopping.wait(pause * random.uniform(1.0, 1.1)):
            pause = MIN_SWEEP_SECONDS
            try:
                with (
                    self._connect() as connection,
                    abort_io_at(time.monotonic() + _MAX_SECONDS, partial(abort_io, connection)),
                ):
                    pause = self.maintain(connection)
            except (psycopg.Error, CmdbusError, OSError) as error:
                _warn("maintain the schema", error)

    def maintain(self, connection: Connection) -> float:
        """Returns the seconds until the next time."""
        now = time.monotonic()
        if now >= self._days_at:
            self._maintain_days(connection)
            self._days_at = now + _EVERY_SECONDS * random.uniform(0.9, 1.1)
        removed = self._retention.sweep(connection)
        if removed:
            logger.debug("removed %s commands that their domains do not keep any longer", removed)
        self._retention.remove_batches(connection)
        self._retention.remove_checkpoints(connection)
        self._unhandled.report(connection)
        return self._retention.sweep_in(connection)

    def _maintain_days(self, connection: Connection) -> None:
        try:
            schemas.make_partitions(connection, self._statements.schema)
        except (psycopg.Error, SchemaError) as error:
            if connection.closed:
                raise
            _warn("make partitions of history", error)
        self._retention.remove_unique_keys(connection)
        removed = self._retention.remove_days(connection)
        records = self._retention.remove_records(connection)
        if records:
            logger.debug("removed %s records of processes, lanes and changes to domains", records)
        if removed:
            logger.info("removed %s days of history that no domain keeps any longer", removed)


def _warn(what: str, error: Exception) -> None:
    logger.warning("cannot %s: %s; trying again later", what, reason(error))
