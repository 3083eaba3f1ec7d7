"""An execution in the thread of a test: the worker's own, on the session of the test's runner."""

import os

from cmdbus.testing.savepoints import Savepoint, SavepointTransaction
from cmdbus.timeouts import Timeouts
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.outcomes import Outcome
from cmdbus.worker.execution.executing_thread import Handled
from cmdbus.worker.execution.execution import Execution
from cmdbus.worker.execution.handler_transaction import HandlerTransaction
from cmdbus.worker.execution.surrounded_execution import SurroundedExecution


class InlineThread:
    """The calling one, with the runner's session. No deadline ends its work."""

    is_stopping = False

    def __init__(self, session: Connection, breakers: Breakers) -> None:
        self.pid = os.getpid()
        self.breakers = breakers
        self._session = session

    def has_lost(self, work: Execution) -> bool:
        return False

    def connect(self) -> Connection:
        return self._session

    def connect_once(self) -> Connection:
        return self._session

    def extend(self, work: Execution, seconds: float) -> None:
        work.due += seconds

    def count_denied(self) -> None:
        pass


class InlineExecution(SurroundedExecution):
    #: What the handler has raised.
    error: BaseException | None = None

    def __init__(
        self,
        claim: Claim,
        handled: Handled,
        thread: InlineThread,
        statements: ClaimStatements,
        timeouts: Timeouts,
        savepoint: Savepoint | None,
    ) -> None:
        """`savepoint`: None where each command has a transaction of its own."""
        super().__init__(claim, handled, thread, statements, timeouts)
        self._savepoint = savepoint

    @property
    def is_in_a_tests_transaction(self) -> bool:
        return self._savepoint is not None

    def _begin(self, session: Connection) -> HandlerTransaction:
        if self._savepoint is None:
            return super()._begin(session)
        return SavepointTransaction(self._statements, session, self._marker, self._savepoint)

    def _settle(self, finished: Finished) -> tuple[Finished, list[Claim]]:
        if self._savepoint is not None:
            self._savepoint.roll_back_if_aborted()
        return super()._settle(finished)

    def _failed(self, error: BaseException) -> Outcome:
        self.error = error
        return super()._failed(error)
