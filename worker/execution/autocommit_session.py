"""The thread's session in autocommit mode, lent to a handler that has no transaction, or to what is
called after its settlement."""

import psycopg

from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.sessions import end_session
from cmdbus.worker.claims.transactions import reset, session_limits
from cmdbus.worker.execution.handler_connection import autocommit_connection


class AutocommitSession:
    #: It was closed here, because it was still in use.
    dropped = False

    def __init__(
        self, statements: ClaimStatements, session: Connection, *, statement: float, idle: float
    ) -> None:
        self._statements, self._session = statements, session
        session.execute(session_limits(statements, statement=statement, idle=idle))
        self.connection = autocommit_connection(session)

    def limit(self, *, statement: float, idle: float) -> None:
        """Sets new limits, in seconds. Called by any thread."""
        self.connection.limit(session_limits(self._statements, statement=statement, idle=idle))

    def end(self) -> None:
        """Leaves the session clean for the next command, or closed."""
        if not self.connection.retire():
            self.dropped = True
            end_session(self._session)
        elif not self._session.closed:
            try:
                reset(self._statements, self._session)
            except psycopg.Error:
                self._session.close()
