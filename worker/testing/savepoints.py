"""An execution inside the open transaction of a test: within a savepoint, which is rolled back to
where a worker would roll back its transaction.

No savepoint is released: the handler may have ended one of the test's own, around it, as the
`commit()` of an SQLAlchemy session that joins the test's transaction does.
"""

from collections.abc import Sequence
from itertools import count

import psycopg

from cmdbus.database.executor import Executor
from cmdbus.database.statements import render
from cmdbus.errors import InvalidOperationError
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.execution.handler_transaction import HandlerTransaction

_INERROR = psycopg.pq.TransactionStatus.INERROR
_numbers = count(1)


class Savepoint:
    """Opened before a handler runs."""

    def __init__(self, executor: Executor, session: Connection) -> None:
        self._schema, self._session = executor.schema, session
        #: Unlike all before: else the rollback could be to another one.
        self._name = f"cmdbus_{next(_numbers)}"
        self._execute("open_savepoint")

    def roll_back(self) -> None:
        try:
            self._execute("rollback_to_savepoint")
        except psycopg.errors.InvalidSavepointSpecification as error:
            raise InvalidOperationError(
                "the handler has failed after it had committed the session of the test itself, in "
                "which it ran: what it wrote cannot be rolled back alone, so give the handler a "
                "session of its own on the test's connection"
            ) from error

    def roll_back_if_aborted(self) -> None:
        """After a handler without context.connection, whose own sessions have committed what a
        worker would leave."""
        if self._session.info.transaction_status is _INERROR:
            self.roll_back()

    def _execute(self, name: str) -> None:
        self._session.execute(render(name, self._schema, identifier=self._name).encode())


class SavepointTransaction(HandlerTransaction):
    """What the handler writes is kept or undone like a transaction. Without the limits of time,
    which would outlast it."""

    def __init__(
        self, statements: ClaimStatements, session: Connection, marker: str, savepoint: Savepoint
    ) -> None:
        self._savepoint = savepoint
        super().__init__(statements, session, marker, statement=0.0, idle=0.0)

    def limit(self, *, statement: float, idle: float) -> None:
        pass

    def _begin(self, statement: float, idle: float) -> None:
        self._statements.value(self._session, "mark_transaction", marker=self._marker)

    def _commit(self, prepared: Sequence[str]) -> None:
        pass

    def _roll_back(self) -> None:
        self._savepoint.roll_back()
