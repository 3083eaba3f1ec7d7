"""The database session that a handler uses, and what errors of it mean for the command."""

from collections.abc import Callable
from typing import Any, TypeVar

from cmdbus.printable import joined
from cmdbus.worker.claims.claim import Claim, Connection
from cmdbus.worker.claims.connections import PoolExhausted
from cmdbus.worker.claims.outcomes import Outcome, interrupted
from cmdbus.worker.execution.autocommit_session import AutocommitSession
from cmdbus.worker.execution.executing_thread import ExecutingThread
from cmdbus.worker.execution.handler_transaction import (
    PLAN_CHANGED,
    HandlerTransaction,
    may_be_own_end,
)
from cmdbus.worker.execution.session_errors import SESSION_ERRORS, is_of_driver, session_error

Result = TypeVar("Result")

#: Seconds until a command that an outage has interrupted runs again.
AFTER_OUTAGE = 1.0


class UsedSession:
    """Made when a handler asks for its first statement."""

    #: The one in which the handler works, once it has asked for that.
    transaction: HandlerTransaction | None = None
    #: What it works in instead, if it has none.
    autocommit: AutocommitSession | None = None
    #: None as long as the thread could get none.
    _session: Connection | None = None

    def __init__(self, thread: ExecutingThread[Any]) -> None:
        self._thread = thread

    def run(self, work: Callable[[Connection], Result]) -> Result:
        if self.autocommit is not None and self._session is not None:
            return work(self._session)  # It may be in a transaction of the handler's own.
        self._session = self._thread.connect()
        try:
            return work(self._session)
        except SESSION_ERRORS:
            if not self._session.closed:
                raise
            # It ended after the thread's latest command, so it is no loss of this one.
            self._session = self._thread.connect()
            return work(self._session)

    def end(self) -> None:
        if self.transaction is not None:
            self.transaction.end()
        if self.autocommit is not None:
            self.autocommit.end()

    def is_cause_of(self, error: BaseException) -> bool:
        """Whether this error is about the session, and not about what the handler did with it."""
        return (self._is_gone and session_error(error) is not None) or is_of_driver(error)

    def interruption(self, error: BaseException, claim: Claim) -> Outcome | None:
        """The outcome of a command that the session has interrupted with this error; None if it has
        not."""
        if self._is_gone and (ended := session_error(error)):
            return interrupted(
                "POOL_EXHAUSTED" if isinstance(ended, PoolExhausted) else "DATABASE_AWAY",
                joined(str(ended)),
                AFTER_OUTAGE,
                lost=self._session is not None and may_be_own_end(ended, self.transaction),
            )
        if is_of_driver(error):
            return interrupted("DATABASE_AWAY", joined(str(error)), AFTER_OUTAGE, lost=True)
        if self.transaction is not None and self.transaction.met_new_plan(error, claim):
            return interrupted(PLAN_CHANGED, str(error), AFTER_OUTAGE, lost=False)
        return None

    @property
    def _is_gone(self) -> bool:
        used = self.transaction or self.autocommit
        if used is not None and used.dropped:
            return False
        return self._session is None or self._session.closed
