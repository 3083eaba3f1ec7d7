"""What a collector knows of the database: a thread counts it, on a session of its own."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import psycopg

from cmdbus.database.adapters import Row
from cmdbus.database.executor import Executor
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.statement_errors import NOT_INSTALLED, missing_right, not_installed
from cmdbus.worker.probes.database import DepthGauge

logger = logging.getLogger(__name__)

#: Seconds for one statement, and for connecting; and those after which a count is aborted.
_STATEMENT_SECONDS, _CONNECT_SECONDS, _COUNT_SECONDS = 2.0, 2.0, 10.0
_SESSION_NAME = "cmdbus:metrics"


class LimitedExecutor(Executor):
    """Each statement in a transaction of its own, with a limit that ends with it: a pooler may give
    the session to other clients."""

    def execute(
        self,
        connection: psycopg.Connection[Any],
        name: str,
        values: Mapping[str, Any] | None = None,
        *,
        prepare: bool | None = None,
        binary: bool = False,
    ) -> psycopg.Cursor[Row]:
        limit = {"limit": f"{_STATEMENT_SECONDS:g}s"}
        with connection.transaction():
            super().execute(connection, "limit_statements", limit)
            return super().execute(connection, name, values, prepare=prepare, binary=binary)


class DatabaseGauge(DepthGauge):
    """Its session is opened as the bus opens its own."""

    def __init__(self, bus: CommandBus, timeout: float) -> None:
        connections = bus._connections
        connect = partial(
            connections.open_session, _CONNECT_SECONDS, application_name=_SESSION_NAME
        )
        statements = LimitedExecutor(connections.schema, prepare=False)
        super().__init__(
            connect, statements, _COUNT_SECONDS, name="cmdbus-metrics", timeout=timeout
        )
        #: The latest warning, which is not repeated until rows have been counted.
        self._warned: str | None = None

    def counted(self) -> None:
        self._warned = None

    def failed(self, error: Exception) -> None:
        why = str(self._sentence(error))
        if why != self._warned:
            logger.warning("the metrics of the database are not known: %s", why)
        self._warned = why

    def _sentence(self, error: Exception) -> Exception:
        if self._connection is None or self._connection.closed:
            return error
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return missing_right(self._statements, self._connection, error, "monitor")
        if isinstance(error, NOT_INSTALLED):
            return not_installed(self._statements.schema, self._connection, error)
        return error
