"""Where the statements of a PgmqClient run: in the caller's transaction, or on a connection of its
own."""

import select
from collections.abc import Mapping
from typing import Any

import psycopg

from cmdbus.database import dsn as dsns
from cmdbus.database.adapters import Row, own_cursor
from cmdbus.database.executor import Executor
from cmdbus.database.pool import Connection
from cmdbus.errors import QueueNotFoundError
from cmdbus.integrations.callers_connection import (
    CallersConnection,
    is_asynchronous,
    session_of,
)
from cmdbus.pgmq.operations import Operation, text_of
from cmdbus.pgmq.refusals import EXPLAINED, explained, outcome_unknown
from cmdbus.producer.connections import Connections, Pool
from cmdbus.producer.statement_errors import not_encodable

_ACTIVE = psycopg.pq.TransactionStatus.ACTIVE
_EXECUTOR = Executor("cmdbus")


class OwnConnections(Connections):
    owner = "PgmqClient"


class Sessions:
    def __init__(self, dsn: str | None, pool: Pool | None, prepare: bool, timeout: float) -> None:
        self._prepare = None if prepare else False
        self._own: OwnConnections | None = None
        if dsn is not None or pool is not None:
            if dsn is not None and pool is None:
                dsn = dsns.with_defaults(dsn, settings={}, application_name="cmdbus:pgmq")
            self._own = OwnConnections(dsn, pool, _EXECUTOR, timeout)

    def rows(
        self,
        connection: CallersConnection | None,
        operation: Operation,
        queue: str | None,
        values: Mapping[str, Any],
    ) -> list[Row]:
        """Without the first column; none if the queue is there and nothing was found in it."""
        if connection is not None:
            rows = self._execute(_callers(connection), operation, queue, values)
        elif self._own is None:
            raise ValueError(
                f"pgmq.{operation.function} needs connection=, as this PgmqClient was made "
                f"without a DSN or a pool"
            )
        else:
            rows = self._own.use(
                None, lambda c, _: self._on_own_session(c, operation, queue, values)
            )
        if queue is not None and not rows[0][0]:
            raise QueueNotFoundError(queue)
        return [row[1:] for row in rows if row[1] is not None]

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def _on_own_session(
        self,
        session: Connection,
        operation: Operation,
        queue: str | None,
        values: Mapping[str, Any],
    ) -> list[Row]:
        """On a connection of its own. If that is found to be dead before the call, `use` takes
        another one; if it dies later, only what is repeatable is repeated."""
        if _has_input(session):  # its server has ended it, mostly
            _EXECUTOR.value(session, "ping")
        try:
            rows = self._execute(session, operation, queue, values)
            if not session.autocommit:
                session.commit()
        except psycopg.OperationalError as error:
            dead = session.closed or session.info.transaction_status is _ACTIVE
            if operation.repeatable or not dead:
                raise
            session.close()
            raise outcome_unknown(error, operation, queue) from None
        return rows

    def _execute(
        self,
        session: Connection,
        operation: Operation,
        queue: str | None,
        values: Mapping[str, Any],
    ) -> list[Row]:
        cursor, given = own_cursor(session), {"queue": queue, **values}
        try:
            return cursor.execute(
                text_of(operation), given, prepare=self._prepare, binary=True
            ).fetchall()
        except EXPLAINED as error:
            raise explained(error, operation, queue, session) from None
        except (psycopg.errors.UntranslatableCharacter, UnicodeEncodeError) as error:
            raise not_encodable(error) from None


def _callers(connection: CallersConnection) -> Connection:
    if not isinstance(connection, psycopg.Connection) and is_asynchronous(connection):
        raise ValueError(
            "connection is one of asyncio, and a PgmqClient is synchronous: call it in a thread, "
            "as asyncio.to_thread does, or with the session that SQLAlchemy's run_sync gives"
        )
    return session_of(connection)


def _has_input(session: Connection) -> bool:
    arrived = select.poll()
    arrived.register(session.fileno(), select.POLLIN)
    return bool(arrived.poll(0))
